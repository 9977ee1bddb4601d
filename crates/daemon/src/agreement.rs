//! A daemon and the broker must agree on the time and on the unit of delay before the daemon acts. With
//! a clock that is an hour ahead, it would park messages as expired too early. With another unit,
//! retries would come 1,000 times too early.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use log::{error, info};

use delayline_broker::ManagementApi;
use delayline_core::{
    backoff::wait,
    codec::Level,
    supervise::{start, supervised},
    topology::Topology,
};
use delayline_settings::{NO_MANAGEMENT, Settings};
use delayline_watch::web::Check;

/// How often to look again.
const TICK: Duration = Duration::from_millis(100);

/// How far apart the clocks may be.
const APART: SignedDuration = SignedDuration::from_secs(60);

/// How long to wait for the management API, which may not answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// How often to compare; without an answer, or while something is wrong, how often to try again.
const EVERY: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(5));

/// The last comparison.
#[derive(Debug, Clone, Default)]
pub(crate) struct Agreement(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The last result; `None` before the first attempt.
    compared: Option<Compared>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Compared {
    /// As it should be.
    Right,
    /// The difference, and the remedy.
    Wrong(String),
    /// Why it is not known.
    Unknown(String),
}

impl Agreement {
    /// Compares until `stop` is set.
    pub(crate) fn watched(settings: &Settings, stop: &Arc<AtomicBool>) -> Self {
        let agreement = Self::default();
        let (settings, stop, found) = (settings.clone(), Arc::clone(stop), agreement.clone());
        // It changes nothing, so it may end with the process.
        start("agreement", move || found.watch(&settings, &stop));
        agreement
    }

    fn watch(&self, settings: &Settings, stop: &AtomicBool) {
        let api = match &settings.management {
            None => Err(NO_MANAGEMENT.to_owned()),
            Some(management) => {
                ManagementApi::within(management, PATIENCE).map_err(|error| error.to_string())
            }
        };
        while !stop.load(Ordering::Relaxed) {
            let found = match &api {
                Ok(api) => compare(api, settings),
                Err(reason) => Compared::Unknown(reason.clone()),
            };
            let pause = if found == Compared::Right { EVERY.0 } else { EVERY.1 };
            self.note(found);
            if api.is_err() {
                return;
            }
            wait(stop, pause);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, found: Compared) {
        let mut state = self.state();
        if state.compared.as_ref() != Some(&found) {
            match &found {
                Compared::Wrong(reason) => {
                    error!("nothing is retried, passed on, published or swept: {reason}")
                }
                Compared::Unknown(reason) => info!("clock and unit are not compared: {reason}"),
                Compared::Right if matches!(state.compared, Some(Compared::Wrong(_))) => {
                    info!("clock and unit agree with the broker's now; work goes on");
                }
                Compared::Right => {}
            }
        }
        // A difference lasts until an answer shows that it is gone.
        match (&state.compared, &found) {
            (Some(Compared::Wrong(_)), Compared::Unknown(_)) => {}
            _ => state.compared = Some(found),
        }
    }

    /// Whether the daemon may act: not before the first attempt to compare.
    fn holds(&self) -> bool {
        matches!(self.state().compared, Some(Compared::Right | Compared::Unknown(_)))
    }

    /// For those who ask whether the daemon is ready.
    pub(crate) fn check(&self) -> Check {
        let (ok, reason) = match &self.state().compared {
            None => (false, "clock and unit were not compared with the broker's yet".into()),
            Some(Compared::Right) => (true, "clock and unit agree with the broker's".into()),
            Some(Compared::Unknown(reason)) => (true, format!("clock and unit were not compared: {reason}")),
            Some(Compared::Wrong(reason)) => (false, reason.clone()),
        };
        Check { name: "clock", ok, reason }
    }

    /// Runs `work` until `stop` is set, but only while it may act: each time, `work` gets a flag
    /// that tells it to stop. Returns whether it ended in order every time.
    pub(crate) fn run_while(&self, stop: &AtomicBool, work: impl Fn(&AtomicBool) -> bool) -> bool {
        let mut clean = true;
        while !stop.load(Ordering::Relaxed) {
            if !self.holds() {
                wait(stop, TICK);
                continue;
            }
            let (pause, done) = (AtomicBool::new(false), AtomicBool::new(false));
            clean &= thread::scope(|scope| {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) && !stop.load(Ordering::Relaxed) && self.holds() {
                        thread::sleep(TICK);
                    }
                    if !done.load(Ordering::Relaxed) {
                        pause.store(true, Ordering::Relaxed);
                    }
                });
                // The scope would wait for the other thread first.
                let ended = supervised(|| work(&pause));
                done.store(true, Ordering::Relaxed);
                ended
            });
            // The work has ended on its own.
            if !pause.load(Ordering::Relaxed) && self.holds() {
                return clean;
            }
        }
        clean
    }
}

