//! Removing a set.

use std::{fmt, thread};

use serde::Serialize;

use crate::compare::Observed;
use delayline_amqp::{Session, broker::Broker};
use delayline_core::{
    codec::AppKey,
    topology::{Exchange, ExchangeKind, JournalSettings, Object, Queue, Topology},
};
use delayline_settings::Settings;

use crate::{
    AdminError, Conflict, ObjectState, Waiting, connect,
    contents::{self, SETTLE, contents},
    doing, examine,
    install::describe,
    number::{counted, either, grouped},
    observe,
};

/// The result of removing a set.
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct UninstallReport {
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// Exchanges and queues that were removed.
    pub removed: Vec<String>,
    /// Objects under the set's names that are not as it declares them. They were left alone.
    pub foreign: Vec<Conflict>,
    /// Messages that were lost with the queues, with `force`.
    pub discarded: Vec<Waiting>,
    /// Bindings of applications that were removed with the dispatch exchange.
    pub unbound: Vec<String>,
    /// What could not be checked, and why.
    pub unchecked: Vec<String>,
}

/// Why nothing was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Refusal {
    /// Where messages wait, and how many.
    pub waiting: Vec<Waiting>,
    /// Objects under the set's names that are not as it declares them. The set was probably
    /// installed with other settings, and removing only a part of it would leave its queues
    /// without a way out.
    pub foreign: Vec<Conflict>,
    /// Queues that the set has for applications, and that depend on the dispatch exchange: for
    /// landing, and for what was recalled.
    pub landing: Vec<String>,
    /// Why it cannot be told whether messages wait between two levels.
    pub unchecked: Vec<String>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        if !self.waiting.is_empty() {
            let total: u64 = self.waiting.iter().map(|waiting| waiting.messages).sum();
            let places: Vec<_> = self
                .waiting
                .iter()
                .map(|waiting| format!("{} in `{}`", grouped(waiting.messages), waiting.queue))
                .collect();
            let wait = either(total, "waits", "wait");
            write!(f, "{} still {wait}: {}", counted(total, "message"), places.join(", "))?;
            separator = "; ";
        }
        if let Some(first) = self.foreign.first() {
            let number = self.foreign.len();
            write!(f, "{separator}{number} objects are not as this set declares them, such as {first}")?;
            separator = "; ";
        }
        if !self.landing.is_empty() {
            let names: Vec<_> = self.landing.iter().map(|name| format!("`{name}`")).collect();
            write!(f, "{separator}applications are registered with queues of the set: {}", names.join(", "))?;
            separator = "; ";
        }
        for unchecked in &self.unchecked {
            write!(f, "{separator}cannot tell whether there are {unchecked}")?;
            separator = "; ";
        }
        Ok(())
    }
}

/// Removes what [`install`](super::install()) declared, and nothing else.
///
/// The entry exchange goes first, so that nothing new comes in. The queues are counted again
/// some seconds later, and if something arrived meanwhile, or that cannot be told, the
/// exchange is restored. `force` removes queues with the messages they hold, and the set's
/// own objects even if foreign ones are among them.
///
/// # Errors
/// If the broker refuses or is lost; removing again continues from there.
pub fn uninstall(
    settings: &Settings,
    topology: &Topology,
    force: bool,
) -> Result<Result<UninstallReport, Refusal>, AdminError> {
    remove(settings, topology, force, false)
}

/// What [`uninstall`] would do, or why it would refuse; nothing is changed.
///
/// # Errors
/// If the broker cannot be asked.
pub fn plan_uninstall(
    settings: &Settings,
    topology: &Topology,
    force: bool,
) -> Result<Result<UninstallReport, Refusal>, AdminError> {
    remove(settings, topology, force, true)
}

