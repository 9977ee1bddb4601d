//! Removing a gateway.

use std::thread;

use serde::Serialize;

use crate::{
    AdminError, RemoveRefusal, Waiting, connect,
    contents::{self, SETTLE, contents},
    doing,
    gateway::api,
    install::declare,
    observe_with,
};
use delayline_amqp::{HAND_OVER, Session};
use delayline_core::topology::{ExchangeKind, Names, Object, Topology};
use delayline_settings::Settings;

/// What was removed, or would be.
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct GatewayRemoved {
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// What was removed, in this order.
    pub removed: Vec<String>,
    /// What was left alone, and why.
    pub left: Vec<String>,
    /// Messages that were lost with the queues, with `force`.
    pub discarded: Vec<Waiting>,
}

/// Removes a gateway: the exchange of its publishers, its queues, and the binding of its app
/// key. The exchange of its consumers stays. Messages that still wait in the levels end up in
/// the unroutable queue, and can be replayed once the gateway is added again.
///
/// The way in is closed first, since only then can it be known that nothing waits; it is
/// opened again if something does.
///
/// # Errors
/// If the broker refuses or is lost, or there is no management API; removing again continues
/// from there.
pub fn remove_gateway(
    settings: &Settings,
    topology: &Topology,
    name: &str,
    force: bool,
    dry_run: bool,
) -> Result<Result<GatewayRemoved, RemoveRefusal>, AdminError> {
    let api = api(settings)?;
    let mut session = connect(&settings.broker)?;
    let names = topology.names();
    let entry = Names::gateway_entry(name);
    let queues = [names.gateway(name), names.gateway_due(name)];
    let observed = observe_with(&api, &settings.broker.vhost)?;
    let stand = |name: &str| observed.queues.iter().any(|queue| queue.name == name);
    if !queues.iter().any(|queue| stand(queue)) {
        let left = vec![format!("there is no gateway `{name}` in set `{}`", topology.settings().set)];
        return Ok(Ok(GatewayRemoved { dry_run, left, ..GatewayRemoved::default() }));
    }
    let mut report = GatewayRemoved { dry_run, ..GatewayRemoved::default() };
    report.left.push(format!("exchange `{name}`, since it is the applications' own"));
    let waiting = count(&mut session, settings, &queues)?;
    if !waiting.is_empty() && !force {
        return Ok(Err(RemoveRefusal { waiting, ..RemoveRefusal::default() }));
    }
    report.removed = [&entry, &queues[1]]
        .map(|exchange| format!("exchange `{exchange}`"))
        .into_iter()
        .chain(queues.iter().map(|queue| format!("queue `{queue}`")))
        .collect();
    report.discarded = waiting;
    if dry_run {
        return Ok(Ok(report));
    }
    let kind = ExchangeKind::Topic;
    let objects = topology.gateway(name, kind).unwrap_or_default();
    session.delete_exchange(&entry).map_err(doing(format!("removing exchange `{entry}`")))?;
    if !force {
        // A message that was on its way to its queue has reached it by then.
        thread::sleep(SETTLE);
        let late = count(&mut session, settings, &queues);
        if !matches!(&late, Ok(late) if late.is_empty()) {
            for object in objects.iter().filter(|object| of_entry(object, &entry)) {
                declare(&mut session, object)?;
            }
            let refusal = RemoveRefusal { waiting: late?, ..RemoveRefusal::default() };
            return Ok(Err(refusal));
        }
    }
    let levels_lead_there = observed.exchanges.iter().any(|exchange| exchange.name == names.dispatch());
    if levels_lead_there && let Ok(app) = Names::gateway_app(name) {
        let binding = topology.app_binding(&app, &queues[1]);
        session.unbind(&binding).map_err(doing(format!("removing the {binding}")))?;
        thread::sleep(HAND_OVER);
    }
    for queue in &queues {
        contents::delete(&mut session, queue, &mut report.discarded)?;
    }
    session.delete_exchange(&queues[1]).map_err(doing(format!("removing exchange `{}`", queues[1])))?;
    Ok(Ok(report))
}

fn of_entry(object: &Object, entry: &str) -> bool {
    match object {
        Object::Exchange(exchange) => exchange.name == entry,
        Object::Binding(binding) => binding.source == entry,
        Object::Queue(_) => false,
    }
}

/// Counts what would be lost.
fn count(session: &mut Session, settings: &Settings, queues: &[String]) -> Result<Vec<Waiting>, AdminError> {
    let observed = observe_with(&api(settings)?, &settings.broker.vhost)?;
    let mut waiting = Vec::new();
    for queue in queues {
        let found = contents(session, queue, Some(&observed))?;
        if found.messages > 0 {
            waiting.push(Waiting { queue: queue.clone(), messages: found.messages });
        }
    }
    Ok(waiting)
}
