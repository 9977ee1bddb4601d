//! Counts of the service's decisions, by application.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use crate::relay::RefusalCounter;
use delayline_core::codec::{AppKey, RoutingKey};

use super::ParkReason;

/// How many applications are counted separately. Publishers to the retry exchange can invent app
/// keys, and each key costs memory and a time series.
const APPS: usize = 100;

/// The application label of messages that could not be read.
const UNKNOWN: &str = "(unreadable)";

/// Counts decisions. A [`Service`](super::Service) shares it with its readers.
#[derive(Debug, Default)]
pub struct RetryStats(Mutex<BTreeMap<String, AppStats>>);

/// The results for failed messages of one application since the service started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AppStats {
    /// Messages that were sent again to be retried.
    pub retries: u64,
    /// Messages that were parked, by reason.
    pub parked: BTreeMap<String, u64>,
}

impl RetryStats {
    /// The name under which all further applications are counted.
    pub const OTHER: &str = "(other)";

    /// The counts so far by app key. `(other)` covers all applications that are not counted
    /// separately, and `(unreadable)` messages that could not be read.
    #[must_use]
    pub fn by_app(&self) -> BTreeMap<String, AppStats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn retry(&self, app: &str) {
        self.count(app, |stats| stats.retries += 1);
    }

    pub(super) fn park(&self, app: &str, why: ParkReason) {
        self.count(app, |stats| *stats.parked.entry(why.to_string()).or_default() += 1);
    }

    pub(super) fn damaged(&self) {
        self.count(UNKNOWN, |stats| *stats.parked.entry("unreadable".into()).or_default() += 1);
    }

    fn count(&self, app: &str, count: impl FnOnce(&mut AppStats)) {
        let mut apps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let app = if apps.contains_key(app) || apps.len() < APPS { app } else { Self::OTHER };
        match apps.get_mut(app) {
            Some(stats) => count(stats),
            None => count(apps.entry(app.to_owned()).or_default()),
        }
    }
}

impl RefusalCounter for RetryStats {
    /// Counted in addition to the decision about it.
    fn refused(&self, app: &str) {
        self.count(app, |stats| *stats.parked.entry("refused".into()).or_default() += 1);
    }

    fn unreadable(&self, routing_key: &str) {
        let app = match routing_key.parse::<RoutingKey>() {
            Ok(key) => key.app.to_string(),
            Err(_) => AppKey::new(routing_key).map_or_else(|_| UNKNOWN.to_owned(), |app| app.to_string()),
        };
        self.count(&app, |stats| *stats.parked.entry("unreadable".into()).or_default() += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use delayline_core::codec::Delay;

    #[test]
    fn counts_a_limited_number_of_applications_separately_and_the_rest_together() {
        let stats = RetryStats::default();
        for number in 0..APPS + 50 {
            stats.retry(&format!("app-{number}"));
        }
        stats.retry("app-0");
        stats.park("late", ParkReason::Attempts);
        stats.damaged();
        for (routing_key, app) in [
            ("app-1".to_owned(), "app-1"),
            (RoutingKey::new(Delay::ZERO, AppKey::new("app-2").unwrap()).encode(), "app-2"),
            ("a b".to_owned(), RetryStats::OTHER),
        ] {
            stats.unreadable(&routing_key);
            assert_eq!(
                stats.by_app()[app].parked["unreadable"],
                if app == RetryStats::OTHER { 2 } else { 1 }
            );
        }
        stats.refused("app-1");
        assert_eq!(stats.by_app()["app-1"].parked["refused"], 1);
        let counts = stats.by_app();
        assert_eq!(counts.len(), APPS + 1);
        assert_eq!(counts["app-0"].retries, 2);
        let other = &counts[RetryStats::OTHER];
        assert_eq!((other.retries, other.parked["attempts"], other.parked["unreadable"]), (50, 1, 2));
    }
}