fn remove(
    settings: &Settings,
    topology: &Topology,
    force: bool,
    dry_run: bool,
) -> Result<Result<UninstallReport, Refusal>, AdminError> {
    let mut session = connect(&settings.broker)?;
    let look = || observe(settings.management.as_ref(), &settings.broker.vhost);
    let observed = look()?;
    let mut report = UninstallReport { dry_run, ..UninstallReport::default() };
    if let Err(reason) = &observed {
        report.unchecked.push(format!("messages that are stuck between two levels: {reason}"));
    }
    let observed = observed.ok();

    let landing = of_applications(topology, observed.as_ref());
    // First in this list, and so removed last, after the exchanges and queues that feed them.
    let mut ours: Vec<&Object> = landing.iter().collect();
    for object in topology.objects() {
        match examine::object(&mut session, object).map_err(doing("looking at the set"))? {
            Some(ObjectState::Same) => ours.push(object),
            Some(ObjectState::Different(conflict)) => report.foreign.push(conflict),
            Some(ObjectState::Missing) | None => {}
        }
    }
    let waiting = count(&mut session, &ours, observed.as_ref())?;
    let clear = waiting.is_empty() && report.foreign.is_empty() && landing.is_empty();
    let blind = observed.is_none() && !ours.is_empty();
    if !force && (blind || !clear) {
        let landing = landing.iter().filter_map(queue_name).map(str::to_owned).collect();
        return Ok(Err(Refusal { waiting, foreign: report.foreign, landing, unchecked: report.unchecked }));
    }
    if dry_run {
        let objects = removal_order(&ours).filter(|object| object.name().is_some());
        report.removed = objects.map(describe).collect();
        report.discarded = waiting;
        report.unbound = unbound(topology, observed.as_ref());
        return Ok(Ok(report));
    }
    let entry = topology.names().entry();
    let entry = ours.iter().filter_map(|object| object.name()).find(|name| *name == entry);
    let mut close_and_count = || -> Result<Result<Vec<Waiting>, String>, AdminError> {
        if let Some(entry) = entry {
            session.delete_exchange(entry).map_err(doing("removing the entry exchange"))?;
        }
        if !force && !ours.is_empty() {
            // A message on its way in has reached its queue by then, and the API's count.
            thread::sleep(SETTLE);
        }
        match look()? {
            Err(reason) if !force && !ours.is_empty() => Ok(Err(reason)),
            again => count(&mut session, &ours, again.ok().as_ref()).map(Ok),
        }
    };
    let counted = close_and_count();
    let stays = !force && !matches!(&counted, Ok(Ok(waiting)) if waiting.is_empty());
    if stays && let Some(entry) = entry {
        restore_entry(&settings.broker, topology, entry, observed.as_ref())?;
    }
    let waiting = match counted? {
        Ok(waiting) if stays => return Ok(Err(Refusal { waiting, ..Refusal::default() })),
        Ok(waiting) => waiting,
        Err(reason) => {
            let unchecked = vec![format!("messages that are stuck between two levels: {reason}")];
            return Ok(Err(Refusal { unchecked, ..Refusal::default() }));
        }
    };
    report.removed.extend(entry.map(|entry| format!("exchange `{entry}`")));
    if !waiting.is_empty() || blind {
        contents::calm(&mut session, removal_order(&ours).filter_map(queue_that_empties));
    }
    report.discarded = waiting;
    for object in removal_order(&ours).filter(|object| object.name().is_some_and(|it| Some(it) != entry)) {
        match object {
            Object::Exchange(exchange) => {
                if exchange.name == topology.names().dispatch() {
                    report.unbound = unbound(topology, observed.as_ref());
                }
                session
                    .delete_exchange(&exchange.name)
                    .map_err(doing(format!("removing exchange `{}`", exchange.name)))?;
                report.removed.push(format!("exchange `{}`", exchange.name));
            }
            Object::Queue(queue) => {
                contents::delete(&mut session, &queue.name, &mut report.discarded)?;
                report.removed.push(format!("queue `{}`", queue.name));
            }
            // Bindings are deleted with their exchanges.
            Object::Binding(_) => {}
        }
    }
    for queue in left_by_listeners(topology, observed.as_ref()) {
        session.delete_queue(queue).map_err(doing(format!("removing queue `{queue}`")))?;
        report.removed.push(format!("queue `{queue}`"));
    }
    Ok(Ok(report))
}

/// The queues of those who listened and were killed. Nobody misses the copies in them.
fn left_by_listeners<'a>(
    topology: &Topology,
    observed: Option<&'a Observed>,
) -> impl Iterator<Item = &'a str> {
    let queues = observed.map_or(&[][..], |observed| &observed.queues);
    let left =
        queues.iter().filter(|queue| topology.names().is_listener(&queue.name) && queue.consumers == 0);
    left.map(|queue| queue.name.as_str())
}

/// The bindings of applications, which go with the dispatch exchange; as far as the API can be
/// asked.
fn unbound(topology: &Topology, observed: Option<&Observed>) -> Vec<String> {
    let bindings = observed.map(|observed| observed.dispatch_bindings(topology)).unwrap_or_default();
    bindings.iter().map(ToString::to_string).collect()
}

