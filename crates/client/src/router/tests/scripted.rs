//! A broker that answers as it is told.

use crossbeam_channel::{Sender, unbounded};

use super::*;
use delayline_amqp::{AmqpError, Returned};

/// A builder for a broker that nobody connects to.
pub(super) fn builder() -> RouterBuilder {
    Router::builder(Broker::from_url("amqp://unused").unwrap())
}

/// What the scripted broker does with a message.
type Script = dyn FnMut(u32, u64, &[u8]) -> Vec<Event> + Send;

/// A broker whose answer to message `tag` of connection `n` is scripted.
#[derive(Clone)]
pub(super) struct Scripted {
    pub(super) script: Arc<Mutex<Box<Script>>>,
    /// Why the channel of a connection ended.
    pub(super) end: fn(u32) -> AmqpError,
    pub(super) connections: Arc<AtomicU32>,
    pub(super) refuse: fn(u32) -> bool,
    /// Which messages no queue takes.
    pub(super) returned: fn(&str, &[u8]) -> bool,
    pub(super) published: Arc<Mutex<Vec<Vec<u8>>>>,
    /// The routing keys of the same messages.
    pub(super) keys: Arc<Mutex<Vec<String>>>,
}

pub(super) struct ScriptedChannel {
    broker: Scripted,
    number: u32,
    tag: u64,
    events: (Sender<Event>, Receiver<Event>),
}

impl Scripted {
    pub(super) fn new(script: impl FnMut(u32, u64, &[u8]) -> Vec<Event> + Send + 'static) -> Self {
        Self {
            script: Arc::new(Mutex::new(Box::new(script))),
            end: |_| AmqpError::Lost { reason: "scripted".into() },
            connections: Arc::default(),
            refuse: |_| false,
            returned: |_, _| false,
            published: Arc::default(),
            keys: Arc::default(),
        }
    }

    pub(super) fn router(&self, timeout: Duration, window: usize) -> Router {
        self.start(builder().publish_timeout(timeout).window(window))
    }

    pub(super) fn start(&self, builder: RouterBuilder) -> Router {
        Router::start(self.clone(), self.connect().ok(), builder)
    }

    pub(super) fn bodies(&self) -> Vec<String> {
        let published = self.published.lock().unwrap();
        published.iter().map(|body| String::from_utf8_lossy(body).into_owned()).collect()
    }
}

impl Connector for Scripted {
    type Channel = ScriptedChannel;

    fn connect(&self) -> Result<ScriptedChannel, AmqpError> {
        let number = self.connections.fetch_add(1, Ordering::SeqCst);
        if (self.refuse)(number) {
            return Err(AmqpError::Unreachable { address: "scripted".into(), reason: "down".into() });
        }
        Ok(ScriptedChannel { broker: self.clone(), number, tag: 0, events: unbounded() })
    }
}

impl ConfirmChannel for ScriptedChannel {
    fn publish(&mut self, exchange: &str, message: Wire, body: &[u8]) {
        assert_eq!(exchange, message.exchange.as_deref().unwrap_or("delay"));
        self.tag += 1;
        if (self.broker.returned)(exchange, body) {
            let returned = Returned {
                code: 312,
                text: "NO_ROUTE".into(),
                exchange: exchange.into(),
                routing_key: message.routing_key.clone(),
                body: body.to_vec(),
                properties: message.properties.clone(),
                headers: message.headers.clone(),
            };
            let event = Event::Returned(Box::new(returned));
            self.events.0.send(event).unwrap();
        }
        self.broker.published.lock().unwrap().push(body.to_vec());
        self.broker.keys.lock().unwrap().push(message.routing_key);
        for event in (self.broker.script.lock().unwrap())(self.number, self.tag, body) {
            self.events.0.send(event).unwrap();
        }
    }

    fn events(&self) -> &Receiver<Event> {
        &self.events.1
    }

    fn end(&mut self, _: Duration) -> AmqpError {
        (self.broker.end)(self.number)
    }

    fn reopen(&mut self) -> Result<(), AmqpError> {
        self.tag = 0;
        self.events = unbounded();
        Ok(())
    }

    fn close(self, _: Duration) {}
}
