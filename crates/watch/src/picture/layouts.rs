//! The delays of others, as a daemon or `delayline top` sees them.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde::Serialize;

use delayline_admin::{Layout, LayoutLevel, LayoutStatus, layout_status};
use delayline_core::codec;
use delayline_settings::Settings;

use crate::canary::LayoutCanary;

use super::{CanaryView, Depths, History, Level, Verdict};

/// How often a layout is looked at: the management API's numbers are renewed every 5 s.
const EVERY: Duration = Duration::from_secs(5);

/// How often to check whether to stop.
const TICK: Duration = Duration::from_millis(250);

/// The delays of others at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LayoutView {
    /// The layout.
    pub layout: Layout,
    /// The vhost it is in.
    pub vhost: String,
    /// When it was counted; `None` if it never could be.
    pub counted: Option<Timestamp>,
    /// Why it could not be counted last time. What else is said is from before, then.
    pub problem: Option<String>,
    /// Its levels, from the longest wait to the shortest; none before it was counted.
    pub levels: Vec<Level>,
    /// Messages that wait in all of them; this and the next four are `None` before it was
    /// counted.
    pub waiting: Option<u64>,
    /// Messages that have left a level and are not confirmed by the next.
    pub handing_on: Option<u64>,
    /// How many of those do not move.
    pub stuck: Option<u64>,
    /// How many exchanges of the layout there are.
    pub exchanges: Option<usize>,
    /// How many of them have an alternate.
    pub guarded: Option<usize>,
    /// What the guard keeps; `None` without one.
    pub unroutable: Option<u64>,
    /// What the canary of this process saw in these levels; `None` without one, as where there is
    /// no guard.
    pub canary: Option<CanaryView>,
    /// What could not be seen, and why.
    pub unchecked: Vec<String>,
    /// What all this means, in words.
    pub verdict: Verdict,
}

impl LayoutView {
    /// A layout about which nothing is known yet.
    #[must_use]
    pub fn unseen(layout: Layout, vhost: impl Into<String>) -> Self {
        let mut view = Self {
            layout,
            vhost: vhost.into(),
            counted: None,
            problem: None,
            levels: Vec::new(),
            waiting: None,
            handing_on: None,
            stuck: None,
            exchanges: None,
            guarded: None,
            unroutable: None,
            canary: None,
            unchecked: Vec::new(),
            verdict: Verdict::default(),
        };
        view.verdict = Verdict::of_layout(&view);
        view
    }

    /// Takes in what was counted.
    fn note(&mut self, status: LayoutStatus) {
        let levels = status
            .levels
            .iter()
            .map(|found| level(found, stuck_since(&self.levels, (found.level, found.stuck), status.at)));
        self.levels = levels.collect();
        self.counted = Some(status.at);
        self.problem = None;
        self.waiting = Some(status.waiting);
        (self.handing_on, self.stuck) = (Some(status.handing_on), Some(status.stuck));
        (self.exchanges, self.guarded) = (Some(status.exchanges), Some(status.guarded));
        (self.unroutable, self.unchecked) = (status.unroutable, status.unchecked);
    }
}

/// Since when a level has had messages that do not move, as far as that was seen.
fn stuck_since(last: &[Level], (level, stuck): (u8, u64), now: Timestamp) -> Option<Timestamp> {
    let last = last.iter().find(|last| last.level == level);
    (stuck > 0).then(|| last.and_then(|last| last.stuck_since).unwrap_or(now))
}

/// How long a message stays in a level of others, in ms, if nothing else is known.
fn usual_wait(level: u8) -> u64 {
    1_000 << level
}

fn level(level: &LayoutLevel, stuck_since: Option<Timestamp>) -> Level {
    Level {
        level: level.level,
        queue: level.queue.clone(),
        wait_ms: level.wait_ms.unwrap_or_else(|| usual_wait(level.level)),
        ready: level.ready,
        handing_on: Some(level.handing_on),
        stuck: Some(level.stuck),
        stuck_since,
        in_per_s: None,
        out_per_s: None,
        published_per_s: None,
        passing_per_s: None,
        change_per_s: None,
    }
}

