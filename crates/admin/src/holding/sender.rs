//! Sending messages on, many at a time, each with a confirm.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use delayline::{
    amqp::{AmqpError, Delivery, Event, Place, Publisher, Returned},
    broker::Broker,
    message::{Published, nearest},
};

use super::Outgoing;

/// The most messages that wait for a confirm: this many can arrive twice if we are killed.
pub(super) const WINDOW: usize = 256;

/// The most bytes of bodies in flight, unless a single message is larger; the
/// client library buffers 16 MiB and then blocks without a time limit.
const MAX_BYTES: usize = 8 * 1024 * 1024;

/// After this many refusals in a row the messages are not to blame.
const REFUSALS: u32 = 10;

/// After this many lost connections the broker or the network is to blame.
const LOSSES: u32 = 3;

/// How long closing a broken connection may take.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// What happened to a message.
#[expect(clippy::large_enum_variant, reason = "nearly every verdict is a confirm")]
pub(super) enum Verdict {
    /// The broker has confirmed its copy.
    Confirmed(Delivery),
    /// The broker has not accepted it, and this is why. The index of the message.
    Refused(Place, String),
}

/// A message whose copy was published.
struct Sent {
    delivery: Delivery,
    outgoing: Outgoing,
    returned: Option<String>,
}

impl Sent {
    /// How it is recognised when it is returned.
    fn published(&self) -> Published<'_> {
        let Outgoing { exchange, routing_key, properties, headers } = &self.outgoing;
        Published { exchange, routing_key, properties, headers, body: &self.delivery.body }
    }
}

/// A publisher that knows which confirm belongs to which message.
pub(super) struct Sender {
    broker: Broker,
    publisher: Publisher,
    outstanding: BTreeMap<u64, Sent>,
    /// Published on a channel that the broker closed over one of them; they are sent again
    /// one at a time, to find out which.
    suspects: VecDeque<Sent>,
    next_tag: u64,
    bytes: usize,
    blocked: Option<String>,
    refusals: u32,
    /// Why it is no use to continue.
    gave_up: Option<AmqpError>,
    losses: u32,
    patience: Duration,
    last_answer: Instant,
}

impl Sender {
    pub(super) fn open(broker: &Broker, patience: Duration) -> Result<Self, AmqpError> {
        Ok(Self {
            broker: broker.clone(),
            publisher: Publisher::open(broker)?,
            outstanding: BTreeMap::new(),
            suspects: VecDeque::new(),
            next_tag: 1,
            bytes: 0,
            blocked: None,
            refusals: 0,
            gave_up: None,
            losses: 0,
            patience,
            last_answer: Instant::now(),
        })
    }

    /// Whether another message may be sent.
    pub(super) fn has_room(&self) -> bool {
        self.blocked.is_none()
            && self.suspects.is_empty()
            && self.outstanding.len() < WINDOW
            && self.bytes < MAX_BYTES
    }

    /// How many messages wait for a confirm.
    pub(super) fn in_flight(&self) -> usize {
        self.outstanding.len() + self.suspects.len()
    }

    pub(super) fn send(&mut self, delivery: Delivery, outgoing: Outgoing) {
        if self.outstanding.is_empty() {
            self.last_answer = Instant::now();
        }
        self.publish(Sent { delivery, outgoing, returned: None });
    }

    fn publish(&mut self, sent: Sent) {
        let Outgoing { exchange, routing_key, properties, headers } = &sent.outgoing;
        self.publisher.publish(exchange, routing_key.clone(), properties, headers, &sent.delivery.body);
        self.bytes += sent.delivery.body.len();
        self.outstanding.insert(self.next_tag, sent);
        self.next_tag += 1;
    }

    /// Appends the broker's answers, waiting no longer than `limit` for them.
    ///
    /// # Errors
    /// It says nothing any more, or refuses everything. What was said until then is
    /// appended all the same; what was not confirmed stays in its queue.
    pub(super) fn verdicts(&mut self, limit: Duration, verdicts: &mut Vec<Verdict>) -> Result<(), AmqpError> {
        let mut event = self.publisher.events().recv_timeout(limit).ok();
        while let Some(next) = event {
            self.last_answer = Instant::now();
            self.on(next, verdicts)?;
            if let Some(error) = self.gave_up.take() {
                return Err(error);
            }
            event = self.publisher.events().try_recv().ok();
        }
        if self.outstanding.is_empty()
            && self.blocked.is_none()
            && let Some(suspect) = self.suspects.pop_front()
        {
            self.publish(suspect);
        }
        if self.in_flight() > 0 && self.last_answer.elapsed() > self.patience {
            let reason = match &self.blocked {
                Some(reason) => format!("the broker accepts no messages at the moment: {reason}"),
                None => format!("the broker did not confirm within {:?}", self.patience),
            };
            return Err(AmqpError::Lost { reason });
        }
        Ok(())
    }

