//! The contents of queues that keep messages, in groups.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use delayline::topology::Topology;
use delayline_admin::{self as admin, AdminError, ParkedSelection, Selection, holding::Group};
use delayline_settings::Settings;

/// The most messages that are examined. They are taken out of the queue and put back, so for
/// a moment nobody else can have them, and all have to come over the network.
const LOOKED_AT: u64 = 1_000;

/// How many are examined first. All of them may be in memory at a time, and publishers decide
/// how large they are: these first ones tell how many more there may be.
const TASTE: u64 = 20;

/// The factor by which the number grows from one look to the next.
const STEP: u64 = 8;

/// How many bytes of bodies may come at a time, if they are like those before.
const AFFORDED: u64 = 64 << 20;

/// How many groups are listed.
const GROUPS: usize = 100;

/// A queue that keeps messages until somebody decides what to do with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kept {
    /// Messages that nobody is bound for, and malformed ones.
    Unroutable,
    /// Messages that have used up their attempts or their time.
    Parked,
}

/// The contents of such a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptReport {
    /// When it was looked at.
    pub at: Timestamp,
    /// Messages that were in it.
    pub waiting: u64,
    /// How many of them were examined: the oldest.
    pub examined: u64,
    /// Groups of them, the largest first.
    pub groups: Vec<KeptGroup>,
    /// Messages that were examined and are in none of the groups.
    pub others: u64,
    /// When the oldest examined one arrived, as far as the messages say.
    pub first: Option<Timestamp>,
    /// What could not be seen, and why.
    pub unseen: Vec<String>,
    /// Why the next look failed; all else is then older, or empty.
    pub failure: Option<String>,
}

/// The messages of one app with one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptGroup {
    /// The app; `None` if that cannot be told.
    pub app: Option<String>,
    /// Why they are here.
    pub reason: String,
    /// Details: what is wrong with the key, or why it failed last.
    pub detail: Option<String>,
    /// Whether somebody is bound for the app now; `None` if that is unknown or makes no
    /// difference.
    pub bound: Option<bool>,
    /// How many.
    pub count: u64,
    /// The size of their bodies together, in bytes.
    pub bytes: u64,
    /// When the oldest arrived here, as far as messages say.
    pub oldest: Option<Timestamp>,
    /// When the newest arrived here.
    pub newest: Option<Timestamp>,
}

impl Kept {
    /// Examines the oldest messages, a thousand at most, and changes nothing. If they are
    /// large, fewer, since they come with their bodies.
    ///
    /// # Errors
    /// If the broker cannot be asked, or looking is not safe.
    pub fn look(self, settings: &Settings, topology: &Topology) -> Result<KeptReport, AdminError> {
        let mut limit = TASTE;
        loop {
            let (report, bytes) = self.look_at(limit, settings, topology)?;
            match more(limit, &report, bytes) {
                Some(next) => limit = next,
                None => return Ok(report),
            }
        }
    }

    /// When the first message arrived, if it says so. Looks at no other.
    pub(super) fn first(self, settings: &Settings, topology: &Topology) -> Result<Option<Timestamp>, String> {
        let mut came = None;
        let sifted = match self {
            Self::Unroutable => {
                let all = Selection::default();
                admin::unroutable_messages(settings, topology, &all, (1, 0), |message| {
                    came = message.sample.arrived;
                })
            }
            Self::Parked => {
                let all = ParkedSelection::default();
                admin::parked_messages(settings, topology, &all, (1, 0), |message| {
                    came = message.sample.arrived;
                })
            }
        };
        match sifted.map_err(|error| error.to_string())?.failure {
            Some(reason) => Err(reason),
            None => Ok(came),
        }
    }

    /// What this many messages tell, and the size of their bodies.
    fn look_at(
        self,
        limit: u64,
        settings: &Settings,
        topology: &Topology,
    ) -> Result<(KeptReport, u64), AdminError> {
        Ok(match self {
            Self::Unroutable => {
                let report = admin::unroutable(settings, topology, limit, |_| {})?;
                let groups = report.groups.into_iter().map(|group| {
                    let diagnosis = group.diagnosis;
                    let why = (diagnosis.reason.to_string(), diagnosis.detail);
                    KeptGroup::new(diagnosis.app, why, group.bound, &group.group)
                });
                let unseen = report.unseen.into_iter().chain(report.failure);
                KeptReport::new((report.waiting, report.examined), groups, report.other, unseen)
            }
            Self::Parked => {
                let report = admin::parked(settings, topology, limit, |_| {})?;
                let groups = report.groups.into_iter().map(|group| {
                    let cause = group.cause;
                    KeptGroup::new(cause.app, (cause.reason, cause.failure), None, &group.group)
                });
                KeptReport::new((report.waiting, report.examined), groups, report.other, report.failure)
            }
        })
    }
}

