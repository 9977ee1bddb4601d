//! Publishing with confirms: the same for every layout.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use crossbeam_channel::RecvTimeoutError;
use delayline::{
    amqp::{Event, Publisher},
    broker::Broker,
    message::{Headers, Properties},
};

use super::Fallible;

/// The most messages without an answer: the router's default.
pub const WINDOW: usize = 1_000;

/// How long the broker may be silent while it owes answers.
const PATIENCE: Duration = Duration::from_secs(60);

/// How the broker is told what to do with a message.
#[derive(Debug, Clone, Default)]
pub struct Address {
    pub exchange: String,
    pub key: String,
    /// A time to live of its own, in milliseconds.
    pub expiration: Option<String>,
    pub headers: Headers,
    /// The name of a header that tells when the message is due, in ms since the epoch.
    pub due_header: Option<&'static str>,
}

/// What the broker said of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    None,
    Confirmed,
    Refused,
}

/// A connection in confirm mode. Messages are counted from 0.
pub struct Outbox {
    publisher: Publisher,
    pub book: Book,
    /// Messages that no queue took.
    pub returned: u64,
}

/// Which messages were answered.
#[derive(Debug, Default)]
pub struct Book {
    answers: Vec<Answer>,
    /// All before this one are answered.
    oldest: usize,
    in_flight: usize,
}

impl Book {
    pub fn add(&mut self) -> usize {
        self.answers.push(Answer::None);
        self.in_flight += 1;
        self.answers.len() - 1
    }

    /// Notes the answer to a tag, which counts from 1, or to all up to it. Returns
    /// which messages may have got it.
    pub fn settle(&mut self, tag: u64, multiple: bool, answer: Answer) -> Range<usize> {
        let last = usize::try_from(tag).unwrap_or(usize::MAX).min(self.answers.len());
        let first = if multiple { self.oldest } else { last.saturating_sub(1) };
        for slot in self.answers.get_mut(first..last).unwrap_or_default() {
            if *slot == Answer::None {
                *slot = answer;
                self.in_flight -= 1;
            }
        }
        while self.answers.get(self.oldest).is_some_and(|answer| *answer != Answer::None) {
            self.oldest += 1;
        }
        first..last
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub fn answers(&self) -> &[Answer] {
        &self.answers
    }
}

impl Outbox {
    pub fn open(broker: &Broker) -> Fallible<Self> {
        Ok(Self { publisher: Publisher::open(broker)?, book: Book::default(), returned: 0 })
    }

    /// Writes a message, and returns its number.
    pub fn publish(&mut self, address: &Address, headers: &Headers, body: &[u8]) -> usize {
        let properties = Properties { expiration: address.expiration.clone(), ..Properties::default() };
        self.publisher.publish(&address.exchange, address.key.clone(), &properties, headers, body);
        self.book.add()
    }

    /// Takes the broker's answers until then, or until it owes `at_most`. Returns
    /// whether that is so.
    pub fn settle(&mut self, at_most: usize, until: Instant) -> Fallible<bool> {
        self.settle_each(at_most, until, |_| {})
    }

    /// The same, telling of each range of messages that may have been answered.
    pub fn settle_each(
        &mut self,
        at_most: usize,
        until: Instant,
        mut answered: impl FnMut(Range<usize>),
    ) -> Fallible<bool> {
        loop {
            let event = match self.publisher.events().try_recv() {
                Ok(event) => event,
                Err(_) if self.book.in_flight <= at_most => return Ok(true),
                Err(_) => match self.publisher.events().recv_deadline(until) {
                    Ok(event) => event,
                    Err(RecvTimeoutError::Timeout) => return Ok(false),
                    Err(RecvTimeoutError::Disconnected) => Event::Ended,
                },
            };
            match event {
                Event::Ack { tag, multiple } => answered(self.book.settle(tag, multiple, Answer::Confirmed)),
                Event::Nack { tag, multiple } => answered(self.book.settle(tag, multiple, Answer::Refused)),
                Event::Returned(_) => self.returned += 1,
                Event::Blocked(reason) => eprintln!("   the broker takes no messages: {reason}"),
                Event::Unblocked => {}
                Event::Ended => return Err(self.publisher.end(Duration::from_secs(2)).into()),
            }
        }
    }

    /// Makes room for another message.
    pub fn make_room(&mut self) -> Fallible<()> {
        self.within_patience(WINDOW - 1)
    }

    /// Waits for all answers.
    pub fn finish(&mut self) -> Fallible<()> {
        self.within_patience(0)
    }

    fn within_patience(&mut self, at_most: usize) -> Fallible<()> {
        match self.settle(at_most, Instant::now() + PATIENCE)? {
            true => Ok(()),
            false => Err(format!("no answer from the broker within {PATIENCE:?}").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_answered_once() {
        let mut book = Book::default();
        for _ in 0..5 {
            book.add();
        }
        assert_eq!(book.settle(2, false, Answer::Refused), 1..2);
        assert_eq!(book.settle(4, true, Answer::Confirmed), 0..4);
        assert_eq!(book.in_flight(), 1);
        book.settle(4, true, Answer::Refused);
        let (yes, no) = (Answer::Confirmed, Answer::Refused);
        assert_eq!(book.answers(), [yes, no, yes, yes, Answer::None]);
        book.settle(99, true, Answer::Confirmed);
        assert_eq!((book.in_flight(), book.answers()[4]), (0, yes));
    }
}
