//! Removing a set.

use std::{fmt, thread, time::Duration};

use serde::Serialize;

use crate::{
    amqp::Session,
    settings::Settings,
    topology::{Object, Observed, Queue, Topology},
};

use super::{AdminError, Conflict, State, doing, examine, observe};

/// How long to wait between closing the entry and counting again: confirms take
/// milliseconds.
const SETTLE: Duration = Duration::from_secs(1);

/// What was removed.
#[derive(Debug, Clone, Default, Serialize)]
pub struct UninstallReport {
    /// Exchanges and queues that were removed.
    pub removed: Vec<String>,
    /// Objects under the set's names that are not as it declares them. They were
    /// left alone.
    pub foreign: Vec<Conflict>,
    /// Messages that went with the queues, by force.
    pub discarded: Vec<Waiting>,
    /// Bindings of applications that went with the dispatch exchange.
    pub unbound: Vec<String>,
    /// What could not be seen, and why.
    pub unseen: Vec<String>,
}

/// Messages in a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Waiting {
    /// The queue.
    pub queue: String,
    /// How many, stuck ones included where they can be seen.
    pub messages: u64,
}

/// Why nothing was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// Where messages wait, and how many.
    pub waiting: Vec<Waiting>,
    /// Objects under the set's names that are not as it declares them. The set
    /// was probably installed with other settings, and removing only a part of
    /// it would leave its queues without a way out.
    pub foreign: Vec<Conflict>,
    /// Landing queues of applications, which hang on the dispatch exchange.
    pub landing: Vec<String>,
    /// Why it cannot be told whether messages wait between two levels.
    pub unseen: Vec<String>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        if !self.waiting.is_empty() {
            let total: u64 = self.waiting.iter().map(|waiting| waiting.messages).sum();
            let places: Vec<_> = self
                .waiting
                .iter()
                .map(|waiting| format!("{} in `{}`", waiting.messages, waiting.queue))
                .collect();
            write!(f, "{total} messages still wait: {}", places.join(", "))?;
            separator = "; ";
        }
        if let Some(first) = self.foreign.first() {
            let number = self.foreign.len();
            write!(f, "{separator}{number} objects are not as this set declares them, such as {first}")?;
            separator = "; ";
        }
        if !self.landing.is_empty() {
            let names: Vec<_> = self.landing.iter().map(|name| format!("`{name}`")).collect();
            write!(f, "{separator}applications are registered with landing queues: {}", names.join(", "))?;
            separator = "; ";
        }
        for unseen in &self.unseen {
            write!(f, "{separator}it cannot be told whether there are {unseen}")?;
            separator = "; ";
        }
        Ok(())
    }
}

