//! Keeps track of who is looking at kept messages.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use delayline_admin::Kept;

/// How long a broker may take to requeue examined messages.
const SETTLE: Duration = Duration::from_secs(1);

/// The queues that this process is looking into: their messages are not ready meanwhile, so
/// counts of them would be too low.
#[derive(Debug, Default)]
pub(super) struct Peeking(Mutex<BTreeMap<Kept, Peek>>);

#[derive(Debug, Clone, Copy)]
enum Peek {
    Running,
    Ended(Instant),
}

impl Peeking {
    pub(super) fn begin(&self, which: &Kept) {
        self.note(which, Peek::Running);
    }

    pub(super) fn end(&self, which: &Kept) {
        self.note(which, Peek::Ended(Instant::now()));
    }

    /// Whether a count of its messages may be too low.
    pub(super) fn is_at(&self, which: &Kept) -> bool {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).get(which) {
            Some(Peek::Running) => true,
            Some(Peek::Ended(at)) => at.elapsed() < SETTLE,
            None => false,
        }
    }

    fn note(&self, which: &Kept, peek: Peek) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(which.clone(), peek);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_doubted_while_somebody_looks_and_a_moment_longer() {
        let peeking = Peeking::default();
        assert!(!peeking.is_at(&Kept::Unroutable));
        peeking.begin(&Kept::Unroutable);
        assert!(peeking.is_at(&Kept::Unroutable) && !peeking.is_at(&Kept::Parked));
        peeking.end(&Kept::Unroutable);
        assert!(peeking.is_at(&Kept::Unroutable));
        let long_ago = Instant::now().checked_sub(SETTLE).expect("the machine is up for a second");
        peeking.note(&Kept::Unroutable, Peek::Ended(long_ago));
        assert!(!peeking.is_at(&Kept::Unroutable));
    }
}
