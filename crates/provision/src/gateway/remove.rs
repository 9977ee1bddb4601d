//! Removing a gateway.

use std::{sync::atomic::AtomicBool, thread};

use super::api;
use crate::{
    apps::RemoveRefusal, apps::RemoveReport, engine::Closed, engine::Gate, engine::Removal, engine::Removed,
    engine::contents::When, engine::contents::last, engine::contents::waiting,
};
use delayline_amqp::{HAND_OVER, Session};
use delayline_broker::{Scope, Snapshot};
use delayline_core::topology::{Endpoint, Exchange, ExchangeKind, Names, Object, Queue, Topology};
use delayline_messages::{error::AdminError, error::connect, error::doing};
use delayline_settings::Settings;

/// Removes a gateway: the exchange of its publishers, its queues, and the binding of its app
/// key. The exchange of its consumers stays. Messages that still wait in the levels end up in
/// the unroutable queue, and can be replayed once the gateway is added again.
///
/// The publishers' exchange is removed first, so that no new messages arrive while the queues are counted.
/// It is restored if messages wait, or if `stop` is set. After that the removal is completed.
///
/// # Errors
/// If the broker refuses or is lost, or there is no management API; removing again continues
/// from there.
pub fn remove_gateway(
    settings: &Settings,
    topology: &Topology,
    name: &str,
    (force, dry_run): (bool, bool),
    stop: &AtomicBool,
) -> Result<Result<RemoveReport, RemoveRefusal>, AdminError> {
    let api = api(settings)?;
    let mut session = connect(&settings.broker)?;
    let names = topology.names();
    let entry = Names::gateway_entry(name);
    let (own, due) = (names.gateway(name), names.gateway_due(name));
    let queues = [own.as_str(), due.as_str()];
    let vhost = &settings.broker.vhost;
    let look = || Snapshot::fetch(&api, vhost, Scope::Set(topology, &[]));
    let mut snapshot = look()?;
    let mut report = RemoveReport { dry_run, ..RemoveReport::default() };
    if !queues.iter().any(|queue| snapshot.queues.contains_key(*queue)) {
        report.left = vec![format!("there is no gateway `{name}` in set `{}`", topology.settings().set)];
        return Ok(Ok(report));
    }
    report.left.push(format!("exchange `{name}`, since it is the applications' own"));
    let held = waiting(&mut session, &queues, Some(&snapshot), When::First)?;
    if !held.is_empty() && !force {
        return Ok(Err(RemoveRefusal { waiting: held, ..RemoveRefusal::default() }));
    }
    report.removed = [&entry, &due].map(|exchange| format!("exchange `{exchange}`")).into();
    report.removed.extend(queues.map(|queue| format!("queue `{queue}`")));
    report.discarded = held;
    if dry_run {
        return Ok(Ok(report));
    }
    let mut way_in = topology.gateway(name, ExchangeKind::Topic).unwrap_or_default();
    way_in.retain(|object| matches!(object, Object::Exchange(exchange) if exchange.name == entry));
    snapshot.enter([], [], api.bindings_to(vhost, &Endpoint::Exchange(entry.clone()))?);
    way_in.extend(snapshot.bindings_of(&entry).into_iter().map(Object::Binding));
    let mut removal = Removal { broker: &settings.broker, session: &mut session, api: None, stop };
    let count = |session: &mut Session| match force {
        true => Ok(Vec::new()),
        false => last(|| waiting(session, &queues, Some(&look()?), When::Last), Vec::as_slice),
    };
    let add = topology.settings().set.command(&["gateway", "add", name]);
    let restoring = format!("restoring exchange `{entry}` (`{add}` does that, too)");
    match removal.close(&[Gate::Exchange(way_in)], !force, &restoring, count, |late| !late.is_empty())? {
        Closed::For(_) => {}
        Closed::Refused(waiting) => return Ok(Err(RemoveRefusal { waiting, ..RemoveRefusal::default() })),
        Closed::Interrupted => {
            return Ok(Err(RemoveRefusal { interrupted: true, ..RemoveRefusal::default() }));
        }
    }
    if snapshot.exchanges.contains_key(&names.dispatch())
        && let Ok(app) = Names::gateway_app(name)
    {
        let binding = topology.app_binding(&app, &due);
        removal.session.unbind(&binding).map_err(doing(format!("removing the {binding}")))?;
        thread::sleep(HAND_OVER);
    }
    let mut removed = Removed { discarded: report.discarded, ..Removed::default() };
    let exchange = Object::Exchange(Exchange::new(due.clone(), ExchangeKind::Direct));
    let objects = queues.map(|queue| Object::Queue(Queue::new(queue)));
    removal.delete(objects.iter().chain([&exchange]), &mut removed)?;
    (report.discarded, report.interrupted) = (removed.discarded, removal.is_stopped());
    Ok(Ok(report))
}