/// In reverse, and so from level 27 down to 0, each queue before those it passes messages to.
///
/// This matters to the whole node, see [`contents::calm`]. Measured with messages flowing on
/// 4.3.6: in 2 of 4 runs from level 0 upwards, in none of 28 from level 27 downwards.
fn removal_order<'a>(ours: &[&'a Object]) -> impl Iterator<Item = &'a Object> + Clone {
    ours.iter().rev().copied()
}

/// What the set has for single applications, as far as the API can be asked: landing queues,
/// and what lets messages be recalled. It is not part of the set, but useless without it.
fn of_applications(topology: &Topology, observed: Option<&Observed>) -> Vec<Object> {
    let Some(observed) = observed else { return Vec::new() };
    let names = topology.names();
    let queues = observed
        .queues
        .iter()
        .map(|info| &info.name)
        .filter(|name| names.app_of_landing(name).is_some() || names.app_of_recalled(name).is_some());
    let journals =
        observed.queues.iter().filter_map(|info| AppKey::new(names.app_of_journal(&info.name)?).ok());
    let journals = journals.map(|app| topology.journal(&app, JournalSettings::default()));
    let exchanges = observed.exchanges.iter().filter(|info| names.app_of_recall(&info.name).is_some());
    let queues = queues.map(|name| Queue::new(name.clone()));
    let exchanges = exchanges.map(|info| Exchange::new(info.name.clone(), ExchangeKind::Direct));
    let journals = journals.map(|[queue, _]| queue);
    queues.map(Object::Queue).chain(journals).chain(exchanges.map(Object::Exchange)).collect()
}

/// The name of a queue whose messages are nowhere else. A stream has only copies.
fn queue_that_empties(object: &Object) -> Option<&str> {
    match object {
        Object::Queue(queue) if queue.is_stream() => None,
        object => queue_name(object),
    }
}

fn queue_name(object: &Object) -> Option<&str> {
    match object {
        Object::Queue(queue) => Some(&queue.name),
        _ => None,
    }
}

/// The queues among these that hold messages.
fn count(
    session: &mut Session,
    ours: &[&Object],
    observed: Option<&Observed>,
) -> Result<Vec<Waiting>, AdminError> {
    let mut waiting = Vec::new();
    for queue in ours.iter().copied().filter_map(queue_that_empties) {
        let messages = contents(session, queue, observed)?.messages;
        if messages > 0 {
            waiting.push(Waiting { queue: queue.into(), messages });
        }
    }
    Ok(waiting)
}

/// Restores the entry exchange as it was, with the bindings that others had made. On a
/// connection of its own, since the other one may be lost.
fn restore_entry(
    broker: &Broker,
    topology: &Topology,
    entry: &str,
    before: Option<&Observed>,
) -> Result<(), AdminError> {
    const DOING: &str =
        "restoring the entry exchange (publishers get 404 until `delayline install` restores it)";
    let mut session = Session::open(broker).map_err(doing(DOING))?;
    for object in topology.objects() {
        let restored = match object {
            Object::Exchange(exchange) if exchange.name == entry => session.declare_exchange(exchange),
            // The exchange's bindings are known, and may be of another version.
            Object::Binding(binding) if before.is_none() && binding.source == entry => session.bind(binding),
            _ => continue,
        };
        restored.map_err(doing(DOING))?;
    }
    for binding in before.map(|before| before.bindings_of(entry)).unwrap_or_default() {
        session.bind(&binding).map_err(doing(DOING))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use delayline_core::topology::TopologySettings;

    #[test]
    fn removes_each_queue_before_those_it_hands_on_to() {
        let topology = Topology::new(TopologySettings::default());
        let landing = Object::Queue(Queue::new("delay.landing.billing"));
        let ours: Vec<_> = std::iter::once(&landing).chain(topology.objects()).collect();
        let order: Vec<_> = removal_order(&ours).collect();
        let levels: Vec<_> = order
            .iter()
            .filter_map(|object| match object {
                Object::Queue(queue) => queue.level,
                _ => None,
            })
            .collect();
        assert_eq!(levels, (0..28).rev().collect::<Vec<_>>());
        let at = |wanted: &str| order.iter().position(|object| queue_name(object) == Some(wanted)).unwrap();
        for behind in ["delay.unroutable", "delay.landing.billing"] {
            assert!(at("delay.level.00") < at(behind), "{behind}");
        }
    }
}
