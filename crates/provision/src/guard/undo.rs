//! Removing a guard.

use std::{sync::atomic::AtomicBool, thread};

use delayline_amqp::Session;
use delayline_broker::{Scope, Snapshot};
use delayline_core::topology::{Object, Topology};
use delayline_settings::{Layout, Settings};
use serde::Serialize;

use super::api;
use crate::{
    engine::Closed, engine::Gate, engine::Removal, engine::Removed, engine::Waiting,
    engine::contents::SETTLE, engine::contents::When, engine::contents::contents,
};
use delayline_inspect::guard::is_ours;
use delayline_messages::{error::AdminError, error::connect, examine::describe};

/// How often an empty queue is counted until the management API agrees.
const LOOKS: u32 = 4;

/// The removed parts of a guard, or the parts that would be removed.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct Unguarded {
    /// The layout.
    #[schemars(with = "String")]
    pub layout: Layout,
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// The policies that were deleted. The policies that they repeated apply again.
    pub policies: Vec<String>,
    /// The exchange and the queue that were deleted.
    pub removed: Vec<String>,
    /// Messages that are still kept; the queue stays for them.
    pub kept: Option<Waiting>,
    /// Whether a signal came. If no policy was deleted, the guard is unchanged; otherwise the removal was
    /// completed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
}

/// Deletes the policies of a guard, and the queue and its exchange if it keeps nothing. Then everything is
/// as before the guard. If `stop` is set before the queue was counted, the policies are set again; after
/// that the removal is completed.
///
/// # Errors If there is no management API, or the broker refuses; doing it again continues from there.
pub fn unguard(
    settings: &Settings,
    topology: &Topology,
    layout: &Layout,
    dry_run: bool,
    stop: &AtomicBool,
) -> Result<Unguarded, AdminError> {
    let (api, vhost) = (api(settings)?, &settings.broker.vhost);
    let mut session = connect(&settings.broker)?;
    let look = || Snapshot::fetch(&api, vhost, Scope::Layout(topology, layout));
    let snapshot = look()?;
    let ours = snapshot.policies.user.clone()?.into_iter().filter(|policy| is_ours(layout, policy));
    let ours: Vec<_> = ours.collect();
    let mut report = Unguarded {
        layout: layout.clone(),
        dry_run,
        policies: ours.iter().map(|policy| policy.name.clone()).collect(),
        removed: Vec::new(),
        kept: None,
        interrupted: false,
    };
    let name = layout.kept();
    let objects = topology.guard(&name);
    let has_queue = snapshot.queues.contains_key(&name);
    let keeps = |messages| (messages != Some(0)).then(|| Waiting { queue: name.clone(), messages });
    let holds = contents(&mut session, &name, Some(&snapshot), When::First)?.messages;
    if dry_run {
        report.kept = keeps(holds);
        if report.kept.is_none() {
            report.removed =
                objects.iter().filter(|it| it.name().is_some() && snapshot.has(it)).map(describe).collect();
        }
        return Ok(report);
    }
    let mut removal = Removal { broker: &settings.broker, session: &mut session, api: Some(&api), stop };
    // By the first count, the queue has all messages that were on their way. Messages that have left it may
    // still be in the API's count, which is older on some versions than on others.
    let count = |session: &mut Session| {
        let mut holds = None;
        for number in 0..LOOKS {
            if number > 0 {
                thread::sleep(SETTLE);
            }
            holds = contents(session, &name, Some(&look()?), When::Last)?.messages;
            if holds == Some(0) || contents(session, &name, None, When::Last)?.messages > Some(0) {
                break;
            }
        }
        Ok(holds)
    };
    let policies: Vec<_> = ours.into_iter().map(Gate::Policy).collect();
    let settle = has_queue && holds == Some(0);
    // Even if it keeps messages, the policies are no longer needed.
    let holds = match removal.close(
        &policies,
        settle,
        "setting the policies of the guard again",
        count,
        |_| false,
    )? {
        Closed::For(holds) | Closed::Refused(holds) => holds,
        Closed::Interrupted => {
            report.policies.clear();
            report.interrupted = true;
            return Ok(report);
        }
    };
    report.kept = keeps(holds);
    if report.kept.is_some() {
        return Ok(report);
    }
    // Here, too, the queue is deleted only if it is empty.
    let (exchange, rest): (Vec<_>, Vec<_>) =
        objects.into_iter().partition(|object| matches!(object, Object::Exchange(_)));
    let (bindings, queues): (Vec<_>, Vec<_>) =
        rest.into_iter().partition(|object| matches!(object, Object::Binding(_)));
    let stood: Vec<_> = exchange.iter().chain(&queues).filter(|it| snapshot.has(it)).map(describe).collect();
    let gate = Gate::Exchange(exchange.into_iter().chain(bindings).collect());
    let count = |session: &mut Session| Ok(contents(session, &name, None, When::Last)?.messages);
    match removal
        .close(&[gate], false, "restoring the exchange of the guard", count, |late| *late != Some(0))?
    {
        Closed::Refused(late) => report.kept = keeps(late),
        Closed::For(_) | Closed::Interrupted => {
            removal.delete(&queues, &mut Removed::default())?;
            report.removed = stood;
        }
    }
    report.interrupted = removal.is_stopped();
    Ok(report)
}