/// How many to examine next, if more are possible: the examined ones had this many bytes.
fn more(limit: u64, report: &KeptReport, bytes: u64) -> Option<u64> {
    // A look that ended early would end early again.
    if report.examined < limit || report.waiting <= limit {
        return None;
    }
    let afforded = AFFORDED / (bytes / report.examined.max(1)).max(1);
    let next = (limit * STEP).min(LOOKED_AT).min(afforded);
    (next > limit).then_some(next)
}

impl KeptReport {
    /// A report, and the size of the bodies.
    fn new(
        (waiting, examined): (u64, u64),
        groups: impl Iterator<Item = KeptGroup>,
        other: Option<Group>,
        unseen: impl IntoIterator<Item = String>,
    ) -> (Self, u64) {
        let mut groups: Vec<_> = groups.collect();
        let oldest = groups.iter().map(|group| group.oldest);
        let first = oldest.chain(other.iter().map(|other| other.oldest)).flatten().min();
        let bytes = groups.iter().map(|group| group.bytes).chain(other.map(|other| other.bytes)).sum();
        groups.sort_by_key(|group| std::cmp::Reverse(group.count));
        groups.truncate(GROUPS);
        let others = examined.saturating_sub(groups.iter().map(|group| group.count).sum());
        let unseen = unseen.into_iter().collect();
        let at = Timestamp::now();
        (Self { at, waiting, examined, groups, others, first, unseen, failure: None }, bytes)
    }

    /// The last report, if there is one, and why there is no newer one.
    pub(super) fn failed(last: Option<Self>, reason: String) -> Self {
        let last = last.unwrap_or_else(|| Self::new((0, 0), std::iter::empty(), None, None).0);
        Self { failure: Some(reason), ..last }
    }
}

impl KeptGroup {
    fn new(
        app: Option<String>,
        (reason, detail): (String, Option<String>),
        bound: Option<bool>,
        group: &Group,
    ) -> Self {
        let Group { count, bytes, oldest, newest, .. } = *group;
        Self { app, reason, detail, bound, count, bytes, oldest, newest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_groups_come_first_and_the_rest_is_counted() {
        let group = |count| {
            let group = Group { count, ..Group::default() };
            KeptGroup::new(None, (String::new(), None), None, &group)
        };
        let sum: u64 = (1..=150).sum();
        let (report, _) = KeptReport::new((sum + 5, sum), (1..=150).map(group), None, None);
        assert_eq!((report.groups.len(), report.groups[0].count), (GROUPS, 150));
        assert_eq!(report.others, (1..=50).sum::<u64>());
    }

    #[test]
    fn what_was_seen_stays_when_it_cannot_be_seen_again() {
        let failed = KeptReport::failed(None, "gone".into());
        assert_eq!((failed.groups.len(), failed.failure.as_deref()), (0, Some("gone")));
        let group = KeptGroup::new(None, (String::new(), None), None, &Group::default());
        let (seen, _) = KeptReport::new((5, 5), [group].into_iter(), None, None);
        let failed = KeptReport::failed(Some(seen.clone()), "gone".into());
        assert_eq!(KeptReport { failure: None, ..failed }, seen);
    }

    #[test]
    fn the_oldest_is_known_although_its_group_is_not_told() {
        let at = |second| Timestamp::from_second(second).ok();
        let group = |count: u64| {
            let group =
                Group { count, bytes: 10, oldest: at(1_000 + count.cast_signed()), ..Group::default() };
            KeptGroup::new(None, (String::new(), None), None, &group)
        };
        let other = Group { count: 1, bytes: 5, oldest: at(5_000), ..Group::default() };
        let (report, bytes) = KeptReport::new((9_999, 9_999), (1..=150).map(group), Some(other), None);
        assert_eq!((report.first, bytes), (at(1_001), 1_505));
    }

    #[test]
    fn how_many_are_looked_at_depends_on_how_large_they_are() {
        // The limits of one look after the other, at messages of so many bytes.
        let limits = |waiting: u64, size: u64| {
            let mut limits = vec![TASTE];
            while let Some(next) = {
                let limit = limits[limits.len() - 1];
                let examined = limit.min(waiting);
                let (report, _) = KeptReport::new((waiting, examined), std::iter::empty(), None, None);
                more(limit, &report, examined * size)
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
        let (ended, _) = KeptReport::new((500, 7), std::iter::empty(), None, ["it is gone".to_owned()]);
        assert_eq!(more(TASTE, &ended, 7), None);
    }
}
