//! What the queues that keep messages hold, in groups.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    admin::{self, AdminError},
    holding::Group,
    settings::Settings,
    topology::Topology,
};

/// How many messages are looked at. They are taken out of the queue and put back, so that
/// for a moment nobody else can have them; and they all have to come over the network.
const LOOKED_AT: u64 = 1_000;

/// How many groups are told.
const GROUPS: usize = 100;

/// A queue that keeps messages until somebody decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kept {
    /// What nobody is bound for, and what is malformed.
    Unroutable,
    /// What has used up its attempts or its time.
    Parked,
}

/// What such a queue held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptReport {
    /// When it was looked at.
    pub at: Timestamp,
    /// Messages that were in it.
    pub waiting: u64,
    /// How many of them were looked at: the oldest.
    pub examined: u64,
    /// Groups of them, the largest first.
    pub groups: Vec<KeptGroup>,
    /// Messages that were looked at and are in none of the groups.
    pub others: u64,
    /// What could not be seen, and why.
    pub unseen: Vec<String>,
}

/// Messages for one app that are here for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptGroup {
    /// For whom; `None` if that cannot be told.
    pub app: Option<String>,
    /// Why they are here.
    pub reason: String,
    /// What more there is to say: what is wrong with the key, or why it failed last.
    pub detail: Option<String>,
    /// Whether somebody is bound for the app now; `None` if that is not known, or makes
    /// no difference.
    pub bound: Option<bool>,
    /// How many.
    pub count: u64,
    /// Their bodies together, in bytes.
    pub bytes: u64,
    /// When the oldest came here, as far as messages say.
    pub oldest: Option<Timestamp>,
    /// When the newest came here.
    pub newest: Option<Timestamp>,
}

impl Kept {
    /// Looks at the oldest thousand messages, and changes nothing.
    ///
    /// # Errors
    /// If the broker cannot be asked, or looking is not safe.
    pub fn look(self, settings: &Settings, topology: &Topology) -> Result<KeptReport, AdminError> {
        Ok(match self {
            Self::Unroutable => {
                let report = admin::unroutable(settings, topology, LOOKED_AT, |_| {})?;
                let groups = report.groups.into_iter().map(|group| {
                    let diagnosis = group.diagnosis;
                    let why = (diagnosis.reason.to_string(), diagnosis.detail);
                    KeptGroup::new(diagnosis.app, why, group.bound, &group.group)
                });
                let unseen = report.unseen.into_iter().chain(report.failure);
                KeptReport::new(report.waiting, report.examined, groups, unseen)
            }
            Self::Parked => {
                let report = admin::parked(settings, topology, LOOKED_AT, |_| {})?;
                let groups = report.groups.into_iter().map(|group| {
                    let cause = group.cause;
                    KeptGroup::new(cause.app, (cause.reason, cause.failure), None, &group.group)
                });
                KeptReport::new(report.waiting, report.examined, groups, report.failure)
            }
        })
    }
}

impl KeptReport {
    fn new(
        waiting: u64,
        examined: u64,
        groups: impl Iterator<Item = KeptGroup>,
        unseen: impl IntoIterator<Item = String>,
    ) -> Self {
        let mut groups: Vec<_> = groups.collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.count));
        groups.truncate(GROUPS);
        let others = examined.saturating_sub(groups.iter().map(|group| group.count).sum());
        let unseen = unseen.into_iter().collect();
        Self { at: Timestamp::now(), waiting, examined, groups, others, unseen }
    }

    /// A report that says only why there is none.
    pub(super) fn failed(reason: String) -> Self {
        Self::new(0, 0, std::iter::empty(), [reason])
    }
}

impl KeptGroup {
    fn new(
        app: Option<String>,
        (reason, detail): (String, Option<String>),
        bound: Option<bool>,
        group: &Group,
    ) -> Self {
        let Group { count, bytes, oldest, newest } = *group;
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
        let report = KeptReport::new(sum + 5, sum, (1..=150).map(group), None);
        assert_eq!((report.groups.len(), report.groups[0].count), (GROUPS, 150));
        assert_eq!(report.others, (1..=50).sum::<u64>());
    }
}
