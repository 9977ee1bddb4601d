//! The end of a daemon, within the time that service managers grant.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use log::{error, warn};

/// How long all parts have together. Kubernetes and many service managers kill after 30 s.
pub(crate) const GRACE: Duration = Duration::from_secs(25);

/// Whether a part of the daemon has panicked.
static PANICKED: AtomicBool = AtomicBool::new(false);

pub(crate) fn has_panicked() -> bool {
    PANICKED.load(Ordering::Relaxed)
}

/// Ends the daemon if the thread that holds it panics: what starts it again finds all parts at work
/// then.
pub(crate) struct Alarm {
    part: &'static str,
    stop: Arc<AtomicBool>,
}

impl Alarm {
    pub(crate) fn new(part: &'static str, stop: &Arc<AtomicBool>) -> Self {
        Self { part, stop: Arc::clone(stop) }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if thread::panicking() {
            error!("{} of the daemon has panicked, so the daemon ends", self.part);
            PANICKED.store(true, Ordering::Relaxed);
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

/// Waits until a part of the daemon has ended, up to the deadline: it may wait for a broker or a
/// management API that does not answer. It then ends with the process.
pub(crate) fn end_by<T>(deadline: Instant, part: &str, thread: JoinHandle<T>) -> Option<T> {
    while !thread.is_finished() {
        if Instant::now() >= deadline {
            warn!("{part} did not end in time; the daemon ends without waiting for it");
            return None;
        }
        thread::sleep(Duration::from_millis(10));
    }
    thread.join().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_part_that_panics_ends_the_daemon() {
        let stop = Arc::new(AtomicBool::new(false));
        let held = Alarm::new("a test", &stop);
        let ended = thread::spawn(move || {
            let _held = held;
            panic!("on purpose");
        });
        assert!(ended.join().is_err());
        assert!(stop.load(Ordering::Relaxed) && has_panicked());
        drop(Alarm::new("a test", &Arc::default()));
    }

    #[test]
    fn a_part_that_never_ends_is_left_behind() {
        let (_never, waits) = mpsc::channel::<()>();
        let stuck = thread::spawn(move || waits.recv());
        assert_eq!(end_by(Instant::now() + Duration::from_millis(50), "a part", stuck), None);
        let far = Instant::now() + Duration::from_secs(3_600);
        assert_eq!(end_by(far, "a part", thread::spawn(|| 7)), Some(7));
    }
}
