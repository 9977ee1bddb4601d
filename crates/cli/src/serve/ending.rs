//! The end of a daemon, within the time that service managers grant.

use std::{
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use log::warn;

/// How long all parts have together. Kubernetes and many service managers kill after 30 s.
pub(super) const GRACE: Duration = Duration::from_secs(25);

/// Waits until a part of the daemon has ended, but not past the deadline: it may wait for a broker
/// or a management API that does not answer, and goes with the process then.
pub(super) fn end_by<T>(deadline: Instant, part: &str, thread: JoinHandle<T>) -> Option<T> {
    while !thread.is_finished() {
        if Instant::now() >= deadline {
            warn!("{part} did not end in time, so it is not waited for");
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
    fn a_part_that_never_ends_is_left_behind() {
        let (_never, waits) = mpsc::channel::<()>();
        let stuck = thread::spawn(move || waits.recv());
        assert_eq!(end_by(Instant::now() + Duration::from_millis(50), "a part", stuck), None);
        let far = Instant::now() + Duration::from_secs(3_600);
        assert_eq!(end_by(far, "a part", thread::spawn(|| 7)), Some(7));
    }
}
