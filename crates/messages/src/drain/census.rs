//! Counting messages by any key.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use delayline_amqp::{Delivery, v1::Foreign};
use delayline_core::{
    message::{Value, asks_to_be_held, crashes_streams, headers},
    topology::Queue,
};
use delayline_settings::Settings;

use super::{Decision, Drain, DrainError, Drained, Progress, past};

/// Groups of messages, and the size of each.
///
/// The number of groups is bounded, since a hostile publisher may control part of the key. Messages beyond
/// it are counted as `other`.
#[derive(Debug, Clone)]
pub struct Census<K> {
    groups: BTreeMap<K, Group>,
    limit: usize,
    other: Group,
}

/// Messages that have the same key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Group {
    /// The number of messages.
    pub count: u64,
    /// The size of all their bodies, in bytes.
    pub bytes: u64,
    /// How many have headers or properties that cannot be read here.
    pub unreadable: u64,
    /// How many have a header, `x-opt-delivery-time` or `x-opt-delivery-delay`, that would
    /// make a quorum queue of a coming RabbitMQ hold them back.
    pub held_back: u64,
    /// How many no stream can store, such as a journal.
    pub crashing: u64,
    /// When the oldest arrived here; `None` if no message says.
    pub oldest: Option<Timestamp>,
    /// When the newest arrived here.
    pub newest: Option<Timestamp>,
}

impl<K: Ord> Census<K> {
    /// Counts into `limit` groups at most.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { groups: BTreeMap::new(), limit, other: Group::default() }
    }

    /// Counts a message into a group.
    pub fn add(&mut self, key: K, delivery: &Delivery) {
        let group = self.group(key);
        group.add(delivery.body.len(), arrived(delivery));
        group.unreadable += u64::from(delivery.damaged);
        group.held_back += u64::from(asks_to_be_held(&delivery.headers));
        group.crashing += u64::from(crashes_streams(&delivery.properties, &delivery.headers).is_some());
    }

    /// Counts a message with so many bytes that AMQP 0-9-1 cannot carry.
    fn add_unreadable(&mut self, key: K, bytes: usize) {
        let group = self.group(key);
        group.add(bytes, None);
        group.unreadable += 1;
    }

    fn group(&mut self, key: K) -> &mut Group {
        match self.groups.len() >= self.limit && !self.groups.contains_key(&key) {
            true => &mut self.other,
            false => self.groups.entry(key).or_default(),
        }
    }

    /// The groups, in the order of their keys.
    #[must_use]
    pub fn groups(&self) -> &BTreeMap<K, Group> {
        &self.groups
    }

    /// Messages that found no group, if any.
    #[must_use]
    pub fn other(&self) -> Option<&Group> {
        (self.other.count > 0).then_some(&self.other)
    }
}

/// Counts the messages of a queue, including those that AMQP 0-9-1 cannot carry, and changes nothing.
/// Examines `limit` messages at most, in `groups` groups at most. `of` returns the key of a message,
/// `of_foreign` the key of a message that AMQP 0-9-1 cannot carry.
///
/// # Errors Why nothing was touched.
pub fn count<K: Ord>(
    (settings, queue): (&Settings, &Queue),
    (limit, groups): (u64, usize),
    of: impl Fn(&Delivery) -> K,
    of_foreign: impl Fn(&Foreign) -> K,
    mut progress: impl FnMut(Progress),
) -> Result<(Drained, Census<K>), DrainError> {
    let mut passed = past(settings, queue, limit, || {
        let mut census = Census::new(groups);
        let drained = Drain::new(settings, queue).at_most(limit).run(
            |delivery| {
                census.add(of(delivery), delivery);
                Decision::Keep
            },
            &mut progress,
        )?;
        Ok((drained, census))
    })?;
    passed.aside.keep(&mut passed.drained);
    for message in passed.aside.messages() {
        passed.value.add_unreadable(of_foreign(message), message.body_len());
    }
    Ok((passed.drained, passed.value))
}

impl Group {
    /// The messages of both.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        Self {
            count: self.count + other.count,
            bytes: self.bytes + other.bytes,
            unreadable: self.unreadable + other.unreadable,
            held_back: self.held_back + other.held_back,
            crashing: self.crashing + other.crashing,
            oldest: self.oldest.into_iter().chain(other.oldest).min(),
            newest: self.newest.into_iter().chain(other.newest).max(),
        }
    }

    fn add(&mut self, bytes: usize, arrived: Option<Timestamp>) {
        self.count += 1;
        self.bytes += bytes as u64;
        self.oldest = self.oldest.into_iter().chain(arrived).min();
        self.newest = self.newest.into_iter().chain(arrived).max();
    }
}

/// When a message came into the queue, to be shown: as in [`recorded`], or its due time. Never the property
/// `timestamp`, which a publisher may set to any value.
#[must_use]
pub fn arrived(delivery: &Delivery) -> Option<Timestamp> {
    recorded(delivery).or_else(|| milliseconds(delivery, headers::DUE))
}

/// When a message came into the queue, according to the broker or to us: the last dead-lettering, or else
/// the last failure. Only this time is good enough to discard a message by its age.
#[must_use]
pub fn recorded(delivery: &Delivery) -> Option<Timestamp> {
    last_death(&delivery.headers).or_else(|| milliseconds(delivery, headers::LAST_FAILED))
}

fn milliseconds(delivery: &Delivery, name: &str) -> Option<Timestamp> {
    Timestamp::from_millisecond(delivery.headers.get(name)?.as_i64()?).ok()
}

/// The latest time in `x-death`.
fn last_death(headers: &delayline_core::message::Headers) -> Option<Timestamp> {
    let Some(Value::Array(deaths)) = headers.get("x-death") else { return None };
    deaths
        .iter()
        .filter_map(|death| match death {
            Value::Table(death) => Timestamp::from_second(death.get("time")?.as_i64()?).ok(),
            _ => None,
        })
        .max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use delayline_core::message::Headers;

    #[test]
    fn a_group_has_the_oldest_and_newest_time() {
        let mut group = Group::default();
        for second in [None, Some(5), Some(3), Some(9), None] {
            group.add(10, second.map(|second| Timestamp::from_second(second).unwrap()));
        }
        assert_eq!((group.count, group.bytes), (5, 50));
        let seconds = [group.oldest, group.newest].map(|time| time.unwrap().as_second());
        assert_eq!(seconds, [3, 9]);
    }

    #[test]
    fn the_last_death_counts() {
        let death = |second| Value::Table(Headers::from([("time".into(), Value::Timestamp(second))]));
        let deaths = Value::Array(vec![death(7), death(9), Value::Void, Value::Table(Headers::new())]);
        let headers = Headers::from([("x-death".into(), deaths)]);
        assert_eq!(last_death(&headers).unwrap().as_second(), 9);
        assert_eq!(last_death(&Headers::new()), None);
        assert_eq!(last_death(&Headers::from([("x-death".into(), Value::I32(1))])), None);
    }
}
