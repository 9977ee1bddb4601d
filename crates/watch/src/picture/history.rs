//! The depths of the levels over time, and the rates that follow from them: pure.

use std::{collections::VecDeque, time::Duration};

use delayline_core::codec::{LEVELS, Level};

/// The levels as an array has them.
const COUNT: usize = LEVELS as usize;

/// How many moments are remembered, and their distance: half an hour in all.
const MOMENTS: usize = 900;
const APART: Duration = Duration::from_secs(2);

/// The rates of the shortest levels are averaged over this time, so that people can read
/// them.
const READABLE: Duration = Duration::from_secs(10);

/// The period over which publishes are compared with depths. Brokers renew both every five
/// seconds, at different times, so a shorter period would be noise.
const BALANCE: Duration = Duration::from_secs(30);

/// The period that has to do at the beginning.
const BALANCE_LEAST: Duration = Duration::from_secs(10);

/// The period for the change of a depth.
const CHANGE: Duration = Duration::from_secs(60);

/// The counts at a moment, by level from 0; `None` if unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Depths {
    /// When, counted from any fixed moment.
    pub at: Duration,
    /// Messages that wait.
    pub ready: [Option<u64>; COUNT],
    /// Those and the stuck ones.
    pub messages: [Option<u64>; COUNT],
    /// Messages that publishers have ever sent into a level, according to the management API.
    pub published: [Option<u64>; COUNT],
    /// Messages ever published to the entry exchange, according to the management API.
    pub entered: Option<u64>,
}

impl Depths {
    /// A moment without any counts.
    #[must_use]
    pub fn unknown(at: Duration) -> Self {
        Self { at, ready: [None; COUNT], messages: [None; COUNT], published: [None; COUNT], entered: None }
    }
}

/// The depths of half an hour.
#[derive(Debug, Clone)]
pub struct History {
    /// How long a message stays in a level, from 0.
    waits: [Duration; COUNT],
    moments: VecDeque<Depths>,
}

impl History {
    /// An empty history, for a set whose level n holds a message for `wait(n)`.
    #[must_use]
    pub fn new(wait: impl Fn(Level) -> Duration) -> Self {
        let mut waits = [Duration::ZERO; COUNT];
        for level in Level::all() {
            waits[level.index()] = wait(level);
        }
        Self { waits, moments: VecDeque::new() }
    }

    /// Adds counts. Of moments closer together than two seconds only one is kept.
    pub fn push(&mut self, depths: Depths) {
        let last =
            self.moments.len().checked_sub(2).map(|index| (&self.moments[index], &self.moments[index + 1]));
        if last.is_some_and(|(before, last)| last.at.saturating_sub(before.at) < APART) {
            self.moments.pop_back();
        }
        if self.moments.len() == MOMENTS {
            self.moments.pop_front();
        }
        self.moments.push_back(depths);
    }

    fn now(&self) -> Option<&Depths> {
        self.moments.back()
    }

    /// The last moment that is at least so long ago.
    fn ago(&self, time: Duration) -> Option<&Depths> {
        let then = self.now()?.at.checked_sub(time)?;
        self.moments.iter().rev().find(|moment| moment.at <= then)
    }

    /// Messages that enter a level per second.
    #[must_use]
    pub fn in_per_s(&self, level: u8) -> Option<f64> {
        self.mean_depth(level, Duration::ZERO).map(|depth| depth / self.wait(level).as_secs_f64())
    }

    /// Messages that leave a level per second.
    #[must_use]
    pub fn out_per_s(&self, level: u8) -> Option<f64> {
        let wait = self.wait(level);
        self.ago(wait)?;
        self.mean_depth(level, wait).map(|depth| depth / wait.as_secs_f64())
    }

    /// The depth so long ago: at that moment, or in the averaging period before.
    fn mean_depth(&self, level: u8, ago: Duration) -> Option<f64> {
        let end = self.now()?.at.checked_sub(ago)?;
        let long = READABLE.saturating_sub(self.wait(level));
        let depth = |moment: &Depths| moment.ready[usize::from(level)];
        let before: Vec<_> = self.moments.iter().rev().skip_while(|moment| moment.at > end).collect();
        let within = before.iter().take_while(|moment| moment.at + long >= end);
        let mut depths: Vec<_> = within.filter_map(|moment| depth(moment)).collect();
        if depths.is_empty() {
            depths.extend(before.first().and_then(|moment| depth(moment)));
        }
        (!depths.is_empty()).then(|| float(depths.iter().sum()) / float(depths.len() as u64))
    }

    /// The growth of a depth per second.
    #[must_use]
    pub fn change_per_s(&self, level: u8) -> Option<f64> {
        let now = self.now()?;
        let then = self.ago(CHANGE).or_else(|| self.moments.front()).filter(|then| then.at < now.at)?;
        let depth = |moment: &Depths| moment.ready[usize::from(level)].map(float);
        Some((depth(now)? - depth(then)?) / (now.at - then.at).as_secs_f64())
    }

    /// Messages that publishers send into a level per second.
    #[must_use]
    pub fn published_per_s(&self, level: u8) -> Option<f64> {
        let (now, then, seconds) = self.balance()?;
        let count = |moment: &Depths| moment.published[usize::from(level)];
        // The count starts again at 0 when a broker forgets its statistics.
        Some(float(count(now)?.saturating_sub(count(then)?)) / seconds)
    }

