//! The private node, its vhosts, and what they cost.

use std::{
    cell::Cell,
    thread,
    time::{Duration, Instant},
};

use delayline_admin::management::ManagementApi;
use delayline_amqp::Session;
use delayline_core::topology::{Argument, Binding, Endpoint, Exchange, ExchangeKind, Queue};
use delayline_node::{NodeOptions, PrivateNode};
use delayline_settings::Settings;
use serde_json::{Value as Json, json};

use super::{Fallible, machine::Cpu};

/// The queue that every layout delivers into.
pub const INBOX: &str = "inbox";

/// How the names of exchanges begin that lead past the entry of a layout.
pub const FILL: &str = "fill.";

/// How long it takes until what was being handed on has arrived.
const CALM: Duration = Duration::from_millis(200);

pub struct Broker {
    node: PrivateNode,
    pub version: String,
    pub has_delay_plugin: bool,
    /// CPU seconds it takes per second with nothing to do.
    pub idle: f64,
    /// CPU seconds that everything else on the machine took per second meanwhile.
    pub foreign: f64,
    vhosts: Cell<u32>,
}

/// What a layout consists of.
#[derive(Debug, Clone, Copy)]
pub struct Objects {
    pub queues: usize,
    pub bindings: usize,
    /// Messages in all queues, up to some seconds ago.
    pub messages: u64,
}

impl Broker {
    pub fn start(prefetch: Option<u32>, plugins: &[String]) -> Fallible<Self> {
        let rabbit = prefetch.map(|number| format!("{{dead_letter_worker_consumer_prefetch, {number}}}"));
        let node = PrivateNode::start(NodeOptions {
            rabbit: rabbit.into_iter().collect(),
            plugins: plugins.to_vec(),
            ..NodeOptions::default()
        })?;
        let mut broker = Self {
            node,
            version: String::new(),
            has_delay_plugin: false,
            idle: 0.0,
            foreign: 0.0,
            vhosts: Cell::new(0),
        };
        let overview = broker.http("GET", "overview", &Json::Null)?;
        broker.version = overview["rabbitmq_version"].as_str().unwrap_or_default().to_owned();
        let kinds = overview["exchange_types"].as_array().cloned().unwrap_or_default();
        broker.has_delay_plugin = kinds.iter().any(|kind| kind["name"] == "x-delayed-message");
        Ok(broker)
    }

    /// Measures what it takes with nothing to do, and what else the machine does.
    pub fn rest(&mut self, time: Duration) {
        let (cpu, machine, started) = (self.cpu(), Cpu::now(), Instant::now());
        thread::sleep(time);
        let seconds = started.elapsed().as_secs_f64();
        let cpu = self.cpu() - cpu;
        self.idle = cpu / seconds;
        self.foreign = ((Cpu::now().wanted - machine.wanted - cpu) / seconds).max(0.0);
    }

    /// CPU seconds its process has used.
    pub fn cpu(&self) -> f64 {
        self.node.cpu_seconds().unwrap_or(0.0)
    }

    /// Bytes of memory it holds.
    pub fn memory(&self) -> u64 {
        self.node.resident_memory().unwrap_or(0)
    }

    /// A new vhost with an empty inbox in it.
    pub fn vhost(&self, unit_ms: u64) -> Fallible<Vhost<'_>> {
        let number = self.vhosts.replace(self.vhosts.get() + 1);
        let name = format!("compare-{number}");
        self.http("PUT", &format!("vhosts/{name}"), &json!({}))?;
        let url = format!("{}/{name}", self.node.url());
        let settings = self.node.settings().set("url", url).set("unit_ms", unit_ms.to_string()).build()?;
        let session = Session::open(&settings.broker)?;
        let mut vhost = Vhost { broker: self, name, unit_ms, settings, session };
        vhost.queue(INBOX, &[("x-queue-type", "quorum".into())])?;
        Ok(vhost)
    }

    fn http(&self, method: &str, path: &str, body: &Json) -> Fallible<Json> {
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}/api/{path}", self.node.management_url()))
            // guest:guest
            .header("authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")
            .header("content-type", "application/json")
            .body(if body.is_null() { String::new() } else { body.to_string() })?;
        let agent: ureq::Agent =
            ureq::Agent::config_builder().allow_non_standard_methods(true).build().into();
        let text = agent.run(request).map_err(|error| format!("{method} {path}: {error}"))?;
        let text = text.into_body().read_to_string()?;
        Ok(serde_json::from_str(&text).unwrap_or(Json::Null))
    }
}

