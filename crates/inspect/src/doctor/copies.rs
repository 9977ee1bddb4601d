//! Messages that entered the levels more than once.
//!
//! A message enters one level. Every further key in its header `CC` or `BCC` makes another copy of it
//! there, which each level on the way copies again. Then more messages enter the levels than are published,
//! and brokers count both. Messages between two levels are not counted.

use delayline_core::shell::command;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

use crate::{doctor::evidence::Evidence, finding::Finding, finding::FindingCode};
use delayline_broker::{
    ExchangeInfo, Grants, ManagementApi, ManagementError, QueueInfo, Route, Snapshot, escape, permits,
};
use delayline_core::{
    codec::{AppKey, Delay, RoutingKey},
    topology::{Endpoint, Topology},
};
use delayline_messages::{number::counted, number::grouped};

/// The period to look back over, in seconds; brokers keep such figures for this long by
/// default.
const HISTORY: u32 = 600;

/// By how many samples of ten seconds a queue's count may be ahead of an exchange's: each is renewed every
/// five seconds.
const APART: usize = 2;

/// The published messages, and how many more entered the levels.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Copies {
    published: u64,
    /// At least this many are copies.
    extra: u64,
    /// How much each user published in this vhost, over connections that are open.
    users: BTreeMap<String, u64>,
}

/// Asks for the messages published recently; `None` if no more than these entered the levels.
pub(super) fn count(
    api: &ManagementApi,
    topology: &Topology,
    snapshot: &Snapshot,
) -> Result<Option<Copies>, ManagementError> {
    let ways = ways_in(topology, snapshot);
    let set = format!("^{}", escape(topology.settings().set.as_str()));
    let is_ours = |name: &String| topology.exchanges().any(|exchange| exchange.name == *name);
    let exchanges = ways.iter().all(is_ours).then_some(set.as_str());
    let levels = snapshot.queues.keys().map(String::as_str);
    let levels: Vec<_> = levels.filter(|name| topology.names().hop_of(name).is_some()).collect();
    let levels = (levels.into_iter(), snapshot.queues_in_all);
    let (levels, exchanges) = api.publish_histories(&snapshot.vhost, HISTORY, levels, exchanges)?;
    let ways: Vec<_> = exchanges.iter().filter(|it| ways.contains(&it.name)).collect();
    let (published, extra) = compare(&ways, &levels);
    if extra == 0 {
        return Ok(None);
    }
    let mut users: BTreeMap<String, u64> = BTreeMap::new();
    for channel in api.channels(&snapshot.vhost)? {
        *users.entry(channel.user).or_default() += channel.message_stats.publish;
    }
    users.retain(|_, published| *published > 0);
    Ok(Some(Copies { published, extra, users }))
}

/// The exchanges through which a message can enter the levels.
fn ways_in(topology: &Topology, snapshot: &Snapshot) -> BTreeSet<String> {
    let names = topology.names();
    let mut ways: BTreeSet<_> = topology
        .exchanges()
        .map(|exchange| exchange.name.clone())
        .filter(|name| *name != names.dispatch())
        .collect();
    loop {
        let ends: Vec<_> = ways.iter().cloned().map(Endpoint::Exchange).collect();
        let bound = ends.iter().flat_map(|end| snapshot.bindings_to(end));
        let bound = bound.map(|binding| binding.source.clone());
        let alternate = |exchange: &&ExchangeInfo| {
            let to = exchange.arguments.get("alternate-exchange").and_then(Json::as_str);
            to.is_some_and(|to| ways.contains(to) && to != names.unroutable())
        };
        let behind = snapshot.exchanges.values().filter(alternate).map(|exchange| exchange.name.clone());
        let more: Vec<_> = bound.chain(behind).filter(|name| !ways.contains(name)).collect();
        if more.is_empty() {
            return ways;
        }
        ways.extend(more);
    }
}

