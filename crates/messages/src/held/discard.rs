//! Discarding an application's messages that still wait in the levels.
//!
//! Every level copies a message whose header `CC` or `BCC` names further keys. Only removing the copies
//! ends that.

use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use crate::{
    drain::Decision, drain::Drain, drain::DrainError, drain::Drained, drain::Progress, drain::past,
    error::AdminError, error::connect, error::doing, examine::as_installed, unstick::without_limit,
};
use delayline_amqp::v1::Foreign;
use delayline_broker::{ManagementApi, ManagementError, Scope, Snapshot};
use delayline_core::{
    codec::{AppKey, RoutingKey},
    topology::Topology,
};
use delayline_settings::Settings;

/// How often all levels are read at most. A message between two levels is in no readable queue; a later
/// round finds it.
const ROUNDS: u32 = 10;

/// The discarded messages.
#[derive(Debug, Clone, Default, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct DiscardReport {
    /// The application.
    pub app: String,
    /// How many messages were, or would be, discarded, by level, the highest first; levels
    /// without any are left out.
    pub levels: Vec<DiscardedFrom>,
    /// How often all levels were read.
    pub rounds: u32,
    /// Whether the last round still found messages: they keep coming.
    pub unfinished: bool,
    /// Whether it was interrupted.
    pub interrupted: bool,
    /// What ended it early, if anything did. Running it again continues from there.
    pub failure: Option<String>,
}

/// The messages discarded from one level.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct DiscardedFrom {
    /// The level's queue.
    pub queue: String,
    /// How many messages.
    pub messages: u64,
}

impl DiscardReport {
    /// How many messages from all levels.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.levels.iter().map(|level| level.messages).sum()
    }

    fn add(&mut self, queue: &str, messages: u64) {
        match self.levels.iter_mut().find(|level| level.queue == queue) {
            _ if messages == 0 => {}
            Some(level) => level.messages += messages,
            None => self.levels.push(DiscardedFrom { queue: queue.to_owned(), messages }),
        }
    }

    fn note(&mut self, drained: &Drained) {
        self.interrupted |= drained.interrupted;
        self.failure = self.failure.take().or_else(|| drained.failure.clone());
    }

    fn ended(&self) -> bool {
        self.interrupted || self.failure.is_some()
    }
}

/// Whether a broker has a delivery limit by default.
fn limits_deliveries(api: &ManagementApi) -> bool {
    api.overview().is_ok_and(|it| !it.rabbitmq_version.starts_with("3."))
}

fn is_for(app: &AppKey, routing_key: &str) -> bool {
    routing_key.parse::<RoutingKey>().is_ok_and(|key| key.app == *app)
}

/// Takes all messages for an application out of the levels, from the highest to the lowest, until there are
/// none. A message with further keys belongs to the application of its routing key. Other applications'
/// messages are put back in order and with their remaining delay; they wait meanwhile and may be late. With
/// `dry_run` the levels are only counted, once.
///
/// RabbitMQ 4 drops messages that were read too often. A temporary policy prevents that if the user may set
/// policies.
///
/// # Errors If the broker cannot be asked, or reading would not be safe
/// ([`DrainError::DeliveryLimit`]).
pub fn discard_app(
    settings: &Settings,
    topology: &Topology,
    app: &AppKey,
    dry_run: bool,
    stop: &AtomicBool,
    mut progress: impl FnMut(Progress),
) -> Result<DiscardReport, AdminError> {
    let mut report = DiscardReport { app: app.to_string(), ..DiscardReport::default() };
    let mut session = connect(&settings.broker)?;
    let snapshot =
        Snapshot::try_fetch(settings.management.as_ref(), &settings.broker.vhost, Scope::Set(topology, &[]))?
            .ok();
    let installed =
        as_installed(topology, &mut session, snapshot.as_ref()).map_err(doing("examining the set"))?;
    drop(session);
    // Those with the longest wait first.
    let levels: Vec<_> = installed.queues().rev().filter(|queue| queue.hop.is_some()).collect();
    let api = settings.management.as_ref().map(ManagementApi::new).transpose()?;
    let names: Vec<_> = levels.iter().map(|queue| queue.name.clone()).collect();
    let _lifted = match &api {
        Some(api) if limits_deliveries(api) => match without_limit(api, &settings.broker.vhost, &names) {
            // Reading refuses if a limit would drop messages.
            Err(ManagementError::Refused { .. }) => None,
            lifted => Some(lifted?),
        },
        _ => None,
    };
    while report.rounds < ROUNDS && !report.ended() {
        report.rounds += 1;
        let mut found = 0;
        for queue in &levels {
            if stop.load(Ordering::Relaxed) {
                report.interrupted = true;
            }
            if report.ended() {
                break;
            }
            let passed = past(settings, queue, u64::MAX, || {
                let mut theirs = 0;
                let drained = Drain::new(settings, queue).until(stop).run(
                    |delivery| {
                        let its = is_for(app, &delivery.routing_key);
                        theirs += u64::from(its);
                        if its && !dry_run { Decision::Discard } else { Decision::Keep }
                    },
                    &mut progress,
                )?;
                Ok((drained, theirs))
            });
            let mut passed = match passed {
                Err(error @ DrainError::Unanswered { .. }) if !report.levels.is_empty() => {
                    report.failure = Some(error.to_string());
                    break;
                }
                passed => passed?,
            };
            let foreign = |message: &Foreign| is_for(app, &message.routing_key);
            let theirs = passed.value + passed.aside.messages().filter(|it| foreign(it)).count() as u64;
            passed.aside.discard(&mut passed.drained, |message| foreign(message) && !dry_run);
            let drained = passed.drained;
            report.note(&drained);
            found += theirs;
            report.add(&queue.name, if dry_run { theirs } else { drained.discarded });
        }
        report.unfinished = found > 0 && !dry_run && !report.ended();
        if found == 0 || dry_run {
            break;
        }
    }
    Ok(report)
}
