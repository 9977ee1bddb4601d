//! Messages over which the broker closes every AMQP 0-9-1 connection to which it delivers
//! them.
//!
//! The broker requeues such a message at the head of its queue, where it is delivered to the next
//! connection. So all messages behind it would wait forever. Over AMQP 1.0 it can be read (see
//! [`amqp::v1`](delayline_amqp::v1)) and rejected. Then the broker dead-letters it from the queue,
//! unchanged. The broker does not report which of the messages at the head caused the crash.

use std::{collections::BTreeSet, fmt::Display};

use delayline_amqp::{
    AmqpError,
    broker::Broker,
    v1::{Disposition, Foreign, Oddity, Receiver},
};

/// How many messages are examined at a time, and per turn.
const SWEEP: (u32, u32) = (1_000, 100);

/// After this many bytes, one message is enough.
const BYTES: u64 = 64 * 1024 * 1024;

/// After this many crashes while no other message was held, the first delivered message is to
/// blame, whatever it contains.
const STRIKES: u32 = 5;

/// The facts about such messages.
#[derive(Debug)]
pub(crate) struct Poison {
    /// The broker's version, as far as known.
    pub(crate) broker: Option<String>,
    /// Values over which the broker is known to crash.
    proven: BTreeSet<Oddity>,
    /// Whether to take messages one at a time, so that no innocent message is held at the next
    /// crash.
    alone: bool,
    strikes: u32,
}

impl Default for Poison {
    fn default() -> Self {
        Self { broker: None, proven: Oddity::CERTAIN.into(), alone: false, strikes: 0 }
    }
}

impl Poison {
    /// Whether to take messages one at a time.
    pub(crate) fn alone(&self) -> bool {
        self.alone
    }

    /// Messages were taken one at a time for a while without a crash.
    pub(crate) fn went_well(&mut self) {
        (self.alone, self.strikes) = (false, 0);
    }

    /// The broker crashed, perhaps over a message. `unchecked` means that no other message was
    /// held. Makes the broker move the message, if it can be identified, and returns it.
    ///
    /// # Errors
    /// AMQP 1.0 is not available.
    pub(crate) fn crashed(
        &mut self,
        broker: &Broker,
        queue: &str,
        unchecked: bool,
    ) -> Result<Vec<Foreign>, AmqpError> {
        let exact = self.alone && unchecked;
        self.strikes += u32::from(exact);
        self.alone = true;
        let mut receiver = Receiver::open(broker, queue, self.broker.as_deref())?;
        let mut met = Vec::new();
        let (mut bytes, mut last) = (0, SWEEP.1);
        while last == SWEEP.1 && met.len() < SWEEP.0 as usize && bytes < BYTES {
            last = receiver.take(SWEEP.1, |id, mut message| {
                bytes += message.bytes;
                // Only the description in the message is useful here.
                (message.body, message.headers, message.properties) = Default::default();
                met.push((id, message));
            })?;
        }
        let guilty = self.judge(met.iter().map(|(_, message)| message), exact);
        let (moved, others): (Vec<_>, Vec<_>) =
            met.into_iter().enumerate().partition(|(index, _)| guilty.contains(index));
        receiver.settle(moved.iter().map(|(_, (id, _))| *id), Disposition::Rejected)?;
        receiver.settle(others.iter().map(|(_, (id, _))| *id), Disposition::Released)?;
        receiver.close();
        if !moved.is_empty() {
            self.went_well();
        }
        Ok(moved.into_iter().map(|(_, (_, message))| message).collect())
    }

    /// The positions of the messages that caused the crash. `exact` means that the first
    /// redelivered message is most likely a cause.
    fn judge<'a>(
        &mut self,
        messages: impl Iterator<Item = &'a Foreign> + Clone,
        exact: bool,
    ) -> BTreeSet<usize> {
        let proven = |message: &Foreign| message.oddities.keys().any(|oddity| self.proven.contains(oddity));
        let found: BTreeSet<_> = messages
            .clone()
            .enumerate()
            .filter(|(_, message)| proven(message))
            .map(|(index, _)| index)
            .collect();
        if !found.is_empty() || !exact {
            return found;
        }
        let mut met_before = messages.enumerate().filter(|(_, message)| message.redelivered);
        let odd = met_before.clone().find(|(_, message)| !message.oddities.is_empty());
        match odd {
            Some((index, message)) => {
                if let (1, Some(oddity)) = (message.oddities.len(), message.oddities.keys().next()) {
                    self.proven.insert(*oddity);
                }
                [index].into()
            }
            None if self.strikes >= STRIKES => {
                met_before.next().map(|(index, _)| index).into_iter().collect()
            }
            None => BTreeSet::new(),
        }
    }
}

/// Advice for an operator if such a message cannot be moved.
pub(crate) fn unread(queue: &str, why: &dyn Display) -> String {
    format!(
        "the broker crashes over a message in `{queue}` that AMQP 0-9-1 cannot carry, and the messages \
         behind it wait. It cannot be moved over AMQP 1.0: {why}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(oddities: &[Oddity], redelivered: bool) -> Foreign {
        let oddities = oddities.iter().map(|oddity| (*oddity, String::new())).collect();
        Foreign { oddities, redelivered, ..Foreign::default() }
    }

    fn judged(poison: &mut Poison, messages: &[Foreign], exact: bool) -> Vec<usize> {
        poison.judge(messages.iter(), exact).into_iter().collect()
    }

    #[test]
    fn known_causes_are_found_everywhere() {
        let messages = [
            message(&[], true),
            message(&[Oddity::Char], false),
            message(&[Oddity::Decimal], true),
            message(&[Oddity::Time, Oddity::LongType], true),
        ];
        for exact in [false, true] {
            assert_eq!(judged(&mut Poison::default(), &messages, exact), [1, 3]);
        }
    }

    #[test]
    fn an_unknown_cause_is_learnt_from_a_single_suspect() {
        let messages = [
            message(&[Oddity::Decimal], false),
            message(&[], true),
            message(&[Oddity::NotFinite], true),
            message(&[Oddity::NotFinite], false),
        ];
        let mut poison = Poison::default();
        assert!(judged(&mut poison, &messages, false).is_empty());
        assert_eq!(judged(&mut poison, &messages, true), [2]);
        assert_eq!(judged(&mut poison, &messages, false), [2, 3]);
        // The cause may be either of two.
        let two = [message(&[Oddity::Decimal, Oddity::Time], true)];
        assert_eq!(judged(&mut poison, &two, true), [0]);
        assert!(judged(&mut poison, &two, false).is_empty());
    }

    #[test]
    fn without_any_sign_it_is_the_first_one_after_some_crashes() {
        let messages = [message(&[], false), message(&[], true), message(&[], true)];
        let mut poison = Poison { strikes: STRIKES - 1, ..Poison::default() };
        assert!(judged(&mut poison, &messages, true).is_empty());
        poison.strikes = STRIKES;
        assert!(judged(&mut poison, &messages, false).is_empty());
        assert_eq!(judged(&mut poison, &messages, true), [1]);
    }
}
