//! The values of a minute ago.

use std::{collections::VecDeque, time::Duration};

/// How often it is recorded.
const NOTED_EVERY: Duration = Duration::from_secs(2);

/// How far it goes back.
const MINUTE: Duration = Duration::from_secs(60);

/// The values at moments of the last minute.
#[derive(Debug)]
pub(super) struct LastMinute<T>(VecDeque<(Duration, T)>);

impl<T> Default for LastMinute<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> LastMinute<T> {
    /// The value of a minute before, or the oldest value.
    pub(super) fn before(&mut self, now: Duration) -> Option<&T> {
        while self.0.len() > 1 && now.saturating_sub(self.0[1].0) >= MINUTE {
            self.0.pop_front();
        }
        self.0.front().map(|(_, known)| known)
    }

    /// Records the present value, if it is time.
    pub(super) fn note(&mut self, now: Duration, known: impl FnOnce() -> T) {
        if self.0.back().is_none_or(|(at, _)| now.saturating_sub(*at) >= NOTED_EVERY) {
            self.0.push_back((now, known()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_back_a_minute_and_not_further() {
        let mut minute = LastMinute::default();
        assert_eq!(minute.before(Duration::ZERO), None);
        for second in 0..=90 {
            minute.note(Duration::from_secs(second), || second);
        }
        assert_eq!(minute.before(Duration::from_secs(59)), Some(&0));
        assert_eq!(minute.before(Duration::from_secs(62)), Some(&2));
        assert_eq!(minute.before(Duration::from_secs(91)), Some(&30), "every other second was recorded");
        assert_eq!(minute.before(Duration::from_secs(900)), Some(&90));
    }
}
