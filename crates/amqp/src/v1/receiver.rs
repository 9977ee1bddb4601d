//! One link that takes messages from a queue and decides about each.

use std::{
    fmt,
    ops::RangeInclusive,
    thread,
    time::{Duration, Instant},
};

use crate::{
    broker::{Broker, Credentials},
    connection::at_first_node,
    consumer::settle,
    error::AmqpError,
};
use delayline_core::percent;

use super::{
    foreign::Foreign,
    frames::{AMQP, FRAME, Field, Frames, SASL},
    wire::{Fields, Value, value},
};

/// How many bytes of a message are kept: all headers, and the body's first part.
const KEPT: usize = 1024 * 1024;

/// How many transfers the broker may send before an update from this side: the maximum.
const WINDOW: u32 = i32::MAX.cast_unsigned();

/// What to do with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// The queue deletes it.
    Accepted,
    /// The queue dead-letters it, or deletes it if it has no dead-letter exchange.
    Rejected,
    /// It returns to its place in the queue.
    Released,
}

impl Disposition {
    fn code(self) -> u8 {
        match self {
            Self::Accepted => 0x24,
            Self::Rejected => 0x25,
            Self::Released => 0x26,
        }
    }
}

/// A connection with one link on one queue. Closing it requeues unsettled messages.
pub struct Receiver {
    frames: Frames,
    transfers: u32,
    /// The link's count of deliveries, which also counts unused credit.
    count: u32,
}

/// A message that is not complete yet.
#[derive(Default)]
struct Partial {
    id: u32,
    kept: Vec<u8>,
    bytes: u64,
}

impl Receiver {
    /// Connects to the first of the broker's nodes that accepts the login, and attaches to a queue.
    /// `version` is the broker's, such as `4.0.5`.
    ///
    /// # Errors
    /// The broker is unreachable, refuses, or does not speak AMQP 1.0.
    pub fn open(broker: &Broker, queue: &str, version: Option<&str>) -> Result<Self, AmqpError> {
        if is_older(version) {
            let reason = "messages of RabbitMQ before 4.0 cannot be read over AMQP 1.0".into();
            return Err(AmqpError::Refused { address: broker.to_string(), reason });
        }
        let queue = queue.to_owned();
        at_first_node(broker, move |node| Self::open_at(node, &queue))
    }

    fn open_at(broker: &Broker, queue: &str) -> Result<Self, AmqpError> {
        let mut receiver = Self { frames: Frames::open(broker)?, transfers: 0, count: 0 };
        receiver.log_in(broker)?;
        receiver.attach(broker, queue)?;
        Ok(receiver)
    }

    fn log_in(&mut self, broker: &Broker) -> Result<(), AmqpError> {
        let (mechanism, response) = match &broker.credentials {
            Credentials::Plain { username, password } => {
                ("PLAIN", format!("\0{username}\0{}", password.current().expose()))
            }
            Credentials::External => ("EXTERNAL", String::new()),
        };
        self.frames.greet(SASL)?;
        self.frames.expect(&[0x40])?;
        let init = Fields::default().symbol(mechanism).bytes(response.as_bytes()).describe(0x41);
        self.frames.write(1, &init)?;
        if !matches!(self.frames.expect(&[0x44])?.first(), Some(Field::Number(0))) {
            return Err(self
                .frames
                .refused("the user or its password was not accepted over AMQP 1.0".into()));
        }
        self.frames.greet(AMQP)
    }

    fn attach(&mut self, broker: &Broker, queue: &str) -> Result<(), AmqpError> {
        let name = format!("delayline {}", env!("CARGO_PKG_VERSION"));
        let open =
            Fields::default().text(&name).text(&format!("vhost:{}", broker.vhost)).uint(FRAME).ushort(0);
        self.frames.write(0, &open.describe(0x10))?;
        self.frames.opened();
        let begin = Fields::default().null().uint(0).uint(WINDOW).uint(WINDOW);
        self.frames.write(0, &begin.describe(0x11))?;
        let begun = self.frames.expect(&[0x11])?;
        // Brokers start counting at any number.
        if let Some(Field::Number(first)) = begun.get(1) {
            self.transfers = u32::try_from(*first).unwrap_or(0);
        }
        let address = format!("/queues/{}", percent::encode(queue));
        let (source, target) = (Fields::default().text(&address), Fields::default().text("here"));
        let attach = Fields::default()
            .text("delayline")
            .uint(0)
            .flag(true)
            // The broker does not settle automatically, and needs no second confirmation.
            .ubyte(0)
            .ubyte(0)
            .nested(0x28, source)
            .nested(0x29, target);
        self.frames.write(0, &attach.describe(0x12))?;
        let fields = self.frames.expect(&[0x12])?;
        // A link that returns without a source is about to be detached, with the reason.
        if !matches!(fields.get(5), Some(Field::List)) {
            self.frames.expect(&[])?;
        }
        self.count = match fields.get(9) {
            Some(Field::Number(count)) => u32::try_from(*count).unwrap_or(0),
            _ => 0,
        };
        Ok(())
    }

