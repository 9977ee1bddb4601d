//! The state of a canary, for its observers.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use log::{debug, info, warn};

use delayline_core::histogram::{Counted, Histogram};

use super::{Arrival, Figures, Ledger, Probe, Received};

/// How long nothing may be confirmed before the canary counts as unable to send.
const MUTE: Duration = Duration::from_secs(30);

/// The upper bounds of lateness, in seconds.
const LATENESS_BOUNDS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// The length of one moment of the history, and how many are kept: half an hour.
const MOMENT: Duration = Duration::from_secs(10);
const MOMENTS: usize = 180;

/// The most arrivals of a moment that its median is taken from.
const SAMPLES: usize = 64;

/// Whether it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CanaryState {
    /// It is switched off.
    Off,
    /// It runs, in this slot.
    Running(u8),
    /// It does not run, and this is why.
    Paused(String),
}

/// The state of a canary; shared by the canary and its observers.
#[derive(Debug)]
pub struct Watched(Mutex<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) state: CanaryState,
    pub(super) started: Instant,
    pub(super) ledger: Ledger,
    /// When the first of the unconfirmed messages was sent, and why the last of them was
    /// refused.
    pub(super) unanswered: Option<Duration>,
    pub(super) refusal: Option<String>,
    lateness: BTreeMap<Probe, Histogram>,
    last: BTreeMap<Probe, Duration>,
    worst: BTreeMap<Probe, Duration>,
    pub(super) handed_over: u64,
    history: VecDeque<Moment>,
}

/// Ten seconds of a canary's history.
#[derive(Debug, Clone)]
pub(crate) struct Moment {
    pub(crate) at: Timestamp,
    began: Duration,
    pub(crate) arrived: u64,
    pub(crate) late: Vec<Duration>,
    pub(crate) latest: Duration,
    /// For how long the oldest was overdue, at worst.
    pub(crate) overdue: Duration,
}

impl Default for Watched {
    fn default() -> Self {
        Self(Mutex::new(Inner {
            state: CanaryState::Off,
            started: Instant::now(),
            ledger: Ledger::default(),
            unanswered: None,
            refusal: None,
            lateness: BTreeMap::new(),
            last: BTreeMap::new(),
            worst: BTreeMap::new(),
            handed_over: 0,
            history: VecDeque::new(),
        }))
    }
}

impl Watched {
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Inner) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether it runs.
    #[must_use]
    pub fn state(&self) -> CanaryState {
        self.with(|inner| inner.state.clone())
    }

    /// Why its last message was not accepted; `None` once one is again.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        self.with(|inner| inner.refusal.clone())
    }

    /// Its figures at this moment.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.with(|inner| inner.ledger.figures(inner.started.elapsed()))
    }

    /// How late its messages were, by probe.
    #[must_use]
    pub fn lateness(&self) -> BTreeMap<Probe, Counted> {
        self.with(|inner| {
            inner.lateness.iter().map(|(probe, histogram)| (*probe, histogram.counted())).collect()
        })
    }

    /// How late the last message of each probe was.
    #[must_use]
    pub fn last(&self) -> BTreeMap<Probe, Duration> {
        self.with(|inner| inner.last.clone())
    }

    /// How late the latest message of each probe was.
    #[must_use]
    pub fn worst(&self) -> BTreeMap<Probe, Duration> {
        self.with(|inner| inner.worst.clone())
    }

    /// How many messages it gave to its router.
    #[must_use]
    pub fn handed_over(&self) -> u64 {
        self.with(|inner| inner.handed_over)
    }

    pub(crate) fn history(&self) -> Vec<Moment> {
        self.with(|inner| {
            inner.note_overdue();
            inner.history.iter().cloned().collect()
        })
    }
}

impl Inner {
    fn moment(&mut self) -> &mut Moment {
        let now = self.started.elapsed();
        if self.history.back().is_none_or(|last| now.saturating_sub(last.began) >= MOMENT) {
            if self.history.len() == MOMENTS {
                self.history.pop_front();
            }
            self.history.push_back(Moment {
                at: Timestamp::now(),
                began: now,
                arrived: 0,
                late: Vec::new(),
                latest: Duration::ZERO,
                overdue: Duration::ZERO,
            });
        }
        self.history.back_mut().expect("one was pushed")
    }

    /// It is connected, in this slot.
    pub(super) fn connected(&mut self, slot: u8) {
        self.state = CanaryState::Running(slot);
        (self.unanswered, self.refusal) = (None, None);
        self.ledger.connected(self.started.elapsed());
    }

    /// The broker has accepted a message.
    pub(super) fn answered(&mut self, slot: u8) {
        (self.unanswered, self.refusal) = (None, None);
        if self.state != CanaryState::Running(slot) {
            info!("canary: its messages are confirmed again");
            self.state = CanaryState::Running(slot);
        }
    }

    /// A canary that has sent for so long without an answer cannot send.
    pub(super) fn note_silence(&mut self, now: Duration) {
        let silent = self.unanswered.is_some_and(|since| now.saturating_sub(since) > MUTE);
        if silent && matches!(self.state, CanaryState::Running(_)) {
            let reason = self.refusal.clone().unwrap_or_else(|| "the broker confirms nothing".into());
            warn!("canary: {reason}; trying again");
            self.state = CanaryState::Paused(reason);
        }
    }

    pub(super) fn note_overdue(&mut self) {
        if self.state == CanaryState::Off {
            return;
        }
        let oldest = self.ledger.figures(self.started.elapsed()).oldest_overdue.unwrap_or_default();
        let moment = self.moment();
        moment.overdue = moment.overdue.max(oldest);
    }

    pub(super) fn arrive(&mut self, received: Received) {
        match self.ledger.arrived(received.id, self.started.elapsed()) {
            Arrival::Late(probe, late) => {
                self.lateness.entry(probe).or_insert_with(|| Histogram::new(LATENESS_BOUNDS)).observe(late);
                self.last.insert(probe, late);
                let worst = self.worst.entry(probe).or_default();
                *worst = late.max(*worst);
                let moment = self.moment();
                moment.arrived += 1;
                moment.latest = moment.latest.max(late);
                if moment.late.len() < SAMPLES {
                    moment.late.push(late);
                }
            }
            Arrival::Twice(_) if received.redelivered => debug!("canary: a message was delivered again"),
            Arrival::Twice(probe) => self.ledger.count_twice(probe),
            Arrival::Unknown => debug!("canary: a message arrived that had been written off"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn paused(inner: &Inner) -> Option<&str> {
        match &inner.state {
            CanaryState::Paused(reason) => Some(reason),
            _ => None,
        }
    }

    #[test]
    fn who_is_never_answered_does_not_fly() {
        let watched = Watched::default();
        watched.with(|inner| {
            inner.connected(3);
            inner.note_silence(s(1_000));
            assert_eq!(paused(inner), None, "who has sent nothing waits for no answer");
            inner.unanswered = Some(s(1_000));
            inner.note_silence(s(1_030));
            assert_eq!(paused(inner), None);
            inner.note_silence(s(1_031));
            assert_eq!(paused(inner), Some("the broker confirms nothing"));
            inner.answered(3);
            assert_eq!((inner.state.clone(), inner.unanswered), (CanaryState::Running(3), None));
            inner.unanswered = Some(s(2_000));
            inner.refusal = Some("403".into());
            inner.note_silence(s(2_031));
            assert_eq!(paused(inner), Some("403"));
        });
        assert_eq!(watched.refusal().as_deref(), Some("403"));
    }
}