    fn on(&mut self, event: Event, verdicts: &mut Vec<Verdict>) -> Result<(), AmqpError> {
        match event {
            Event::Ack { tag, multiple } => {
                for sent in self.take(tag, multiple) {
                    match sent.returned {
                        None => {
                            self.refusals = 0;
                            verdicts.push(Verdict::Confirmed(sent.delivery));
                        }
                        Some(reason) => self.refused(&sent.delivery, reason, verdicts),
                    }
                }
            }
            Event::Nack { tag, multiple } => {
                for sent in self.take(tag, multiple) {
                    let reason = "the broker refused to store the message".into();
                    self.refused(&sent.delivery, reason, verdicts);
                }
            }
            Event::Returned(returned) => self.came_back(&returned),
            Event::Blocked(reason) => self.blocked = Some(reason),
            Event::Unblocked => self.blocked = None,
            Event::Ended => self.ended(verdicts)?,
        }
        Ok(())
    }

    fn take(&mut self, tag: u64, multiple: bool) -> Vec<Sent> {
        let taken: Vec<_> = match multiple {
            true => {
                let later = self.outstanding.split_off(&(tag + 1));
                std::mem::replace(&mut self.outstanding, later).into_values().collect()
            }
            false => self.outstanding.remove(&tag).into_iter().collect(),
        };
        self.bytes -= taken.iter().map(|sent| sent.delivery.body.len()).sum::<usize>();
        taken
    }

    /// One answer can be about many messages: the others keep their place.
    fn refused(&mut self, delivery: &Delivery, reason: String, verdicts: &mut Vec<Verdict>) {
        self.refusals += 1;
        if self.refusals == REFUSALS {
            self.gave_up = Some(AmqpError::Lost {
                reason: format!("{REFUSALS} messages in a row were refused, the last because {reason}"),
            });
        }
        verdicts.push(Verdict::Refused(Place::of(delivery), reason));
    }

    /// A message that no queue accepted; its ack follows.
    fn came_back(&mut self, returned: &Returned) {
        let candidates = self.outstanding.values_mut().filter(|sent| sent.returned.is_none());
        let nearest = nearest(candidates.map(|sent| {
            let differences = sent.published().differences(returned.published());
            (sent, differences)
        }));
        if let Some(sent) = nearest {
            sent.returned = Some(format!(
                "exchange `{}` routes it to no queue ({}: {})",
                sent.outgoing.exchange, returned.code, returned.text
            ));
        }
    }

    /// The channel or the connection is gone.
    fn ended(&mut self, verdicts: &mut Vec<Verdict>) -> Result<(), AmqpError> {
        let cause = self.publisher.end(END_TIMEOUT);
        if cause.refusal().is_none() {
            // When the broker closes a channel, the client library can fail on what is still
            // in flight on it, and end the connection.
            self.losses += 1;
            if self.losses > LOSSES {
                return Err(cause);
            }
        }
        let mut unsettled: VecDeque<_> = std::mem::take(&mut self.outstanding).into_values().collect();
        let alone = unsettled.len() == 1;
        // First of all, since they are still in flight if we do not continue.
        unsettled.append(&mut self.suspects);
        self.suspects = unsettled;
        (self.bytes, self.next_tag) = (0, 1);
        match cause.is_connection() {
            true => {
                self.publisher = Publisher::open(&self.broker)?;
                // A block on the old connection does not apply to the new one, which would
                // never be told that it is over.
                self.blocked = None;
            }
            false => self.publisher.reopen()?,
        }
        if alone
            && cause.refusal().is_some()
            && let Some(sent) = self.suspects.pop_front()
        {
            self.refused(&sent.delivery, cause.to_string(), verdicts);
        }
        Ok(())
    }

    pub(super) fn close(self) {
        self.publisher.close(END_TIMEOUT);
    }
}