/// A vhost that is deleted with all it holds when it is dropped.
pub struct Vhost<'b> {
    pub broker: &'b Broker,
    name: String,
    pub unit_ms: u64,
    pub settings: Settings,
    session: Session,
}

impl Vhost<'_> {
    pub fn unit(&self) -> Duration {
        Duration::from_millis(self.unit_ms)
    }

    /// How clients in other languages reach it.
    pub fn url(&self) -> String {
        let authority = self.broker.node.authority();
        format!("amqp://guest:guest@{authority}/{}", self.name)
    }

    pub fn queue(&mut self, name: &str, arguments: &[(&str, Argument)]) -> Fallible<()> {
        let arguments = arguments.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        Ok(self.session.declare_queue(&Queue::new(name).with_arguments(arguments))?)
    }

    pub fn exchange(&mut self, name: &str, kind: ExchangeKind) -> Fallible<()> {
        Ok(self.session.declare_exchange(&Exchange::new(name, kind))?)
    }

    /// Throws away what has arrived and nobody has taken.
    pub fn empty_inbox(&mut self) -> Fallible<()> {
        Ok(self.session.purge_queue(INBOX).map(drop)?)
    }

    /// An exchange of a kind that only a plugin knows.
    pub fn delayed_exchange(&self, name: &str) -> Fallible<()> {
        let body = json!({
            "type": "x-delayed-message", "durable": true, "arguments": { "x-delayed-type": "direct" },
        });
        self.broker.http("PUT", &format!("exchanges/{}/{name}", self.name), &body).map(drop)
    }

    pub fn bind_queue(&mut self, source: &str, queue: &str, key: &str) -> Fallible<()> {
        self.bind(source, Endpoint::Queue(queue.into()), key)
    }

    pub fn bind_exchange(&mut self, source: &str, exchange: &str, key: &str) -> Fallible<()> {
        self.bind(source, Endpoint::Exchange(exchange.into()), key)
    }

    fn bind(&mut self, source: &str, destination: Endpoint, key: &str) -> Fallible<()> {
        Ok(self.session.bind(&Binding { source: source.into(), destination, key: key.into() })?)
    }

    /// Everything in it, but for the inbox and what only measures.
    pub fn objects(&self) -> Fallible<Objects> {
        let api = ManagementApi::new(self.settings.management.as_ref().ok_or("no management API")?)?;
        let queues = api.queues(&self.name)?;
        let bindings = api.bindings(&self.name)?;
        Ok(Objects {
            queues: queues.iter().filter(|queue| queue.name != INBOX).count(),
            bindings: bindings.iter().filter(|binding| !is_ours(&binding.source)).count(),
            messages: queues.iter().map(|queue| queue.messages).sum(),
        })
    }
}

impl Vhost<'_> {
    /// Removes the queues once nothing flows between them any more.
    ///
    /// On 4.3.6 the dead-letter worker of a queue that is deleted while it hands messages
    /// on may crash, a hundred times at once since its queue is gone, upon which the node
    /// dead-letters nothing any more, for nobody, until it is started again.
    fn remove_queues(&mut self) {
        let queues = || Some(ManagementApi::new(self.settings.management.as_ref()?).ok()?.queues(&self.name));
        let Some(Ok(queues)) = queues() else { return };
        let mut names: Vec<_> = queues.into_iter().map(|queue| queue.name).collect();
        // From the longest delay to the shortest where messages pass several.
        names.sort_unstable();
        names.reverse();
        // What was being handed on at first is in the next queue at the second time.
        for _ in 0..2 {
            for name in &names {
                let _ = self.session.purge_queue(name);
            }
            thread::sleep(CALM);
        }
        for name in &names {
            let _ = self.session.delete_queue(name);
        }
    }
}

/// The default exchange, to which every queue is bound, and those that lead past the
/// entry.
fn is_ours(exchange: &str) -> bool {
    exchange.is_empty() || exchange.starts_with(FILL)
}

impl Drop for Vhost<'_> {
    fn drop(&mut self) {
        self.remove_queues();
        let _ = self.broker.http("DELETE", &format!("vhosts/{}", self.name), &Json::Null);
    }
}
