//! Work in threads of its own. Its panic must not go unnoticed: the other threads would go on as if
//! all were well.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// How often an end is looked for.
const TICK: Duration = Duration::from_millis(10);

static PANICKED: AtomicBool = AtomicBool::new(false);

/// Whether supervised work has panicked in this process.
#[must_use]
pub fn has_panicked() -> bool {
    PANICKED.load(Ordering::Relaxed)
}

/// Does this work in the present thread. [`has_panicked`] reports its panic.
pub fn supervised<T>(work: impl FnOnce() -> T) -> T {
    struct Alarm;

    impl Drop for Alarm {
        fn drop(&mut self) {
            if thread::panicking() {
                PANICKED.store(true, Ordering::Relaxed);
            }
        }
    }

    let _alarm = Alarm;
    work()
}

/// Does the same in a thread with this name, which the message of a panic contains.
///
/// # Panics
/// The system has no thread left.
pub fn start<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    thread::Builder::new()
        .name(name.into())
        .spawn(|| supervised(work))
        .unwrap_or_else(|error| panic!("cannot start a thread for {name}: {error}"))
}

/// The result of a thread, or its panic. `None` if it has not ended by the deadline: it then ends with
/// the process.
pub fn end_by<T>(deadline: Instant, thread: JoinHandle<T>) -> Option<thread::Result<T>> {
    while !thread.is_finished() {
        if Instant::now() >= deadline {
            return None;
        }
        thread::sleep(TICK);
    }
    Some(thread.join())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_panic_is_noted() {
        assert!(start("a test", || panic!("on purpose")).join().is_err());
        assert!(has_panicked());
    }

    #[test]
    fn what_never_ends_is_left_behind() {
        let (_never, waits) = mpsc::channel::<()>();
        let stuck = start("a test", move || waits.recv());
        assert!(end_by(Instant::now() + Duration::from_millis(50), stuck).is_none());
        let far = Instant::now() + Duration::from_secs(3_600);
        assert!(matches!(end_by(far, start("a test", || 7)), Some(Ok(7))));
    }
}
