//! The levels of other layouts, as a daemon or `delayline status --watch` sees them.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use delayline_core::{backoff::wait, supervise};
use jiff::Timestamp;
use serde::Serialize;

use delayline_admin::{Layout, LayoutLevel, LayoutStatus, SeenLayout};
use delayline_broker::{Reading, Survey};
use delayline_settings::Settings;

use super::{Level, Verdict};

/// How often to check whether there is something new.
const TICK: Duration = Duration::from_millis(250);

/// The levels of another layout at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct LayoutView {
    /// The layout.
    #[schemars(with = "String")]
    pub layout: Layout,
    /// The vhost it is in.
    pub vhost: String,
    /// When it was counted; `None` if it never could be.
    pub counted: Option<Timestamp>,
    /// Why the last count failed. All other fields are then from the count before.
    pub problem: Option<String>,
    /// Its levels, from the longest wait to the shortest; none before it was counted.
    pub levels: Vec<Level>,
    /// How many of them are missing.
    pub missing: Option<usize>,
    /// Messages that wait in all of them; this and the next four are `None` before it was
    /// counted.
    pub waiting: Option<u64>,
    /// Messages that have left a level and are not confirmed by the next; `None` also if that is not known.
    pub handing_on: Option<u64>,
    /// How many of those have just come, so that it is not known yet whether they move.
    pub open: Option<u64>,
    /// How many of those are stuck.
    pub stuck: Option<u64>,
    /// How many exchanges of the layout there are.
    pub exchanges: Option<usize>,
    /// How many of them have an alternate.
    pub guarded: Option<usize>,
    /// Whether the queue of the guard exists.
    pub keeps: Option<bool>,
    /// Messages that the guard keeps; `None` without a guard, or if that is not known.
    pub unroutable: Option<u64>,
    /// Checks that could not be made, with the reasons.
    pub unchecked: Vec<String>,
    /// The meaning of all this, in words.
    pub verdict: Verdict,
}

impl LayoutView {
    /// A layout that was not counted yet.
    #[must_use]
    pub fn unseen(layout: Layout, vhost: impl Into<String>) -> Self {
        let mut view = Self {
            layout,
            vhost: vhost.into(),
            counted: None,
            problem: None,
            levels: Vec::new(),
            missing: None,
            waiting: None,
            handing_on: None,
            open: None,
            stuck: None,
            exchanges: None,
            guarded: None,
            keeps: None,
            unroutable: None,
            unchecked: Vec::new(),
            verdict: Verdict::default(),
        };
        view.verdict = Verdict::of_layout(&view);
        view
    }

    /// Takes in the counts.
    fn note(&mut self, status: LayoutStatus) {
        let levels = status.levels.iter().map(|found| {
            level(found, stuck_since(&self.levels, (found.level, found.stuck.unwrap_or(0)), status.at))
        });
        self.levels = levels.collect();
        self.counted = Some(status.at);
        self.problem = None;
        (self.waiting, self.missing) = (status.waiting, Some(status.missing()));
        (self.handing_on, self.open, self.stuck) = (status.handing_on, status.open, status.stuck);
        self.keeps = Some(status.keeps);
        (self.exchanges, self.guarded) = (Some(status.exchanges), Some(status.guarded));
        (self.unroutable, self.unchecked) = (status.unroutable, status.unchecked);
    }
}

/// Since when a level has had messages that do not move, as far as that was seen.
fn stuck_since(last: &[Level], (level, stuck): (u8, u64), now: Timestamp) -> Option<Timestamp> {
    let last = last.iter().find(|last| last.level == level);
    (stuck > 0).then(|| last.and_then(|last| last.stuck_since).unwrap_or(now))
}

fn level(level: &LayoutLevel, stuck_since: Option<Timestamp>) -> Level {
    Level {
        level: level.level,
        queue: level.queue.clone(),
        wait_ms: level.wait_ms.unwrap_or(1_000 << level.level),
        ready: level.ready,
        handing_on: level.handing_on,
        open: level.open,
        stuck: level.stuck,
        stuck_since,
    }
}

/// Looks at one layout, again and again.
#[derive(Debug)]
struct Looking {
    settings: Settings,
    seen: SeenLayout,
    last: LayoutView,
}

impl Looking {
    fn new(settings: &Settings, layout: Layout) -> Self {
        let last = LayoutView::unseen(layout, &settings.broker.vhost);
        Self { settings: settings.clone(), seen: SeenLayout::default(), last }
    }

    fn look(&mut self, survey: &Survey, reading: &Reading) {
        match self.seen.status(&self.settings, &self.last.layout, (survey, reading)) {
            Ok(status) => self.last.note(status),
            Err(error) => self.last.problem = Some(error.to_string()),
        }
        self.last.verdict = Verdict::of_layout(&self.last);
    }
}

/// Looks at the layouts of the settings whenever the survey has counted them, until `stop` is set, and keeps their
/// views up to date.
#[must_use]
pub fn watch_layouts(
    settings: &Settings,
    survey: &Arc<Survey>,
    stop: &Arc<AtomicBool>,
) -> Arc<Mutex<Vec<LayoutView>>> {
    let mut all: Vec<_> =
        settings.layouts.iter().map(|layout| Looking::new(settings, layout.clone())).collect();
    let views = |all: &[Looking]| all.iter().map(|it| it.last.clone()).collect::<Vec<_>>();
    let seen = Arc::new(Mutex::new(views(&all)));
    if all.is_empty() {
        return seen;
    }
    let (shown, survey, stop) = (Arc::clone(&seen), Arc::clone(survey), Arc::clone(stop));
    // It is not joined: it changes nothing.
    supervise::start("layouts", move || {
        let mut last = None;
        while !stop.load(Ordering::Relaxed) {
            if let Some(reading) = survey.reading().filter(|reading| last != Some(reading.at)) {
                last = Some(reading.at);
                all.iter_mut().for_each(|it| it.look(&survey, &reading));
                *shown.lock().unwrap_or_else(PoisonError::into_inner) = views(&all);
            }
            wait(&stop, TICK);
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
