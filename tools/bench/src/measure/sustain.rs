//! A steady load: the same number of messages each second, and how late they are.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::capacity::Distribution;
use delayline_client::Router;
use delayline_core::topology::Unit;
use delayline_settings::Settings;

use super::{
    BenchError, check,
    drain::{Intake, Taken},
    mark::Account,
    publish::{Source, rate},
};

/// How often the publisher catches up with the clock.
const BEAT: Duration = Duration::from_millis(1);

/// Messages per second, for some time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Steady<'a> {
    pub(crate) rate: u32,
    pub(crate) duration: Duration,
    pub(crate) delays: &'a Distribution,
    /// How long the longest of these delays lasts.
    pub(crate) longest: Duration,
}

/// The result.
pub(crate) struct SteadyRun {
    pub(crate) published: u64,
    pub(crate) per_second: f64,
    /// How many queues a message passed through, on average.
    pub(crate) hops: f64,
    pub(crate) taken: Taken,
}

/// The most levels that messages with delays up to this pass through.
fn levels(longest: Duration, unit: Unit) -> u32 {
    let units = longest.as_millis().div_ceil(u128::from(unit.millis()));
    u128::BITS - units.leading_zeros()
}

struct Sent {
    count: u64,
    took: Duration,
    /// How many queues they passed through, all together.
    hops: u64,
}

impl Steady<'_> {
    /// Publishes on a thread of its own, and receives what arrives.
    pub(crate) fn run(
        self,
        settings: &Settings,
        source: &mut Source,
        intake: &Intake,
        stop: &AtomicBool,
        progress: impl FnMut(u64),
    ) -> Result<SteadyRun, BenchError> {
        let router = settings.router().connect()?;
        let account = Account::new(source.epoch, source.next, levels(self.longest, source.unit));
        let expected = AtomicU64::new(u64::MAX);
        let (taken, published) = thread::scope(|scope| {
            let publisher = scope.spawn(|| {
                let shortcuts = settings.topology.shortcuts == Some(true);
                let published = self.publish(&router, shortcuts, source, stop);
                // After a failure nothing more is awaited.
                let count = published.as_ref().map_or(0, |published| published.count);
                expected.store(count, Ordering::Release);
                published
            });
            let taken = intake.take(account, &expected, self.duration + self.longest, stop, progress);
            (taken, publisher.join())
        });
        let Sent { count, took, hops } = published.expect("the publisher does not panic")?;
        #[expect(clippy::cast_precision_loss, reason = "an average to look at")]
        let hops = hops as f64 / count.max(1) as f64;
        Ok(SteadyRun { published: count, per_second: rate(count, took), hops, taken: taken? })
    }

    /// Publishes by the clock; a backlog is made up for at once.
    fn publish(
        self,
        router: &Router,
        shortcuts: bool,
        source: &mut Source,
        stop: &AtomicBool,
    ) -> Result<Sent, BenchError> {
        let mut random = fastrand::Rng::new();
        let mut pipeline = router.pipeline();
        let total =
            u64::from(self.rate) * u64::try_from(self.duration.as_millis()).unwrap_or(u64::MAX) / 1_000;
        let started = Instant::now();
        let (mut sent, mut hops, mut confirmed) = (0, 0, None);
        // The router subtracts what a message has waited there, so it may pass through
        // others.
        let mut note = |outcome: delayline_client::router::Outcome<()>| -> Result<(), BenchError> {
            hops += u64::from(outcome.result?.delay.hops_with(shortcuts));
            confirmed.get_or_insert_with(Instant::now);
            Ok(())
        };
        while sent < total && started.elapsed() < self.duration {
            check(stop)?;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it is less than the total"
            )]
            let due = (started.elapsed().as_secs_f64() * f64::from(self.rate)) as u64 + 1;
            // In portions, so that a broker that accepts fewer does not end later.
            let until = due.min(total).min(sent + 1_000);
            while sent < until {
                if let Some(outcome) = pipeline.push((), source.delayed(self.delays.sample(&mut random))) {
                    note(outcome)?;
                }
                sent += 1;
            }
            while let Some(outcome) = pipeline.try_next() {
                note(outcome)?;
            }
            if sent >= due {
                thread::sleep(BEAT);
            }
        }
        for outcome in pipeline {
            note(outcome)?;
        }
        // Unconfirmed messages are not accepted. The time counts from the first confirm to the
        // last, so that the time of a single confirm does not matter.
        let took = confirmed.unwrap_or(started).elapsed();
        Ok(Sent { count: sent, took, hops })
    }
}
