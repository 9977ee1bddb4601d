//! Publishing with confirms: the same for every layout.

use std::time::{Duration, Instant};

use crossbeam_channel::RecvTimeoutError;
use delayline_amqp::{Event, Outstanding, Publisher, broker::Broker};
use delayline_core::message::{Headers, Properties};
use delayline_measure::ledger::Answer;

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

/// A connection in confirm mode. Messages are counted from 0.
pub struct Outbox {
    publisher: Publisher,
    outstanding: Outstanding<usize>,
    answers: Vec<Option<Answer>>,
    /// Messages that no queue took.
    pub returned: u64,
}

impl Outbox {
    pub fn open(broker: &Broker) -> Fallible<Self> {
        Ok(Self {
            publisher: Publisher::open(broker)?,
            outstanding: Outstanding::default(),
            answers: Vec::new(),
            returned: 0,
        })
    }

    /// Writes a message, and returns its number.
    pub fn publish(&mut self, address: &Address, headers: &Headers, body: &[u8]) -> usize {
        let properties = Properties { expiration: address.expiration.clone(), ..Properties::default() };
        self.publisher.publish(&address.exchange, address.key.clone(), &properties, headers, body);
        let number = self.answers.len();
        self.answers.push(None);
        self.outstanding.push(number, body.len());
        number
    }

    /// How many messages have no answer.
    pub fn in_flight(&self) -> usize {
        self.outstanding.len()
    }

    /// What the broker said of each message.
    pub fn answers(&self) -> &[Option<Answer>] {
        &self.answers
    }

    fn answer(&mut self, tag: u64, multiple: bool, answer: Answer) {
        for number in self.outstanding.settle(tag, multiple) {
            self.answers[number] = Some(answer);
        }
    }

    /// Takes the broker's answers until then, or until it owes `at_most`. Returns
    /// whether that is so.
    pub fn settle(&mut self, at_most: usize, until: Instant) -> Fallible<bool> {
        loop {
            let event = match self.publisher.events().try_recv() {
                Ok(event) => event,
                Err(_) if self.in_flight() <= at_most => return Ok(true),
                Err(_) => match self.publisher.events().recv_deadline(until) {
                    Ok(event) => event,
                    Err(RecvTimeoutError::Timeout) => return Ok(false),
                    Err(RecvTimeoutError::Disconnected) => Event::Ended,
                },
            };
            match event {
                Event::Ack { tag, multiple } => self.answer(tag, multiple, Answer::Confirmed),
                Event::Nack { tag, multiple } => self.answer(tag, multiple, Answer::Refused),
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