    /// Messages published to the entry exchange per second.
    #[must_use]
    pub fn entering_per_s(&self) -> Option<f64> {
        let (now, then, seconds) = self.balance()?;
        Some(float(now.entered?.saturating_sub(then.entered?)) / seconds)
    }

    /// Messages that pass per second from this level or a higher one to below it: what was
    /// published into those, less what they grew by.
    #[must_use]
    pub fn passing_per_s(&self, level: u8) -> Option<f64> {
        let (now, then, seconds) = self.balance()?;
        let mut passed = 0.0;
        for level in usize::from(level)..COUNT {
            passed += float(now.published[level]?.saturating_sub(then.published[level]?));
            passed -= float(now.messages[level]?) - float(then.messages[level]?);
        }
        Some((passed / seconds).max(0.0))
    }

    fn balance(&self) -> Option<(&Depths, &Depths, f64)> {
        let now = self.now()?;
        let long = |then: &&Depths| now.at.saturating_sub(then.at) >= BALANCE_LEAST;
        let then = self.ago(BALANCE).or_else(|| self.moments.front().filter(long))?;
        Some((now, then, (now.at - then.at).as_secs_f64()))
    }

    /// The smallest number of messages that a level had over so many of the last seconds, as
    /// far as that was seen.
    #[must_use]
    pub fn lowest(&self, level: u8, seconds: f64) -> Option<u64> {
        let now = self.now()?.at;
        let within = self.moments.iter().rev().take_while(|moment| (now - moment.at).as_secs_f64() < seconds);
        within.filter_map(|moment| moment.ready[usize::from(level)]).min()
    }

    fn wait(&self, level: u8) -> Duration {
        self.waits[usize::from(level)]
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of messages, for rates")]
fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history() -> History {
        History::new(|level| Duration::from_secs(level.units().into()))
    }

    fn depths(at: u64, level: usize, ready: u64, published: u64) -> Depths {
        let mut depths = Depths::unknown(Duration::from_secs(at));
        depths.messages = [Some(0); COUNT];
        depths.published = [Some(0); COUNT];
        depths.ready[level] = Some(ready);
        depths.messages[level] = Some(ready);
        depths.published[level] = Some(published);
        depths
    }

    #[test]
    fn a_rate_is_a_depth_through_the_time_in_the_level() {
        let mut history = history();
        assert_eq!(history.in_per_s(4), None);
        history.push(depths(0, 4, 160, 0));
        // What came in is known at once; what goes out, only after 16 s.
        assert_eq!((history.in_per_s(4), history.out_per_s(4)), (Some(10.0), None));
        for at in (2..20).step_by(2) {
            history.push(depths(at, 4, 320, 0));
        }
        assert_eq!((history.in_per_s(4), history.out_per_s(4)), (Some(20.0), Some(20.0)));
        let mut history = self::history();
        history.push(depths(0, 4, 160, 0));
        history.push(depths(16, 4, 320, 0));
        assert_eq!((history.in_per_s(4), history.out_per_s(4)), (Some(20.0), Some(10.0)));
        assert_eq!(history.change_per_s(4), Some(10.0));
    }

    #[test]
    fn short_levels_are_means_over_a_readable_time() {
        let mut history = history();
        for (index, ready) in [10, 0, 10, 0, 10].into_iter().enumerate() {
            history.push(depths(index as u64 * 2, 0, ready, 0));
        }
        assert_eq!(history.in_per_s(0), Some(6.0));
    }

    #[test]
    fn what_passes_is_what_came_and_is_not_there() {
        let mut history = history();
        history.push(depths(0, 10, 0, 0));
        assert_eq!(history.passing_per_s(10), None);
        history.push(depths(30, 10, 200, 500));
        assert_eq!(history.published_per_s(10), Some(500.0 / 30.0));
        // 300 went on, past all that is lower; nothing from above.
        assert_eq!(history.passing_per_s(10), Some(10.0));
        assert_eq!(history.passing_per_s(0), Some(10.0));
        assert_eq!(history.passing_per_s(11), Some(0.0));
    }

    #[test]
    fn the_lowest_depth_of_a_time() {
        let mut history = history();
        for (at, ready) in [(0, 5), (10, 20), (20, 30)] {
            history.push(depths(at, 8, ready, 0));
        }
        assert_eq!(history.lowest(8, 15.0), Some(20));
        assert_eq!(history.lowest(8, 100.0), Some(5));
        assert_eq!(history.lowest(7, 100.0), None);
    }

    #[test]
    fn remembers_half_an_hour_and_not_more() {
        let mut history = history();
        for at in 0..5_000 {
            history.push(depths(at, 0, at, 0));
        }
        assert_eq!(history.moments.len(), MOMENTS);
        let apart = history.moments.iter().zip(history.moments.iter().skip(1)).map(|(a, b)| b.at - a.at);
        assert!(apart.rev().skip(1).all(|apart| apart >= APART));
        assert_eq!(history.now().unwrap().at.as_secs(), 4_999);
    }
}