/// Asks the broker what time it is, and how long the set's lowest level holds a message.
fn compare(api: &ManagementApi, settings: &Settings) -> Compared {
    let before = Timestamp::now();
    let clock = match api.clock() {
        Ok(clock) => clock,
        Err(error) => return Compared::Unknown(error.to_string()),
    };
    if let Some(reason) = clock.and_then(|clock| apart(clock, (before, Timestamp::now()))) {
        return Compared::Wrong(reason);
    }
    let topology = Topology::new(settings.topology.clone());
    let lowest = topology.names().level_queue(Level::LOWEST);
    let found = match api.queue(&settings.broker.vhost, &lowest) {
        Ok(queue) => queue.and_then(|queue| queue.arguments.get("x-message-ttl")?.as_u64()),
        Err(error) => return Compared::Unknown(error.to_string()),
    };
    let unit = u64::from(settings.topology.unit.millis());
    match (found, clock) {
        (Some(found), _) if found != unit => Compared::Wrong(format!(
            "`unit_ms` is {unit} here, but queue `{lowest}` holds messages for {found} ms: every delay would be \
             wrong by that factor. Set `unit_ms` to what the set was installed with"
        )),
        (_, None) => Compared::Unknown("the management API's answer has no `Date`".into()),
        _ => Compared::Right,
    }
}

/// The difference between the clocks, if it is too large. The broker's showed `broker`, without
/// the fraction of a second, between two moments of ours.
fn apart(broker: Timestamp, (before, after): (Timestamp, Timestamp)) -> Option<String> {
    let ahead = before.duration_since(broker) - SignedDuration::from_secs(1);
    let behind = broker.duration_since(after);
    let (difference, word) = if ahead > behind { (ahead, "ahead of") } else { (behind, "behind") };
    (difference > APART).then(|| {
        format!(
            "the clock of this machine is {} s {word} the broker's, more than {} s: set both by NTP",
            difference.as_secs(),
            APART.as_secs()
        )
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use delayline_core::supervise::has_panicked;

    use super::*;

    #[test]
    fn clocks_may_be_a_minute_apart() {
        let at = |second| Timestamp::from_second(1_700_000_000 + second).unwrap();
        let apart = |ours: i64| apart(at(0), (at(ours), at(ours + 2)));
        for ours in [-62, -1, 0, 61] {
            assert_eq!(apart(ours), None, "{ours}");
        }
        assert!(apart(3_601).unwrap().contains("is 3600 s ahead of the broker's"));
        assert!(apart(-3_602).unwrap().contains("is 3600 s behind the broker's"));
    }

    #[test]
    fn work_that_ends_on_its_own_is_not_started_again() {
        let (agreement, stop) = (Agreement::default(), AtomicBool::new(false));
        agreement.note(Compared::Right);
        let runs = AtomicU32::new(0);
        assert!(!agreement.run_while(&stop, |_| runs.fetch_add(1, Ordering::Relaxed) > 0));
        assert_eq!(runs.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_panic_is_known_before_the_end() {
        let agreement = Agreement::default();
        agreement.note(Compared::Right);
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let working = thread::spawn(move || agreement.run_while(&told, |_| panic!("on purpose")));
        while !has_panicked() {
            assert!(!working.is_finished(), "the panic was not noted");
            thread::sleep(TICK);
        }
        stop.store(true, Ordering::Relaxed);
        assert!(working.join().is_err());
    }

    #[test]
    fn work_stops_while_something_is_wrong_and_goes_on_after_that() {
        let (agreement, stop) = (Agreement::default(), AtomicBool::new(false));
        let (runs, began) = crossbeam_channel::bounded(10);
        thread::scope(|scope| {
            let working = scope.spawn(|| {
                agreement.run_while(&stop, |pause| {
                    runs.send(()).unwrap();
                    while !pause.load(Ordering::Relaxed) {
                        thread::sleep(TICK);
                    }
                    true
                })
            });
            assert!(!agreement.check().ok && began.is_empty());
            agreement.note(Compared::Unknown("no API".into()));
            began.recv().unwrap();
            for _ in 0..2 {
                agreement.note(Compared::Wrong("an hour ahead".into()));
                // An API that is silent now does not make it right.
                agreement.note(Compared::Unknown("silent".into()));
                assert_eq!(agreement.check().reason, "an hour ahead");
                // Long enough for the work to see it.
                thread::sleep(5 * TICK);
                agreement.note(Compared::Right);
                began.recv().unwrap();
            }
            stop.store(true, Ordering::Relaxed);
            assert!(working.join().unwrap());
        });
    }
}
