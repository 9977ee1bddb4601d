//! Reading kept messages without changing anything.

use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use crate::{
    drain::Decision, drain::Drain, drain::Drained, drain::Group, drain::Progress, drain::Sample,
    drain::count, drain::past, error::AdminError,
};
use delayline_amqp::{Delivery, v1::Foreign};
use delayline_core::topology::Topology;
use delayline_settings::Settings;

use super::{Kept, KeptCause, Seen, Selection};

/// The most groups that are counted separately. Publishers can write anything into a key, and applications
/// may use reasons of their own.
const GROUPS: usize = 500;

/// Kept messages, in groups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct KeptReport {
    /// Messages in the queue.
    pub waiting: u64,
    /// How many of them were examined; the first ones, if not all.
    pub examined: u64,
    /// The groups, by app and reason.
    pub groups: Vec<KeptGroup>,
    /// Messages that found no group because there are too many.
    pub other: Option<Group>,
    /// The checks that were not possible, and why.
    pub unchecked: Vec<String>,
    /// How many the broker should have delivered but did not.
    pub withheld: u64,
    /// What ended the run early.
    pub failure: Option<String>,
}

/// The messages of one app with one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct KeptGroup {
    /// The app, and why the messages are here.
    #[serde(flatten)]
    pub cause: KeptCause,
    /// Whether a queue is bound for the app now; `None` if that is unknown or makes no difference.
    pub bound: Option<bool>,
    /// The number of messages, and since when.
    #[serde(flatten)]
    pub group: Group,
}

/// One message, and why it is here.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct KeptMessage {
    /// The app, and why the message is here.
    #[serde(flatten)]
    pub cause: KeptCause,
    /// The routing key with which it was published, if it has another one here: it came through a gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_key: Option<String>,
    /// The message.
    #[serde(flatten)]
    pub sample: Sample,
}

impl KeptReport {
    /// A report about `waiting` messages, with `examined` examined ones.
    #[must_use]
    pub fn new((waiting, examined): (u64, u64), groups: Vec<KeptGroup>) -> Self {
        Self { waiting, examined, groups, other: None, unchecked: Vec::new(), withheld: 0, failure: None }
    }

    /// This report and the report of another queue together.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.waiting += other.waiting;
        self.examined += other.examined;
        self.groups.extend(other.groups);
        self.other = match (self.other, other.other) {
            (Some(one), Some(other)) => Some(one.and(&other)),
            (one, other) => one.or(other),
        };
        self.unchecked.extend(other.unchecked);
        self.withheld += other.withheld;
        self.failure = self.failure.or(other.failure);
        self
    }
}

impl KeptGroup {
    /// Messages for this app, with this reason.
    #[must_use]
    pub fn new(app: Option<&str>, reason: &str, group: Group) -> Self {
        Self { cause: KeptCause::new(app.map(str::to_owned), reason, None), bound: None, group }
    }
}

impl Kept {
    /// Counts the messages by app and reason. Examines `limit` messages at most.
    ///
    /// # Errors If the broker cannot be asked, or reading is not safe.
    pub fn list(
        &self,
        settings: &Settings,
        topology: &Topology,
        limit: u64,
        progress: impl FnMut(Progress),
    ) -> Result<KeptReport, AdminError> {
        let bound = match self {
            Self::Unroutable | Self::Guarded(_) => Some(self.bound(settings, topology)?),
            Self::Parked | Self::Recalled(_) => None,
        };
        let known = bound.as_ref().and_then(|bound| bound.as_ref().ok());
        let with_bound = |seen: Seen<'_>| {
            let cause = self.cause(topology, &seen);
            let bound = known.and_then(|bound| self.is_bound(topology, bound, &cause, &seen));
            (cause, bound)
        };
        let of = |delivery: &Delivery| with_bound(delivery.into());
        let of_foreign = |message: &Foreign| with_bound(message.into());
        let queue = &self.queue(topology);
        let (drained, census) = count((settings, queue), (limit, GROUPS), of, of_foreign, progress)
            .map_err(|error| self.told(settings, topology, error))?;
        let groups = census.groups().iter().map(|((cause, bound), group)| KeptGroup {
            bound: *bound,
            cause: cause.clone(),
            group: group.clone(),
        });
        let unchecked = match &bound {
            Some(Err(reason)) => vec![format!("which queues are bound now: {reason}")],
            _ => Vec::new(),
        };
        Ok(KeptReport {
            waiting: drained.waiting,
            examined: drained.examined,
            groups: groups.collect(),
            other: census.other().cloned(),
            unchecked,
            withheld: drained.withheld,
            failure: drained.failure,
        })
    }

    /// Hands `count` selected messages to `each`, with `body_bytes` of their bodies. Reads no further than
    /// necessary.
    ///
    /// # Errors If the broker cannot be asked, or reading is not safe.
    pub fn messages(
        &self,
        settings: &Settings,
        topology: &Topology,
        selection: &Selection,
        (count, body_bytes): (usize, usize),
        each: impl FnMut(KeptMessage),
    ) -> Result<Drained, AdminError> {
        let queue = &self.queue(topology);
        let selected = |seen: Seen<'_>| {
            let cause = self.cause(topology, &seen);
            selection.fits(&cause, &seen).then(|| (cause, self.own_key(topology, &seen)))
        };
        // No more messages than necessary are taken out of the queue.
        let limit = if selection.is_everything() { count as u64 } else { u64::MAX };
        let mut passed = past(settings, queue, limit, || {
            let enough = AtomicBool::new(count == 0);
            let mut found = Vec::new();
            let drained = Drain::new(settings, queue).at_most(limit).until(&enough).run(
                |delivery| {
                    if found.len() < count
                        && let Some((cause, own_key)) = selected(delivery.into())
                    {
                        found.push(KeptMessage { cause, own_key, sample: Sample::new(delivery, body_bytes) });
                        enough.store(found.len() == count, Ordering::Relaxed);
                    }
                    Decision::Keep
                },
                |_| {},
            )?;
            Ok((drained, found))
        })
        .map_err(|error| self.told(settings, topology, error))?;
        passed.aside.keep(&mut passed.drained);
        let foreign = passed.aside.messages().filter_map(|message| {
            let sample = || Sample::of_foreign(message, body_bytes);
            selected(message.into()).map(|(cause, own_key)| KeptMessage { cause, own_key, sample: sample() })
        });
        foreign.chain(passed.value).take(count).for_each(each);
        Ok(passed.drained)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_reports_are_one() {
        let group = |count| Group { count, bytes: 10 * count, ..Group::default() };
        let report = |app, count, other: Option<u64>, failure: Option<&str>| KeptReport {
            other: other.map(group),
            failure: failure.map(str::to_owned),
            withheld: 1,
            unchecked: vec![format!("of {app}")],
            ..KeptReport::new((count + 1, count), vec![KeptGroup::new(Some(app), "recalled", group(count))])
        };
        let both = report("a", 3, Some(1), None).and(report("b", 4, Some(2), Some("gone")));
        assert_eq!((both.waiting, both.examined, both.withheld), (9, 7, 2));
        assert_eq!(both.groups.iter().map(|it| it.group.count).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(both.other, Some(group(3)));
        assert_eq!((both.unchecked.len(), both.failure.as_deref()), (2, Some("gone")));
        assert_eq!(report("a", 3, None, None).and(report("b", 4, Some(2), None)).other, Some(group(2)));
    }
}
