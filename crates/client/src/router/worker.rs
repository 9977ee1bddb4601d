//! The thread that owns the connection.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError, never};
use log::{info, warn};

use delayline_amqp::{Event, Outstanding, Woken};
use delayline_core::topology::Names;

use super::{
    Cause, DROP_TIMEOUT, RouterBuilder, Status,
    channel::{ConfirmChannel, Connector},
    in_flight::InFlight,
};

/// How often deadlines are checked.
pub(super) const TICK: Duration = Duration::from_millis(50);

/// The most bytes in flight, unless a single message is larger.
const MAX_BYTES: usize = 8 * 1024 * 1024;

/// How long a message that the broker refused waits before it is published again. A queue that lost
/// its leader has another within about a second.
const NACK_PAUSE: Duration = Duration::from_millis(100);

/// How long closing a broken connection may take.
pub(super) const END_TIMEOUT: Duration = Duration::from_secs(2);

/// The requests of a router's handles to its worker.
pub(super) enum Request {
    /// Publish this message.
    Publish(Box<InFlight>),
    /// Finish messages in flight, and end by this time.
    Close(Instant),
}

pub(super) struct Worker<C: Connector> {
    pub(super) connector: Arc<C>,
    pub(super) channel: Option<C::Channel>,
    pub(super) requests: Receiver<Request>,
    status: Arc<Mutex<Status>>,
    pub(super) settings: RouterBuilder,
    entry: String,
    /// Messages that were never written.
    fresh: VecDeque<Box<InFlight>>,
    /// Messages that were written to an earlier channel and not confirmed there, oldest first.
    pub(super) again: VecDeque<Box<InFlight>>,
    pub(super) outstanding: Outstanding<Box<InFlight>>,
    /// Messages that the broker refused for the moment, and when to publish them again.
    nacked: VecDeque<(Instant, Box<InFlight>)>,
    /// Whether the message in flight is a suspect, during which no other is sent.
    alone: bool,
    /// The number of answers from the broker.
    pub(super) answers: u64,
    pub(super) blocked: bool,
    /// Since when the broker accepts messages.
    pub(super) unblocked: Instant,
    pub(super) attempts: u32,
    pub(super) next_attempt: Instant,
    /// When to end, once the router is being closed.
    close_by: Option<Instant>,
    /// Messages that ended unconfirmed since then.
    given_up: usize,
    /// Whether a message was reported whose headers some consumers cannot receive.
    has_warned: bool,
}

impl<C: Connector> Worker<C> {
    pub(super) fn new(
        connector: C,
        channel: Option<C::Channel>,
        requests: Receiver<Request>,
        status: Arc<Mutex<Status>>,
        settings: RouterBuilder,
    ) -> Self {
        let now = Instant::now();
        Self {
            connector: Arc::new(connector),
            channel,
            requests,
            status,
            entry: Names::new(settings.target.set.clone()).entry(),
            settings,
            fresh: VecDeque::new(),
            again: VecDeque::new(),
            outstanding: Outstanding::default(),
            nacked: VecDeque::new(),
            alone: false,
            answers: 0,
            blocked: false,
            unblocked: now,
            attempts: 0,
            next_attempt: now,
            close_by: None,
            given_up: 0,
            has_warned: false,
        }
    }

    /// Works until the router is closed. Returns how many messages were not confirmed then.
    pub(super) fn run(mut self) -> usize {
        let mut next_tick = Instant::now() + TICK;
        loop {
            if self.channel.is_none() && Instant::now() >= self.next_attempt {
                self.reconnect();
            }
            self.send_all();
            self.wait();
            let now = Instant::now();
            if now >= next_tick || self.close_by.is_some() {
                next_tick = now + TICK;
                if self.tick(now) {
                    break;
                }
                self.give_up_a_silent_channel(now);
            }
        }
        self.finish()
    }

    /// Waits for a request, an answer, or the next tick.
    fn wait(&mut self) {
        let Some(channel) = &mut self.channel else {
            let pause = self.next_attempt.saturating_duration_since(Instant::now()).min(TICK);
            match self.requests.recv_timeout(pause) {
                Ok(request) => self.take(request),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => self.abandoned(),
            }
            return;
        };
        match channel.wait(&self.requests, TICK) {
            Woken::Other(request) => self.take(request),
            Woken::Closed => self.abandoned(),
            Woken::Timeout => {}
            // Answers arrive in bursts. All of them are handled before the window is filled again.
            Woken::Event(event) => {
                let mut next = Some(event);
                while let Some(event) = next {
                    self.handle(event);
                    next = self.channel.as_mut().and_then(|channel| channel.next_event());
                }
            }
        }
    }

    /// Takes a request, and all others that wait.
    pub(super) fn take(&mut self, request: Request) {
        let mut next = Some(request);
        while let Some(request) = next {
            match request {
                Request::Publish(message) => self.fresh.push_back(message),
                Request::Close(deadline) => self.close_by(deadline),
            }
            next = self.requests.try_recv().ok();
        }
    }

    fn close_by(&mut self, deadline: Instant) {
        self.close_by = Some(self.close_by.map_or(deadline, |known| known.min(deadline)));
    }

    /// The last handle of the router is gone.
    fn abandoned(&mut self) {
        self.requests = never();
        self.close_by(Instant::now() + DROP_TIMEOUT);
    }

    /// Keeps deadlines. Returns whether it is time to end.
    pub(super) fn tick(&mut self, now: Instant) -> bool {
        let due = self.nacked.partition_point(|(when, _)| *when <= now);
        self.again.extend(self.nacked.drain(..due).map(|(_, message)| message));
        self.fail_late(now);
        let in_hand = self.outstanding.len() + self.nacked.len() + self.again.len() + self.fresh.len();
        self.close_by.is_some_and(|deadline| now >= deadline || in_hand == 0)
    }

