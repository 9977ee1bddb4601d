//! Since when the oldest kept message has been there.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use log::debug;

use crate::{
    admin::{self, AdminError, ParkedSelection, Selection},
    picture::{Kept, Live},
    settings::Settings,
    topology::Topology,
};

use super::Oldest;

/// How often the depths are looked at.
const TICK: Duration = Duration::from_millis(500);

/// How often the first message is looked at although nothing says that it is another one:
/// looking takes it out of the queue for a moment.
const AGAIN: Duration = Duration::from_secs(300);

/// Keeps track of the oldest messages until it is dropped.
#[derive(Debug)]
pub struct Ages {
    oldest: Arc<Mutex<Oldest>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ages {
    /// Looks at the first message of a queue whenever the depth of the picture says that it
    /// may be another one.
    #[must_use]
    pub fn start(settings: Settings, live: Arc<Live>) -> Self {
        let (oldest, stop): (Arc<Mutex<Oldest>>, _) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let thread = thread::spawn({
            let (oldest, stop) = (Arc::clone(&oldest), Arc::clone(&stop));
            move || keep_track(&settings, &live, &oldest, &stop)
        });
        Self { oldest, stop, thread: Some(thread) }
    }

    /// Where the answer stands.
    #[must_use]
    pub fn oldest(&self) -> Arc<Mutex<Oldest>> {
        Arc::clone(&self.oldest)
    }
}

impl Drop for Ages {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // One that is just asking a silent broker ends with the process.
        if let Some(thread) = self.thread.take().filter(JoinHandle::is_finished) {
            let _ = thread.join();
        }
    }
}

fn keep_track(settings: &Settings, live: &Live, oldest: &Mutex<Oldest>, stop: &AtomicBool) {
    let topology = Topology::new(settings.topology.clone());
    let mut heads = [Head::default(), Head::default()];
    while !stop.load(Ordering::Relaxed) {
        let picture = live.latest();
        let depths = [(Kept::Unroutable, picture.unroutable), (Kept::Parked, picture.parked)];
        for (head, (which, depth)) in heads.iter_mut().zip(depths) {
            let Some(depth) = depth.filter(|_| picture.broker.reachable) else { continue };
            if head.note(depth, Instant::now(), picture.at) {
                match first_came(settings, &topology, which) {
                    Ok(came) => head.found(came),
                    Err(error) => debug!("the oldest message could not be looked at: {error}"),
                }
            }
        }
        *oldest.lock().unwrap_or_else(PoisonError::into_inner) =
            Oldest { unroutable: heads[0].since(), parked: heads[1].since() };
        thread::sleep(TICK);
    }
}

/// When the first message of a queue came there, if it says so.
fn first_came(
    settings: &Settings,
    topology: &Topology,
    which: Kept,
) -> Result<Option<Timestamp>, AdminError> {
    let mut came = None;
    match which {
        Kept::Unroutable => {
            let all = Selection::default();
            admin::unroutable_messages(settings, topology, &all, (1, 0), |message| {
                came = message.sample.arrived;
            })?;
        }
        Kept::Parked => {
            let all = ParkedSelection::default();
            admin::parked_messages(settings, topology, &all, (1, 0), |message| {
                came = message.sample.arrived
            })?;
        }
    }
    Ok(came)
}

/// What is known of the first message of a queue.
#[derive(Debug, Default)]
struct Head {
    depth: u64,
    /// Since when the queue has had messages, as far as that was seen.
    filled: Option<Timestamp>,
    looked: Option<Instant>,
    came: Option<Timestamp>,
}

impl Head {
    /// Takes a depth in; says whether the first message has to be looked at.
    fn note(&mut self, depth: u64, now: Instant, at: Timestamp) -> bool {
        let sank = depth < self.depth;
        self.depth = depth;
        if depth == 0 {
            *self = Self::default();
            return false;
        }
        self.filled.get_or_insert(at);
        let look = sank || self.looked.is_none_or(|looked| now.saturating_duration_since(looked) >= AGAIN);
        if look {
            self.looked = Some(now);
        }
        look
    }

    fn found(&mut self, came: Option<Timestamp>) {
        self.came = came;
    }

    /// Since when the first message has been there; if it does not say, since when there
    /// has been one.
    fn since(&self) -> Option<Timestamp> {
        self.came.or(self.filled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn looks_only_if_the_first_may_be_another() {
        let (mut head, start) = (Head::default(), Instant::now());
        let mut note = |depth, seconds| head.note(depth, start + Duration::from_secs(seconds), at(0));
        let looks = [(0, 0), (3, 1), (3, 2), (9, 3), (8, 4), (8, 5), (8, 303), (8, 304), (0, 305), (1, 306)]
            .map(|(depth, seconds)| note(depth, seconds));
        assert_eq!(looks, [false, true, false, false, true, false, false, true, false, true]);
    }

    #[test]
    fn what_does_not_say_is_as_old_as_the_queue_was_seen_filled() {
        let (mut head, now) = (Head::default(), Instant::now());
        assert_eq!(head.since(), None);
        head.note(1, now, at(10));
        head.note(2, now, at(20));
        assert_eq!(head.since(), Some(at(10)));
        head.found(Some(at(3)));
        assert_eq!(head.since(), Some(at(3)));
        head.note(0, now, at(30));
        assert_eq!(head.since(), None);
    }
}
