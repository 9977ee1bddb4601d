//! Taking a guard away.

use std::thread;

use serde::Serialize;

use crate::{
    AdminError, Layout, Waiting, connect,
    contents::{self, SETTLE, contents},
    doing,
    management::PolicyKind,
    observe_with,
};
use delayline_core::topology::Topology;
use delayline_settings::Settings;

use super::{api, plan::is_ours};

/// How often an empty queue is counted until the management API agrees.
const LOOKS: u32 = 3;

/// What was taken away, or would be.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Unguarded {
    /// The layout.
    pub layout: Layout,
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// The policies that were deleted. Policies of others apply again as they stand.
    pub policies: Vec<String>,
    /// The exchange and the queue that were deleted.
    pub removed: Vec<String>,
    /// Messages that are still kept; the queue stays for them.
    pub kept: Option<Waiting>,
}

/// Deletes the policies of a guard, and the queue and its exchange if it keeps nothing. Then
/// everything is as it was before.
///
/// # Errors
/// If there is no management API, or the broker refuses; doing it again continues from there.
pub fn unguard(
    settings: &Settings,
    topology: &Topology,
    layout: &Layout,
    dry_run: bool,
) -> Result<Unguarded, AdminError> {
    let (api, vhost) = (api(settings)?, &settings.broker.vhost);
    let mut session = connect(&settings.broker)?;
    let ours = api.policies(PolicyKind::Policy, vhost)?;
    let ours: Vec<_> = ours.into_iter().filter(|policy| is_ours(layout, policy)).collect();
    let mut report = Unguarded {
        layout: layout.clone(),
        dry_run,
        policies: ours.into_iter().map(|policy| policy.name).collect(),
        removed: Vec::new(),
        kept: None,
    };
    let name = layout.kept();
    let observed = observe_with(&api, vhost)?;
    let (exchange, queue) = (
        observed.exchanges.iter().any(|exchange| exchange.name == name),
        observed.queues.iter().any(|queue| queue.name == name),
    );
    let mut holds = contents(&mut session, &name, Some(&observed))?.messages;
    if !dry_run {
        for policy in &report.policies {
            api.delete_policy(PolicyKind::Policy, vhost, policy)?;
        }
        // What was on its way to the queue has reached it by then. What has left it may still be
        // in the API's count, which is older on some versions than on others.
        for _ in 0..LOOKS {
            if !queue || contents(&mut session, &name, None)?.messages > 0 {
                break;
            }
            thread::sleep(SETTLE);
            holds = contents(&mut session, &name, Some(&observe_with(&api, vhost)?))?.messages;
            if holds == 0 {
                break;
            }
        }
    }
    if holds > 0 {
        report.kept = Some(Waiting { queue: name, messages: holds });
        return Ok(report);
    }
    if exchange {
        report.removed.push(format!("exchange `{name}`"));
    }
    if queue {
        report.removed.push(format!("queue `{name}`"));
    }
    if !dry_run {
        // Here, too, the queue is not deleted with anything in it.
        session.delete_exchange(&name).map_err(doing(format!("removing exchange `{name}`")))?;
        let late = contents(&mut session, &name, None)?.messages;
        if late > 0 {
            for object in topology.guard(&name) {
                crate::install::declare(&mut session, &object)?;
            }
            report.removed.clear();
            report.kept = Some(Waiting { queue: name, messages: late });
            return Ok(report);
        }
        let mut lost = Vec::new();
        contents::delete(&mut session, &name, &mut lost)?;
    }
    Ok(report)
}