/// Removes what [`install`](super::install()) declared, and nothing else.
///
/// The entry exchanges go first, so that nothing new comes in; then the queues
/// are counted again, and if something arrived meanwhile, they are put back.
/// `force` removes queues with what they hold, and the set's own objects although
/// others stand among them.
///
/// # Errors
/// If the broker refuses or is lost; removing again goes on from there.
pub fn uninstall(
    settings: &Settings,
    topology: &Topology,
    force: bool,
) -> Result<Result<UninstallReport, Refusal>, AdminError> {
    let mut session = Session::open(&settings.broker).map_err(doing("connecting"))?;
    let look = || observe(settings.management.as_ref(), &settings.broker.vhost);
    let observed = look()?;
    let mut report = UninstallReport::default();
    if let Err(reason) = &observed {
        report.unseen.push(format!("messages that are stuck between two levels: {reason}"));
    }
    let observed = observed.ok();

    let landing = landing_queues(topology, observed.as_ref());
    // First here, and so removed last, after what feeds them.
    let mut ours: Vec<&Object> = landing.iter().collect();
    for object in topology.objects() {
        match examine::object(&mut session, object).map_err(doing("looking at the set"))? {
            Some(State::Same) => ours.push(object),
            Some(State::Different(conflict)) => report.foreign.push(conflict),
            Some(State::Missing) | None => {}
        }
    }
    let waiting = count(&mut session, &ours, observed.as_ref())?;
    let clear = waiting.is_empty() && report.foreign.is_empty() && landing.is_empty();
    let blind = observed.is_none() && !ours.is_empty();
    if !force && (blind || !clear) {
        let landing = landing.iter().filter_map(queue_name).map(str::to_owned).collect();
        return Ok(Err(Refusal { waiting, foreign: report.foreign, landing, unseen: report.unseen }));
    }
    let entries = [topology.names().entry(), topology.names().express()];
    let is_entry =
        |object: &&Object| matches!(object, Object::Exchange(exchange) if entries.contains(&exchange.name));
    let closed: Vec<_> =
        ours.iter().filter(|object| is_entry(object)).filter_map(|object| object.name()).collect();
    for entry in &closed {
        session.delete_exchange(entry).map_err(doing("removing the entry exchanges"))?;
        report.removed.push(format!("exchange `{entry}`"));
    }
    if !force && !ours.is_empty() {
        // What was on its way in is in its queue by then.
        thread::sleep(SETTLE);
    }
    let again = look()?.ok();
    let waiting = count(&mut session, &ours, again.as_ref())?;
    if !force && !waiting.is_empty() {
        for entry in closed {
            restore_entry(&mut session, topology, entry, observed.as_ref())?;
        }
        return Ok(Err(Refusal { waiting, ..Refusal::default() }));
    }
    report.discarded = waiting;
    for object in ours.into_iter().rev().filter(|object| !is_entry(object)) {
        match object {
            Object::Exchange(exchange) => {
                if let Some(observed) = &observed
                    && exchange.name == topology.names().dispatch()
                {
                    let bindings = observed.dispatch_bindings(topology);
                    report.unbound = bindings.iter().map(ToString::to_string).collect();
                }
                session
                    .delete_exchange(&exchange.name)
                    .map_err(doing(format!("removing exchange `{}`", exchange.name)))?;
                report.removed.push(format!("exchange `{}`", exchange.name));
            }
            Object::Queue(queue) => {
                session
                    .delete_queue(&queue.name)
                    .map_err(doing(format!("removing queue `{}`", queue.name)))?;
                report.removed.push(format!("queue `{}`", queue.name));
            }
            // Bindings go with their exchanges.
            Object::Binding(_) => {}
        }
    }
    Ok(Ok(report))
}

/// The landing queues that stand, as far as the API can be asked. They are not part
/// of the set, but without it they are of no use.
fn landing_queues(topology: &Topology, observed: Option<&Observed>) -> Vec<Object> {
    let queues = observed.map(|observed| observed.queues.as_slice()).unwrap_or_default();
    queues
        .iter()
        .filter(|info| topology.names().app_of_landing(&info.name).is_some())
        .map(|info| Object::Queue(Queue { name: info.name.clone(), level: None, arguments: [].into() }))
        .collect()
}

fn queue_name(object: &Object) -> Option<&str> {
    match object {
        Object::Queue(queue) => Some(&queue.name),
        _ => None,
    }
}

/// The queues among these that hold messages. AMQP has the count of this moment
/// without stuck messages, and says 0 of a queue without a leader; the API has
/// one that is up to 5 s old with them. The larger is taken.
fn count(
    session: &mut Session,
    ours: &[&Object],
    observed: Option<&Observed>,
) -> Result<Vec<Waiting>, AdminError> {
    let mut waiting = Vec::new();
    for object in ours {
        let Object::Queue(queue) = object else {
            continue;
        };
        let depth = session.queue_depth(&queue.name).map_err(doing(format!("counting `{}`", queue.name)))?;
        let ready = depth.map_or(0, |depth| u64::from(depth.ready));
        let known = observed.and_then(|observed| observed.queues.iter().find(|info| info.name == queue.name));
        let messages = known.map_or(ready, |info| {
            info.messages.max(info.messages_dlx + info.messages_unacknowledged + ready)
        });
        if messages > 0 {
            waiting.push(Waiting { queue: queue.name.clone(), messages });
        }
    }
    Ok(waiting)
}

/// Puts an entry exchange back as it was, with the bindings others had made.
fn restore_entry(
    session: &mut Session,
    topology: &Topology,
    entry: &str,
    before: Option<&Observed>,
) -> Result<(), AdminError> {
    for object in topology.objects() {
        let restored = match object {
            Object::Exchange(exchange) if exchange.name == entry => session.declare_exchange(exchange),
            Object::Binding(binding) if binding.source == entry => session.bind(binding),
            _ => continue,
        };
        restored.map_err(doing("putting the entry exchange back"))?;
    }
    for binding in before.map(|before| before.bindings_of(entry)).unwrap_or_default() {
        session.bind(&binding).map_err(doing(format!("putting {binding} back")))?;
    }
    Ok(())
}
