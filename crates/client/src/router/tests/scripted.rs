//! A broker with scripted answers.

use std::sync::mpsc;

use crossbeam_channel::{Receiver, Sender, select_biased, unbounded};

use super::*;
use crate::router::channel::{ConfirmChannel, Connector};
use delayline_amqp::{AmqpError, Returned, Woken, broker::Broker};
use delayline_core::message::Wire;

/// A builder for a broker without real connections.
pub(super) fn builder() -> RouterBuilder {
    Router::builder(Broker::from_url("amqp://unused").unwrap())
}

/// The scripted broker's answer to a message.
type Script = dyn FnMut(u32, u64, &[u8]) -> Vec<Event> + Send;

/// A broker whose answer to message `tag` of connection `n` is scripted.
#[derive(Clone)]
pub(super) struct Scripted {
    pub(super) script: Arc<Mutex<Box<Script>>>,
    /// Why the channel of a connection ended.
    pub(super) end: fn(u32) -> AmqpError,
    pub(super) connections: Arc<AtomicU32>,
    pub(super) refuse: fn(u32) -> bool,
    /// Connecting ends when the other end of this does.
    pub(super) connecting: Option<Arc<Mutex<mpsc::Receiver<()>>>>,
    /// Decides which messages no queue takes.
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
            connecting: None,
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

    pub(super) fn start_later(&self, builder: RouterBuilder) -> Router {
        Router::start(self.clone(), None, builder)
    }

    pub(super) fn bodies(&self) -> Vec<String> {
        let published = self.published.lock().unwrap();
        published.iter().map(|body| String::from_utf8_lossy(body).into_owned()).collect()
    }
}

impl Connector for Scripted {
    type Channel = ScriptedChannel;

    fn connect(&self) -> Result<ScriptedChannel, AmqpError> {
        if let Some(held) = &self.connecting {
            let _ = held.lock().unwrap().recv();
        }
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

    fn wait<T>(&mut self, requests: &Receiver<T>, limit: Duration) -> Woken<T> {
        select_biased! {
            recv(self.events.1) -> event => Woken::Event(event.unwrap_or(Event::Ended)),
            recv(requests) -> request => request.map_or(Woken::Closed, Woken::Other),
            default(limit) => Woken::Timeout,
        }
    }

    fn next_event(&mut self) -> Option<Event> {
        self.events.1.try_recv().ok()
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