    /// Takes the available messages, up to `most`, and passes each to the caller with the number
    /// that settles it. This call settles none.
    ///
    /// # Errors
    /// The connection is lost; the broker requeues all messages.
    pub fn take(&mut self, most: u32, mut each: impl FnMut(u32, Foreign)) -> Result<u32, AmqpError> {
        let flow = Fields::default()
            .uint(self.transfers)
            .uint(WINDOW)
            .uint(0)
            .uint(WINDOW)
            .uint(0)
            .uint(self.count)
            .uint(most)
            .null()
            // The broker reports that missing messages have used up the credit.
            .flag(true);
        self.frames.write(0, &flow.describe(0x13))?;
        // Once messages or the lack of them have used up the credit.
        self.count = self.count.wrapping_add(most);
        let (mut taken, mut partial) = (0, Partial::default());
        while taken < most {
            let (frame, code) = self.frames.frame(&[0x13, 0x14])?;
            let mut rest = &frame[..];
            let Some((_, Value::List(fields))) = value(&mut rest) else { continue };
            let fields: Vec<_> = fields.collect();
            if code == 0x13 {
                // An answer about an earlier credit may arrive late.
                let number = |index: usize| fields.get(index).and_then(Value::number);
                if number(5) == Some(self.count.into()) && number(6) == Some(0) {
                    break;
                }
                continue;
            }
            self.transfers = self.transfers.wrapping_add(1);
            if let Some(id) = fields.get(1).and_then(Value::number) {
                partial.id = u32::try_from(id).unwrap_or(u32::MAX);
            }
            partial.bytes += rest.len() as u64;
            let room = KEPT.saturating_sub(partial.kept.len());
            partial.kept.extend_from_slice(&rest[..rest.len().min(room)]);
            if fields.get(5) != Some(&Value::Bool(true)) {
                let Partial { id, kept, bytes } = std::mem::take(&mut partial);
                taken += 1;
                each(id, Foreign::read(&kept, bytes));
            }
        }
        Ok(taken)
    }

    /// Decides about messages, by their numbers in the order of arrival.
    ///
    /// # Errors
    /// The connection is lost. The broker requeues the messages without a decision.
    pub fn settle(
        &mut self,
        ids: impl IntoIterator<Item = u32>,
        outcome: Disposition,
    ) -> Result<(), AmqpError> {
        for range in ranges(ids) {
            let disposition = Fields::default()
                .flag(true)
                .uint(*range.start())
                .uint(*range.end())
                .flag(true)
                .nested(outcome.code(), Fields::default());
            self.frames.write(0, &disposition.describe(0x15))?;
        }
        Ok(())
    }

    /// Sends a heartbeat, if one is due. Call it every few seconds.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn beat(&mut self) -> Result<(), AmqpError> {
        self.frames.beat()
    }

    /// Ends cleanly, once the broker has seen all decisions.
    pub fn close(mut self) {
        settle();
        let _ = self.frames.write(0, &Fields::default().describe(0x18));
        let until = Instant::now() + Duration::from_secs(2);
        // Until the broker has closed as well.
        while Instant::now() < until && self.frames.frame(&[]).is_ok() {
            thread::yield_now();
        }
    }
}

/// Whether AMQP 1.0 is a plugin in this version. The plugin grants credit by other rules.
fn is_older(version: Option<&str>) -> bool {
    let major = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    major.is_some_and(|major| major < 4)
}

/// Consecutive numbers, grouped.
fn ranges(ids: impl IntoIterator<Item = u32>) -> Vec<RangeInclusive<u32>> {
    let mut ranges: Vec<RangeInclusive<u32>> = Vec::new();
    for id in ids {
        match ranges.last_mut() {
            Some(last) if last.end().checked_add(1) == Some(id) => *last = *last.start()..=id,
            _ => ranges.push(id..=id),
        }
    }
    ranges
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("count", &self.count).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_follow_each_other_are_settled_together() {
        assert_eq!(ranges([1, 2, 3, 7, 9, 10]), [1..=3, 7..=7, 9..=10]);
        assert_eq!(ranges([]), []);
        assert_eq!(ranges([u32::MAX, 0]), [u32::MAX..=u32::MAX, 0..=0]);
    }

    #[test]
    fn only_brokers_that_are_known_to_be_older_are_left_alone() {
        let older =
            [Some("3.10.8"), Some("3.13.7"), Some("4.0.5"), Some("10.0"), Some("?"), None].map(is_older);
        assert_eq!(older, [true, true, false, false, false, false]);
    }
}
