//! Taking messages out: as fast as they come.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;

use delayline_amqp::{AmqpError, Consumer, Next, Session};
use delayline_settings::Settings;

use super::{BenchError, check, histogram, mark::Account};

/// How long nothing may arrive, beyond the messages' delay, before the missing ones count as
/// lost.
const QUIET: Duration = Duration::from_secs(30);

/// How many messages the consumer may hold.
const PREFETCH: u16 = 1_000;

/// How often to check for an interrupt while nothing arrives.
const TICK: Duration = Duration::from_millis(100);

/// A consumer of the site's queue.
pub(crate) struct Intake {
    consumer: Consumer,
    // Dropped last: it closes the connection.
    _session: Session,
}

/// The arrivals.
pub(crate) struct Taken {
    pub(crate) histogram: Histogram<u64>,
    pub(crate) account: Account,
    /// From the first arrival to the last.
    pub(crate) took: Duration,
}

impl Intake {
    pub(crate) fn open(settings: &Settings, queue: &str) -> Result<Self, BenchError> {
        let mut session = Session::open(&settings.broker)?;
        let consumer = session.consume(queue, PREFETCH)?;
        Ok(Self { consumer, _session: session })
    }

    /// Takes messages until there are `expected` of them, a number that may become known only
    /// meanwhile, or until none has come for somewhat longer than `wait`.
    pub(crate) fn take(
        &self,
        mut account: Account,
        expected: &AtomicU64,
        wait: Duration,
        stop: &AtomicBool,
        mut progress: impl FnMut(u64),
    ) -> Result<Taken, BenchError> {
        let mut histogram = histogram::empty();
        let (mut first, mut last) = (None, Instant::now());
        let mut told = 0;
        while arrived(&account) < expected.load(Ordering::Acquire) {
            check(stop)?;
            match self.consumer.next(TICK) {
                Next::Delivery(delivery) => {
                    let now = Instant::now();
                    if let Some(late) = account.note(&delivery.body, now) {
                        histogram.saturating_record(late.max(1));
                        first.get_or_insert(now);
                        last = now;
                    }
                    self.consumer.ack(delivery)?;
                    if arrived(&account) >= told + 100 {
                        progress(arrived(&account) - told);
                        told = arrived(&account);
                    }
                }
                Next::Timeout if last.elapsed() > wait + QUIET => break,
                Next::Timeout => {}
                Next::Ended(cause) => {
                    let lost = || AmqpError::Lost { reason: "the consumer ended".into() };
                    return Err(cause.unwrap_or_else(lost).into());
                }
            }
        }
        progress(arrived(&account) - told);
        let took = first.map_or(Duration::ZERO, |first| last.saturating_duration_since(first));
        Ok(Taken { histogram, account, took })
    }

    /// Takes `count` messages.
    pub(super) fn take_all(
        &self,
        account: Account,
        count: u64,
        wait: Duration,
        stop: &AtomicBool,
        progress: impl FnMut(u64),
    ) -> Result<Taken, BenchError> {
        let taken = self.take(account, &AtomicU64::new(count), wait, stop, progress)?;
        match count - arrived(&taken.account).min(count) {
            0 => Ok(taken),
            missing => Err(BenchError::Stalled { missing, count, seconds: (wait + QUIET).as_secs() }),
        }
    }
}

/// How many messages have arrived, each counted once.
fn arrived(account: &Account) -> u64 {
    account.ledger.arrived() as u64
}