/// How many messages were published, and how many more entered the levels for certain.
fn compare(ways: &[&ExchangeInfo], levels: &[QueueInfo]) -> (u64, u64) {
    let ways: Vec<_> = ways.iter().map(|it| it.message_stats.publish_in_details.history()).collect();
    let levels: Vec<_> = levels.iter().map(|it| it.message_stats.publish_details.history()).collect();
    let published = ways.iter().map(|history| grown(history, 0)).sum();
    let entered: u64 = levels.iter().map(|history| grown(history, APART)).sum();
    let unexplained: u64 = levels.iter().map(|history| unexplained(history, &ways)).sum();
    (published, entered.saturating_sub(unexplained).saturating_sub(published))
}

/// By how much a count grew, without `ends` samples at both ends.
fn grown(history: &[u64], ends: usize) -> u64 {
    match history.len().checked_sub(ends + 1) {
        Some(last) if last >= ends => history[last].saturating_sub(history[ends]),
        _ => 0,
    }
}

/// By how much it grew from sample to sample, the latest first.
fn steps(history: &[u64]) -> impl Iterator<Item = u64> {
    history.windows(2).rev().map(|two| two[1].saturating_sub(two[0]))
}

/// How many messages entered a level while none was published. An exchange that was deleted and declared
/// again counts from 0, also for the time before, so its earlier messages would look like copies.
fn unexplained(level: &[u64], ways: &[Vec<u64>]) -> u64 {
    let entered: Vec<_> = steps(level).collect();
    let mut published = vec![0; entered.len() + APART];
    for way in ways {
        published.iter_mut().zip(steps(way)).for_each(|(all, more)| *all += more);
    }
    let any = |counts: &[u64], from: usize, to: usize| {
        counts.iter().take(to + 1).skip(from).any(|count| *count > 0)
    };
    // Matching counts of a queue and of an exchange are sometimes a sample apart. They are two apart only
    // if the queue has no nearer sample.
    let belongs = |at: usize, to: usize| match at.abs_diff(to) {
        0 | 1 => true,
        apart => !any(&entered, to.saturating_sub(apart - 1), to + apart - 1),
    };
    let explained = |at: usize| {
        let around = at.saturating_sub(APART)..=at + APART;
        around.into_iter().any(|to| published.get(to).is_some_and(|count| *count > 0) && belongs(at, to))
    };
    // The same number of samples that `grown` leaves out at both ends.
    let inner = entered.iter().enumerate().skip(APART).take(entered.len().saturating_sub(2 * APART));
    let alone = inner.filter(|(at, more)| **more > 0 && !explained(*at));
    alone.map(|(_, more)| more).sum()
}

