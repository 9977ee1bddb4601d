//! The contents of queues that keep messages, as the page shows them.

use jiff::Timestamp;
use serde::Serialize;

use delayline_admin::{AdminError, Kept, KeptReport, Selection};
use delayline_core::topology::Topology;
use delayline_settings::Settings;

/// The most messages that are examined. They are taken out of the queue and put back, so no other
/// consumer gets them for a moment, and all have to come over the network.
const LOOKED_AT: u64 = 1_000;

/// How many are examined first. All of them may be in memory at a time, and publishers decide their
/// size: the first messages determine how many more may follow.
const FIRST: u64 = 20;

/// The factor by which the number grows from one look to the next.
const STEP: u64 = 8;

/// How many bytes of bodies may come at a time, if they are like those before.
const AFFORDED: u64 = 64 << 20;

/// How many groups are listed.
const GROUPS: usize = 100;

/// The contents of such a queue: a report whose groups are the largest, the largest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct KeptView {
    /// When it was examined.
    pub at: Timestamp,
    /// Examined messages outside the groups.
    pub others: u64,
    /// When the oldest examined message arrived, as far as the headers show.
    pub first: Option<Timestamp>,
    /// The messages seen. Its failure is why the next look failed: all else is then older, or empty.
    #[serde(flatten)]
    pub report: KeptReport,
}

impl KeptView {
    /// Examines the oldest messages, a thousand at most, and changes nothing. If they are
    /// large, fewer, since they come with their bodies.
    ///
    /// # Errors
    /// If the broker cannot be asked, or looking is not safe.
    pub fn look(kept: &Kept, settings: &Settings, topology: &Topology) -> Result<Self, AdminError> {
        let mut limit = FIRST;
        loop {
            let report = kept.list(settings, topology, limit, |_| {})?;
            match more(limit, &report) {
                Some(next) => limit = next,
                None => return Ok(Self::new(report)),
            }
        }
    }

    fn new(mut report: KeptReport) -> Self {
        let oldest = report.groups.iter().map(|it| it.group.oldest);
        let first = oldest.chain(report.other.iter().map(|other| other.oldest)).flatten().min();
        report.groups.sort_by_key(|it| std::cmp::Reverse(it.group.count));
        report.groups.truncate(GROUPS);
        let listed = report.groups.iter().map(|it| it.group.count).sum();
        // The failure that ended a look early counts as an unchecked part.
        report.unchecked.extend(report.failure.take());
        Self { at: Timestamp::now(), others: report.examined.saturating_sub(listed), first, report }
    }

    /// The last view, if there is one, and why there is no newer one.
    pub(super) fn failed(last: Option<Self>, reason: String) -> Self {
        let mut view = last.unwrap_or_else(|| Self::new(KeptReport::new((0, 0), Vec::new())));
        view.report.failure = Some(reason);
        view
    }
}

/// When the first message arrived, if its headers contain that. Examines no other message.
pub(super) fn first(
    kept: &Kept,
    settings: &Settings,
    topology: &Topology,
) -> Result<Option<Timestamp>, String> {
    let mut came = None;
    let drained = kept.messages(settings, topology, &Selection::default(), (1, 0), |message| {
        came = message.sample.arrived;
    });
    match drained.map_err(|error| error.to_string())?.failure {
        Some(reason) => Err(reason),
        None => Ok(came),
    }
}

/// How many to examine next, if more are possible.
fn more(limit: u64, report: &KeptReport) -> Option<u64> {
    // A look that ended early would end early again.
    if report.examined < limit || report.waiting <= limit {
        return None;
    }
    let groups = report.groups.iter().map(|it| &it.group).chain(&report.other);
    let bytes: u64 = groups.map(|group| group.bytes).sum();
    let afforded = AFFORDED / (bytes / report.examined.max(1)).max(1);
    let next = (limit * STEP).min(LOOKED_AT).min(afforded);
    (next > limit).then_some(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use delayline_admin::{KeptGroup, drain::Group};

    fn group(count: u64, bytes: u64, oldest: Option<Timestamp>) -> KeptGroup {
        KeptGroup::new(None, "", Group { count, bytes, oldest, ..Group::default() })
    }

    #[test]
    fn the_largest_groups_come_first_and_the_rest_is_counted() {
        let sum: u64 = (1..=150).sum();
        let groups = (1..=150).map(|count| group(count, 0, None)).collect();
        let view = KeptView::new(KeptReport::new((sum + 5, sum), groups));
        let groups = &view.report.groups;
        assert_eq!((groups.len(), groups[0].group.count), (GROUPS, 150));
        assert_eq!(view.others, (1..=50).sum::<u64>());
    }

    #[test]
    fn what_was_seen_stays_when_it_cannot_be_seen_again() {
        let failed = KeptView::failed(None, "gone".into());
        assert_eq!((failed.report.groups.len(), failed.report.failure.as_deref()), (0, Some("gone")));
        let seen = KeptView::new(KeptReport::new((5, 5), vec![group(0, 0, None)]));
        let mut failed = KeptView::failed(Some(seen.clone()), "gone".into());
        failed.report.failure = None;
        assert_eq!(failed, seen);
    }

    #[test]
    fn the_oldest_is_known_although_its_group_is_not_told() {
        let at = |second| Timestamp::from_second(second).ok();
        let groups = (1..=150).map(|count: u64| group(count, 10, at(1_000 + count.cast_signed())));
        let mut report = KeptReport::new((9_999, 9_999), groups.collect());
        report.other = Some(group(1, 5, at(5_000)).group);
        assert_eq!(KeptView::new(report).first, at(1_001));
    }

    #[test]
    fn how_many_are_looked_at_depends_on_how_large_they_are() {
        // The limits of one look after the other, at messages of so many bytes.
        let limits = |waiting: u64, size: u64| {
            let mut limits = vec![FIRST];
            while let Some(next) = {
                let limit = limits[limits.len() - 1];
                let examined = limit.min(waiting);
                more(
                    limit,
                    &KeptReport::new((waiting, examined), vec![group(examined, examined * size, None)]),
                )
            } {
                limits.push(next);
            }
            limits
        };
        assert_eq!(limits(9, 100), [20]);
        assert_eq!(limits(100, 100), [20, 160]);
        assert_eq!(limits(1 << 20, 0), [20, 160, 1_000]);
        assert_eq!(limits(1 << 20, 1 << 20), [20, 64]);
        assert_eq!(limits(1 << 20, 16 << 20), [20]);
        let mut ended = KeptReport::new((500, 7), vec![group(7, 7, None)]);
        ended.failure = Some("it is gone".into());
        assert_eq!(more(FIRST, &ended), None);
        assert_eq!(KeptView::new(ended).report.unchecked, ["it is gone"]);
    }
}