/// Looks at one layout, again and again.
#[derive(Debug)]
struct Looking {
    settings: Settings,
    started: Instant,
    history: Option<History>,
    canary: LayoutCanary,
    last: LayoutView,
}

impl Looking {
    fn new(settings: &Settings, layout: Layout, canary: LayoutCanary) -> Self {
        let last = LayoutView::unseen(layout, &settings.broker.vhost);
        Self { settings: settings.clone(), started: Instant::now(), history: None, canary, last }
    }

    fn look(&mut self) {
        match layout_status(&self.settings, &self.last.layout) {
            Ok(status) => {
                self.canary.guarded.store(status.is_guarded(), Ordering::Relaxed);
                self.last.note(status);
                self.rates(self.started.elapsed());
            }
            Err(error) => self.last.problem = Some(error.to_string()),
        }
        self.last.canary = CanaryView::of(&self.canary.watched);
        self.last.verdict = Verdict::of_layout(&self.last);
    }

    /// What comes in and goes out, from the depths that were seen.
    fn rates(&mut self, now: Duration) {
        let levels = &mut self.last.levels;
        let history = self.history.get_or_insert_with(|| {
            let wait = |level: codec::Level| {
                let found = levels.iter().find(|found| found.level == level.number());
                found.map_or_else(|| usual_wait(level.number()), |found| found.wait_ms)
            };
            History::new(|level| Duration::from_millis(wait(level)))
        });
        let mut depths = Depths::unknown(now);
        for level in levels.iter() {
            depths.ready[usize::from(level.level)] = level.ready;
        }
        history.push(depths);
        for level in levels {
            level.in_per_s = history.in_per_s(level.level);
            level.out_per_s = history.out_per_s(level.level);
            level.change_per_s = history.change_per_s(level.level);
        }
    }
}

/// Looks at these layouts in the vhost of the settings until `stop` is set, tells their canaries
/// whether they are guarded, and puts what it sees where it is asked for.
#[must_use]
pub fn watch_layouts(
    settings: &Settings,
    layouts: impl IntoIterator<Item = (Layout, LayoutCanary)>,
    stop: &Arc<AtomicBool>,
) -> Arc<Mutex<Vec<LayoutView>>> {
    let layouts = layouts.into_iter();
    let mut all: Vec<_> = layouts.map(|(layout, canary)| Looking::new(settings, layout, canary)).collect();
    let views = |all: &[Looking]| all.iter().map(|it| it.last.clone()).collect::<Vec<_>>();
    let seen = Arc::new(Mutex::new(views(&all)));
    if all.is_empty() {
        return seen;
    }
    let (shown, stop) = (Arc::clone(&seen), Arc::clone(stop));
    // Nobody waits for it to end: it changes nothing.
    thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            all.iter_mut().for_each(Looking::look);
            *shown.lock().unwrap_or_else(PoisonError::into_inner) = views(&all);
            let next = Instant::now() + EVERY;
            while !stop.load(Ordering::Relaxed) && Instant::now() < next {
                thread::sleep(TICK);
            }
        }
    });
    seen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::sample;

    #[test]
    fn what_stays_stuck_has_been_so_since_it_was_seen_first() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut levels = vec![sample::level(1, 1_000), sample::level(0, 1_000)];
        for (second, stuck, since) in
            [(10, 40, Some(10)), (15, 41, Some(10)), (20, 0, None), (25, 1, Some(25))]
        {
            levels[1].stuck_since = stuck_since(&levels, (0, stuck), at(second));
            assert_eq!(levels[1].stuck_since, since.map(at), "at {second}");
        }
        assert_eq!(stuck_since(&[], (0, 3), at(7)), Some(at(7)));
    }
}