pub(super) fn check(topology: &Topology, evidence: &Evidence, targets: &[Route<'_>]) -> Option<Finding> {
    let copies = evidence.copies.as_ref()?;
    let apps: BTreeSet<_> = targets.iter().filter_map(|target| AppKey::new(&target.app).ok()).collect();
    let mut users: Vec<_> = copies.users.iter().collect();
    users.sort_by_key(|(_, published)| std::cmp::Reverse(**published));
    let (mut who, mut concerned) = (Vec::new(), BTreeSet::new());
    for (user, published) in users {
        let of = publishes(topology, evidence.snapshot.grants.as_ref(), user, &apps);
        if of.as_ref().is_some_and(BTreeSet::is_empty) {
            continue;
        }
        let of = of.unwrap_or_default();
        let for_whom = match of.len() {
            0 => String::new(),
            1..=5 => {
                let names: Vec<_> = of.iter().map(|app| format!("`{app}`")).collect();
                format!(", for {}", names.join(", "))
            }
            many => format!(", for any of {many} applications"),
        };
        who.push(format!("`{user}` ({}{for_whom})", counted(*published, "message")));
        concerned.extend(of);
    }
    let who = match who.is_empty() {
        true => "no user with the right to publish is connected now".into(),
        false => format!("connected and publishing: {}", who.join(", ")),
    };
    let Copies { published, extra, .. } = copies;
    Some(
        Finding::new(
            FindingCode::MultipliedMessages,
            format!("exchange `{}`", topology.names().entry()),
            format!(
                "{} messages were published in the last ten minutes, and at least {} copies of \
                 them entered the levels as well, where each level copies them again: a publisher sets the \
                 header CC or BCC, unless the exchange was deleted and declared again just then; {who}",
                grouped(*published),
                grouped(*extra)
            ),
            format!(
                "remove that user's right to publish and close its connections, then discard the \
                 application's messages in the levels (`{}`); docs/explanation/security.md has the commands",
                command(&["app", "discard", "APP"])
            ),
        )
        .about(concerned),
    )
}

/// The applications that a user may publish for; `None` if they are unknown.
fn publishes(
    topology: &Topology,
    grants: Option<&Grants>,
    user: &str,
    apps: &BTreeSet<AppKey>,
) -> Option<BTreeSet<AppKey>> {
    let grants = grants?;
    let Some(permission) = grants.permissions.get(user) else {
        return Some(BTreeSet::new());
    };
    let entry = topology.names().entry();
    let may = permits(&permission.write, &entry).unwrap_or(true);
    let key = |app: &AppKey| {
        let key = RoutingKey::new(Delay::ZERO, app.clone()).encode();
        grants.may_publish_key(user, &entry, &key).unwrap_or(true)
    };
    Some(apps.iter().filter(|app| may && key(app)).cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(samples: &[u64]) -> Json {
        let samples: Vec<_> =
            samples.iter().rev().map(|sample| serde_json::json!({ "sample": sample })).collect();
        serde_json::json!({ "samples": samples })
    }

    fn queue(samples: &[u64]) -> QueueInfo {
        let stats = serde_json::json!({ "message_stats": { "publish_details": history(samples) } });
        serde_json::from_value(stats).unwrap()
    }

    fn exchange(samples: &[u64]) -> ExchangeInfo {
        let stats = serde_json::json!({ "message_stats": { "publish_in_details": history(samples) } });
        serde_json::from_value(stats).unwrap()
    }

    #[test]
    fn only_messages_that_are_copies_for_certain_count() {
        for (published, entered, expected) in [
            (&[][..], &[][..], (0, 0)),
            // The same number, and a count that is ten seconds ahead at either end.
            (&[0, 0, 0, 50, 50, 50, 50, 50], &[0, 0, 0, 50, 50, 50, 50, 50], (50, 0)),
            (&[0, 0, 0, 0, 0, 0, 0, 0], &[0, 0, 0, 0, 0, 0, 90, 90], (0, 0)),
            (&[7, 90, 90, 90, 90, 90, 90, 90], &[90, 90, 90, 90, 90, 90, 90, 90], (83, 0)),
            // Three of each.
            (&[5, 5, 5, 25, 25, 25, 25, 25], &[15, 15, 15, 75, 75, 75, 75, 75], (20, 40)),
            // Messages published without a delay make the difference smaller.
            (&[0, 0, 0, 50, 50, 50, 50, 50], &[0, 0, 0, 60, 60, 60, 60, 60], (50, 10)),
            // An exchange that was declared again counts from 0.
            (
                &[0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 3, 3, 3],
                &[0, 0, 0, 40, 40, 40, 40, 40, 40, 43, 43, 43, 43],
                (3, 0),
            ),
            (
                &[0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 3, 3, 3],
                &[0, 0, 0, 40, 40, 40, 40, 40, 40, 49, 49, 49, 49],
                (3, 6),
            ),
            (&[0, 0, 0, 0, 0, 0, 3, 3, 3, 3], &[0, 0, 0, 0, 40, 40, 43, 43, 43, 43], (3, 0)),
            (&[0, 0, 0, 0, 0, 0, 3, 3, 3, 3], &[0, 0, 0, 0, 40, 40, 40, 40, 40, 40], (3, 37)),
            // A broker that was started anew counts from 0.
            (&[900, 900, 0, 0, 0, 0, 0, 0], &[900, 900, 0, 0, 0, 0, 0, 0], (0, 0)),
        ] {
            let (way, level) = (exchange(published), queue(entered));
            assert_eq!(compare(&[&way], &[level]), expected, "{published:?} {entered:?}");
        }
        let (one, two) = (exchange(&[0, 10, 10, 10, 10, 10]), exchange(&[0, 5, 5, 5, 5, 5]));
        let level = queue(&[0, 0, 0, 9, 9, 9]);
        assert_eq!(compare(&[&one, &two], &[level.clone(), level]), (15, 3));
    }
}
