//! Discarding an application's messages that still wait in the levels.
//!
//! Every level copies a message whose header `CC` or `BCC` names further keys. Only removing
//! the copies ends that.

use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use crate::drain::{Decision, Drain, Drained, Progress, past};
use delayline_amqp::v1::Foreign;
use delayline_core::{
    codec::{AppKey, RoutingKey},
    topology::Topology,
};
use delayline_settings::Settings;

use crate::AdminError;

/// How often all levels are read at most. A message on its way between two levels is in no
/// queue that can be read; a later round finds it.
const ROUNDS: u32 = 10;

/// What was discarded.
#[derive(Debug, Clone, Default, Serialize)]
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

/// What was discarded from one level.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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

fn is_for(app: &AppKey, routing_key: &str) -> bool {
    routing_key.parse::<RoutingKey>().is_ok_and(|key| key.app == *app)
}

/// Takes all messages for an application out of the levels, from the highest to the lowest,
/// until there are none. A message with further keys counts for the application of the first
/// one, the routing key. Other applications' messages are put back in order and with the time
/// they have left; they wait meanwhile and may be late. With `dry_run` the levels are only
/// counted, once.
///
/// # Errors
/// If the broker cannot be asked, or looking would not be safe: from RabbitMQ 4.0 the
/// levels need a delivery limit of -1 for as long as it takes
/// ([`DrainError::DeliveryLimit`](crate::drain::DrainError)).
pub fn discard_app(
    settings: &Settings,
    topology: &Topology,
    app: &AppKey,
    dry_run: bool,
    stop: &AtomicBool,
    mut progress: impl FnMut(Progress),
) -> Result<DiscardReport, AdminError> {
    let mut report = DiscardReport { app: app.to_string(), ..DiscardReport::default() };
    let mut levels: Vec<_> = topology.queues().filter(|queue| queue.level.is_some()).collect();
    levels.sort_by_key(|queue| std::cmp::Reverse(queue.level));
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
            let mut passed = past(settings, queue, u64::MAX, || {
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
            })?;
            let foreign = |message: &Foreign| is_for(app, &message.routing_key);
            let theirs = passed.value + passed.aside.messages().filter(|it| foreign(it)).count() as u64;
            passed.aside.discard(&mut passed.drained, |message| foreign(message) && !dry_run);
            let drained = passed.drained;
            report.note(&drained);
            found += theirs;
            report.add(&queue.name, if dry_run { theirs } else { drained.discarded });
        }
        report.unfinished = found > 0 && !dry_run;
        if found == 0 || dry_run {
            break;
        }
    }
    Ok(report)
}
