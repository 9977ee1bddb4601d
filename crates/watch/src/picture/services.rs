//! Gateways and recalls, from their queues and the counts of the sweeper.

use std::collections::BTreeSet;

use delayline_admin::RecallCounts;
use delayline_broker::QueueInfo;
use delayline_core::{codec::AppKey, topology::Names};
use delayline_settings::Settings;

use super::{GatewayView, RecallView};

/// The state of each gateway that has a queue.
pub(super) fn gateways(names: &Names, queues: &[QueueInfo]) -> Vec<GatewayView> {
    let gateways: BTreeSet<_> = queues.iter().filter_map(|queue| names.gateway_of(&queue.name)).collect();
    let queue = |name: String| queues.iter().find(|queue| queue.name == name);
    let view = |gateway: &str| {
        let (waiting, due) = (queue(names.gateway(gateway)), queue(names.gateway_due(gateway)));
        GatewayView {
            gateway: gateway.to_owned(),
            waiting: waiting.map_or(Some(0), |queue| queue.messages),
            due: due.map_or(Some(0), |queue| queue.messages),
            channels: waiting.map_or(Some(0), |queue| queue.consumers),
        }
    };
    gateways.into_iter().map(view).collect()
}

/// The state of each application that has a queue of recalled messages.
pub(super) fn recalls(
    names: &Names,
    settings: &Settings,
    known: Option<&RecallCounts>,
    queues: &[QueueInfo],
) -> Vec<RecallView> {
    let counts = known.filter(|counts| counts.at.is_some());
    let views = queues.iter().filter_map(|queue| {
        let app = AppKey::new(names.app_of_recalled(&queue.name)?).ok()?;
        let counts = counts.map(|counts| counts.apps.get(app.as_str()).copied().unwrap_or_default());
        Some(RecallView {
            pending: counts.map(|counts| counts.pending),
            over: counts.map(|counts| counts.over),
            swept: counts.map(|counts| counts.swept),
            quota: settings.max_recalls.of(&app),
            recalled: queue.messages,
            app: app.to_string(),
        })
    });
    let mut views: Vec<_> = views.collect();
    views.sort_by(|one, other| one.app.cmp(&other.app));
    views
}
