//! Whether the set is as it should be, checked at intervals.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;

use delayline_admin as admin;
use delayline_broker::Survey;
use delayline_core::topology::Topology;
use delayline_settings::Settings;

use super::{BrokerView, SetView};

/// How often the set is compared with its definition, and how often until it matches: an operator
/// may be fixing it, or the broker may soon know more.
/// The numbers limit its share of time: with 300, to a 300th.
const EVERY: (Duration, u32) = (Duration::from_secs(60), 300);
const AGAIN: (Duration, u32) = (Duration::from_secs(5), 10);

/// How old a comparison may become for that reason.
const MOST: Duration = Duration::from_secs(600);

/// How old the answers of the broker may be.
const AGE: Duration = Duration::from_secs(1);

/// Who compares.
#[derive(Debug)]
pub(super) enum Comparison {
    /// The thread that takes the picture, at intervals.
    Here(Turn),
    /// Another thread, which puts the findings here.
    Elsewhere(Arc<Mutex<Option<SetView>>>),
}

impl Default for Comparison {
    fn default() -> Self {
        Self::Here(Turn::default())
    }
}

impl Comparison {
    /// The last findings, if they may be new.
    pub(super) fn result(
        &mut self,
        broker: &BrokerView,
        settings: &Settings,
        (topology, survey): (&Topology, &Survey),
    ) -> Option<SetView> {
        match self {
            Self::Here(turn) => turn.is_due(broker, Instant::now()).then(|| {
                let began = Instant::now();
                let found = SetView::compare(settings, topology, survey);
                turn.made(&found, (began, Instant::now()), survey);
                found
            }),
            Self::Elsewhere(found) => found.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

/// When it is time to compare again.
#[derive(Debug, Default)]
pub(super) struct Turn {
    next: Option<Instant>,
    /// The last change before it.
    changed: Option<Timestamp>,
}

impl Turn {
    /// Whether it is time, with a broker that answers.
    pub(super) fn is_due(&mut self, broker: &BrokerView, now: Instant) -> bool {
        if broker.changed != self.changed {
            (self.changed, self.next) = (broker.changed, None);
        }
        broker.reachable && self.next.is_none_or(|next| now >= next)
    }

    /// Notes that it was done, from one moment to another.
    pub(super) fn made(&mut self, found: &SetView, (began, ended): (Instant, Instant), survey: &Survey) {
        let (took, well) = (ended - began, found.ok == Some(true) && !found.unchecked_for_now);
        self.next = Some(ended + survey.rest(took, if well { EVERY } else { AGAIN }, MOST));
    }
}

impl SetView {
    /// Compares the set with its definition.
    pub(super) fn compare(settings: &Settings, topology: &Topology, survey: &Survey) -> Self {
        let at = Timestamp::now();
        match admin::verify_seen(settings, topology, (survey, AGE)) {
            Ok(report) => Self {
                ok: Some(report.differences.is_empty()),
                at: Some(at),
                bindings_compared: report.bindings > 0,
                installed: Some(report.installed),
                awaited: false,
                problems: match report.installed {
                    true => report.differences.iter().map(ToString::to_string).collect(),
                    // Each exchange, queue and binding is missing: that is reported once.
                    false => vec!["the set is missing: it is not installed in this vhost".into()],
                },
                unchecked: report.unchecked,
                unchecked_for_now: report.unchecked_for_now,
            },
            Err(error) => Self { unchecked: vec![error.to_string()], ..Self::default() },
        }
    }

    /// Whether nothing differs, but bindings were not compared: they may differ.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.ok == Some(true) && !self.bindings_compared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soon_again_until_it_is_well_and_at_once_after_a_change() {
        let (mut turn, start) = (Turn::default(), Instant::now());
        let survey = Survey::new(&Settings::from_url("amqp://localhost").unwrap());
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut broker = BrokerView { changed: Some(Timestamp::UNIX_EPOCH), ..BrokerView::default() };
        assert!(!turn.is_due(&broker, at(0)), "no answer");
        broker.reachable = true;
        assert!(turn.is_due(&broker, at(0)));
        turn.made(&SetView { ok: Some(false), ..SetView::default() }, (at(0), at(0)), &survey);
        assert_eq!([4, 5].map(|seconds| turn.is_due(&broker, at(seconds))), [false, true]);
        turn.made(
            &SetView { ok: Some(true), unchecked_for_now: true, ..SetView::default() },
            (at(0), at(0)),
            &survey,
        );
        assert_eq!([4, 5].map(|seconds| turn.is_due(&broker, at(seconds))), [false, true]);
        turn.made(&SetView { ok: Some(true), ..SetView::default() }, (at(5), at(5)), &survey);
        assert_eq!([64, 65].map(|seconds| turn.is_due(&broker, at(seconds))), [false, true]);
        turn.made(&SetView { ok: Some(true), ..SetView::default() }, (at(65), at(65)), &survey);
        broker.changed = Some(Timestamp::now());
        assert!(turn.is_due(&broker, at(66)));
        turn.made(&SetView { ok: Some(true), ..SetView::default() }, (at(66), at(70)), &survey);
        assert_eq!([669, 670].map(|seconds| turn.is_due(&broker, at(seconds))), [false, true]);
    }
}