    fn may_send(&self) -> bool {
        self.channel.is_some()
            && !self.blocked
            && self.outstanding.len() < self.settings.window
            && (self.outstanding.is_empty() || !self.alone && self.outstanding.bytes() < MAX_BYTES)
    }

    /// Sends the next messages: first those from an earlier channel, one at a time if they are
    /// suspected of having ended it.
    fn send_all(&mut self) {
        while self.may_send() {
            let next = match self.again.front() {
                Some(first) if first.suspicion.is_suspect && !self.outstanding.is_empty() => return,
                Some(_) => self.again.pop_front(),
                None => self.fresh.pop_front(),
            };
            let Some(message) = next else { return };
            self.send(message);
        }
    }

    fn send(&mut self, mut message: Box<InFlight>) {
        let now = Instant::now();
        let Some(channel) = self.channel.as_mut().filter(|_| !message.is_late(now)) else {
            self.again.push_front(message);
            return self.fail_late(now);
        };
        self.alone = message.suspicion.is_suspect;
        self.settings.stats.count(|counts| counts.published += 1);
        let wire = message.write(now);
        let bytes = wire.encoded_len() + message.body().len();
        if !self.has_warned
            && let Some(text) = wire.oversized()
        {
            self.has_warned = true;
            warn!("{text}");
        }
        let exchange = wire.exchange.clone();
        channel.publish(exchange.as_deref().unwrap_or(&self.entry), wire, message.body());
        self.outstanding.push(message, bytes);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Ack { tag, multiple } => {
                self.answered();
                let now = Instant::now();
                for message in self.outstanding.settle(tag, multiple) {
                    self.settings.stats.confirm(message.age(now));
                    message.confirm();
                }
            }
            Event::Nack { tag, multiple } => {
                self.answered();
                for message in self.outstanding.settle(tag, multiple) {
                    self.settings.stats.count(|counts| counts.nacked += 1);
                    self.nacked(message);
                }
            }
            Event::Returned(returned) => {
                self.answered();
                let entry = &self.entry;
                match self.outstanding.take_returned(|message| message.differences(entry, &returned)) {
                    Some(message) => {
                        self.settings.stats.count(|counts| counts.returned += 1);
                        message.fail(Cause::Returned { code: returned.code, text: returned.text });
                    }
                    None => warn!("the broker returned a message that is not waiting for an answer"),
                }
            }
            Event::Blocked(reason) => {
                warn!("the broker has blocked the connection: {reason}");
                self.blocked = true;
                self.set(Status::Blocked { reason });
            }
            Event::Unblocked => {
                info!("the broker has unblocked the connection");
                self.blocked = false;
                self.unblocked = Instant::now();
                self.set(Status::Connected);
            }
            Event::Ended => self.ended(false),
        }
    }

    pub(super) fn set(&self, status: Status) {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }

    /// A level never refuses a message, but the broker refuses it while the queue has no leader. A
    /// message without a delay goes directly to the application's own queue. The publisher gets an
    /// error if that queue refuses it, or if the next answer could come after the deadline.
    fn nacked(&mut self, mut message: Box<InFlight>) {
        // It does not end connections.
        message.suspicion = Default::default();
        let again = Instant::now() + NACK_PAUSE;
        if message.is_delayed() && !message.is_late(again + self.settings.publish_timeout / 8) {
            message.nacked = true;
            self.nacked.push_back((again, message));
        } else {
            message.fail(Cause::Nacked);
        }
    }

    /// The broker is responsive.
    fn answered(&mut self) {
        self.answers += 1;
        self.attempts = 0;
    }

    /// Reports to the publishers of messages whose deadline has passed, including messages that
    /// wait in the channel.
    fn fail_late(&mut self, now: Instant) {
        let mut late = self.outstanding.give_up(|message| message.is_late(now));
        late.extend(take_if(&mut self.again, |message| message.is_late(now)));
        late.extend(take_if(&mut self.fresh, |message| message.is_late(now)));
        if late.is_empty() {
            return;
        }
        if self.close_by.is_some() {
            self.given_up += late.len();
        }
        let waiting = match &*self.status.lock().unwrap_or_else(PoisonError::into_inner) {
            Status::Blocked { reason } => Some(Cause::Blocked { reason: reason.clone() }),
            Status::NotConnected { reason } => Some(Cause::NotConnected { reason: reason.clone() }),
            Status::Connected | Status::Closed => None,
        };
        for message in late {
            message.fail_late(waiting.clone(), self.settings.publish_timeout);
        }
    }

    /// Reports to the publishers of all remaining messages, and closes the connection.
    fn finish(mut self) -> usize {
        self.set(Status::Closed);
        if let Ok(request) = self.requests.try_recv() {
            self.take(request);
        }
        // Later messages are dropped with it, which gives their publishers an answer.
        drop(self.requests);
        let nacked = self.nacked.into_iter().map(|(_, message)| message);
        let left = self.outstanding.take_all().chain(self.again).chain(nacked).chain(self.fresh);
        let given_up = self.given_up + left.map(|message| message.fail(Cause::Closed)).count();
        if let Some(channel) = self.channel {
            channel.close(END_TIMEOUT);
        }
        given_up
    }
}

/// Takes some items out of a queue, in their order.
fn take_if<T>(queue: &mut VecDeque<T>, condition: impl Fn(&T) -> bool) -> VecDeque<T> {
    if !queue.iter().any(&condition) {
        return VecDeque::new();
    }
    let (taken, rest) = mem::take(queue).into_iter().partition(condition);
    *queue = rest;
    taken
}
