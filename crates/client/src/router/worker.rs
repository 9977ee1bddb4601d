//! The thread that owns the connection.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, never, select_biased};
use log::{debug, info, warn};

use delayline_amqp::{AmqpError, Event, Outstanding};
use delayline_core::backoff::Doubling;

use super::{
    Cause,
    channel::{ConfirmChannel, Connector},
    shared::{Limits, Shared},
    suspicion::{Judged, judge},
    ticket::{Job, Unconfirmed},
};

/// How often deadlines and the shutdown are checked.
const TICK: Duration = Duration::from_millis(50);

/// The most bytes of bodies in flight, unless a single message is larger. The
/// client library buffers 16 MiB and then blocks without a time limit.
const MAX_BYTES: usize = 8 * 1024 * 1024;

/// How long a message that the broker refused waits before it is published again. A queue
/// that lost its leader has another within a second or so.
const NACK_PAUSE: Duration = Duration::from_millis(100);

/// How long closing a broken connection may take.
const END_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Worker<C: Connector> {
    connector: C,
    channel: Option<C::Channel>,
    jobs: Receiver<Job>,
    /// No more jobs will come: the router is being closed.
    closing: bool,
    /// Taken from `jobs` to see whether its publisher has given up on it.
    held: Option<Job>,
    /// Messages that ended unconfirmed since the router is being closed.
    given_up: usize,
    shared: Arc<Shared>,
    limits: Limits,
    outstanding: Outstanding<Unconfirmed>,
    /// Published on an earlier channel and not confirmed there, oldest first.
    again: VecDeque<Job>,
    /// Refused by the broker for the moment, and when to publish them again.
    nacked: VecDeque<(Instant, Job)>,
    /// Whether what is in flight is a suspect, beside which nothing is sent.
    alone: bool,
    /// How many answers of the broker there were.
    answers: u64,
    blocked: bool,
    /// Since when the broker accepts messages.
    unblocked: Instant,
    attempts: u32,
    next_attempt: Instant,
}

impl<C: Connector> Worker<C> {
    pub(super) fn new(
        connector: C,
        channel: Option<C::Channel>,
        jobs: Receiver<Job>,
        shared: Arc<Shared>,
        limits: Limits,
    ) -> Self {
        if channel.is_none() {
            shared.not_connected(&"no attempt was made yet");
        }
        Self {
            connector,
            channel,
            jobs,
            closing: false,
            held: None,
            given_up: 0,
            shared,
            limits,
            outstanding: Outstanding::default(),
            again: VecDeque::new(),
            nacked: VecDeque::new(),
            alone: false,
            answers: 0,
            blocked: false,
            unblocked: Instant::now(),
            attempts: 0,
            next_attempt: Instant::now(),
        }
    }

    pub(super) fn run(mut self) {
        let mut next_tick = Instant::now() + TICK;
        loop {
            if self.channel.is_none() && Instant::now() >= self.next_attempt {
                self.reconnect();
            }
            self.send_again();
            self.wait();
            let now = Instant::now();
            if now >= next_tick || self.closing {
                next_tick = now + TICK;
                self.drop_late(now);
                self.take_up_nacked(now);
                self.give_up_a_silent_channel(now);
                if self.should_end(now) {
                    break;
                }
            }
        }
        self.finish();
    }

    /// Waits for a job, an answer, or the next tick.
    fn wait(&mut self) {
        let jobs = if self.may_take() { self.jobs.clone() } else { never() };
        match &self.channel {
            Some(channel) => {
                let events = channel.events().clone();
                select_biased! {
                    recv(events) -> event => {
                        let mut next = Some(event.unwrap_or(Event::Ended));
                        // Answers come in bursts; all of them are handled before the window
                        // is filled again. Once a channel has ended, its stream says nothing
                        // about the next one.
                        while let Some(event) = next {
                            let ended = matches!(event, Event::Ended);
                            self.handle(event);
                            next = if ended { None } else { events.try_recv().ok() };
                        }
                    }
                    recv(jobs) -> job => match job {
                        Ok(job) => self.take(job),
                        Err(_) => self.closing = true,
                    },
                    default(TICK) => {}
                }
            }
            // Without a connection jobs stay where they are, and their senders
            // wait.
            None => std::thread::sleep(self.next_attempt.saturating_duration_since(Instant::now()).min(TICK)),
        }
    }

    fn may_take(&self) -> bool {
        !self.closing && self.again.is_empty() && self.held.is_none() && self.may_send()
    }

    fn may_send(&self) -> bool {
        self.channel.is_some()
            && !self.blocked
            && self.outstanding.len() < self.limits.window
            && (self.outstanding.is_empty() || !self.alone && self.outstanding.bytes() < MAX_BYTES)
    }

    /// Takes a job and as many more as are waiting and fit.
    fn take(&mut self, job: Job) {
        self.send(job);
        while self.may_send() {
            match self.jobs.try_recv() {
                Ok(job) => self.send(job),
                Err(_) => break,
            }
        }
    }

    fn send(&mut self, mut job: Job) {
        let now = Instant::now();
        if job.is_late(now) {
            return;
        }
        let Some(channel) = &mut self.channel else {
            self.again.push_back(job);
            return;
        };
        job.mark_sent();
        self.alone = job.is_suspect();
        self.limits.stats.publish();
        let prepared = job.wire(now);
        let exchange = prepared.exchange.clone();
        let exchange = exchange.as_deref().unwrap_or(&self.limits.entry);
        channel.publish(exchange, prepared, job.body());
        let bytes = job.body().len();
        self.outstanding.push(Unconfirmed { job, at: now }, bytes);
    }

    /// Sends what an earlier channel left; one at a time if they are suspected of having ended
    /// it.
    fn send_again(&mut self) {
        while self.may_send()
            && self.again.front().is_some_and(|job| !job.is_suspect() || self.outstanding.is_empty())
            && let Some(job) = self.again.pop_front()
        {
            self.send(job);
        }
        if self.again.is_empty()
            && self.may_send()
            && let Some(job) = self.held.take()
        {
            self.send(job);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Ack { tag, multiple } => {
                self.answered();
                for sent in self.outstanding.settle(tag, multiple) {
                    self.limits.stats.confirm(sent.at.elapsed());
                    sent.job.confirm(sent.at);
                }
            }
            Event::Nack { tag, multiple } => {
                self.answered();
                for sent in self.outstanding.settle(tag, multiple) {
                    self.limits.stats.nack();
                    self.nacked(sent.job);
                }
            }
            Event::Returned(returned) => {
                self.answered();
                let entry = &self.limits.entry;
                match self.outstanding.take_returned(|sent| sent.differences(entry, &returned)) {
                    Some(sent) => {
                        self.limits.stats.come_back();
                        sent.job.fail(Cause::Returned { code: returned.code, text: returned.text });
                    }
                    None => warn!("a message came back that is not waiting for an answer"),
                }
            }
            Event::Blocked(reason) => {
                warn!("the broker has blocked the connection: {reason}");
                self.blocked = true;
                self.shared.with(|state| state.waiting = Some(Cause::Blocked { reason }));
            }
            Event::Unblocked => {
                info!("the broker has unblocked the connection");
                self.blocked = false;
                self.unblocked = Instant::now();
                self.shared.with(|state| state.waiting = None);
            }
            Event::Ended => self.ended(false),
        }
    }

    /// A level never refuses a message, but while a queue has no leader the broker
    /// does. A message without a delay goes straight to the application's own queue;
    /// if that refuses it, its publisher has to know.
    fn nacked(&mut self, mut job: Job) {
        // It ends no connection.
        job.suspicion = Default::default();
        if job.is_delayed() {
            job.mark_nacked();
            self.nacked.push_back((Instant::now() + NACK_PAUSE, job));
        } else {
            job.fail(Cause::Nacked);
        }
    }

    fn take_up_nacked(&mut self, now: Instant) {
        let due = self.nacked.partition_point(|(when, _)| *when <= now);
        self.again.extend(self.nacked.drain(..due).map(|(_, job)| job));
    }

    /// Publishes on a new connection what was not confirmed in time. A broker that lost a
    /// queue's leader, or has only just started, may never answer for a message on its old
    /// channel, nor for any later one for that queue.
    fn give_up_a_silent_channel(&mut self, now: Instant) {
        if self.blocked || self.channel.is_none() {
            return;
        }
        let (limit, since) = (self.limits.confirm_timeout, self.unblocked);
        if self.outstanding.iter().any(|sent| sent.is_overdue(now, since, limit)) {
            warn!("the broker has not confirmed a message for {limit:?} or more");
            self.ended(true);
        }
    }

    /// The broker works.
    fn answered(&mut self) {
        self.answers += 1;
        self.attempts = 0;
    }

    /// The channel or the connection is gone, or given up: what was not confirmed is sent again
    /// on the next one, before anything else, except what ends every one.
    fn ended(&mut self, given_up: bool) {
        let Some(mut channel) = self.channel.take() else {
            return;
        };
        let cause = channel.end(END_TIMEOUT);
        let refusal = cause.refusal().filter(|_| !given_up);
        let is_lost = !given_up && matches!(cause, AmqpError::Lost { .. });
        let answers = self.outstanding.is_alone().then_some(self.answers);
        let Judged { guilty, mut again, last } =
            judge(self.outstanding.take_all(), refusal.as_ref(), is_lost, answers);
        if let Some((job, cause)) = guilty {
            self.limits.stats.reject();
            job.fail(cause);
            // One message fewer is progress.
            self.attempts = 0;
        }
        match &refusal {
            Some(_) => debug!("{cause}; {} messages are sent one at a time to find the cause", again.len()),
            None => self.limits.stats.lose(),
        }
        let reopened = if cause.is_connection() { Err(cause) } else { channel.reopen() };
        match reopened {
            Ok(()) => self.channel = Some(channel),
            Err(error) => self.lost(&error),
        }
        again.append(&mut self.again);
        again.extend(last);
        self.again = again;
    }

    fn lost(&mut self, cause: &AmqpError) {
        warn!("{cause}; reconnecting");
        self.blocked = false;
        // Longer with each one until the broker answers: that there is a connection is no
        // progress.
        self.next_attempt = Instant::now() + Doubling::RECONNECT.pause(self.attempts);
        self.attempts = self.attempts.saturating_add(1);
        self.shared.not_connected(cause);
    }

    fn reconnect(&mut self) {
        match self.connector.connect() {
            Ok(channel) => {
                self.limits.stats.connect();
                info!("connected to the broker; {} messages to publish again", self.again.len());
                self.channel = Some(channel);
                self.shared.with(|state| state.waiting = None);
            }
            Err(error) => {
                self.attempts = self.attempts.saturating_add(1);
                let pause = Doubling::RECONNECT.spread(self.attempts);
                debug!("{error}; next attempt in {pause:?}");
                self.next_attempt = Instant::now() + pause;
                self.shared.not_connected(&error);
            }
        }
    }

    /// Drops messages whose publishers have given up on them, including those that wait in
    /// the channel: they would take up room there.
    fn drop_late(&mut self, now: Instant) {
        let before = self.in_hand();
        self.outstanding.forget(|sent| sent.job.is_late(now));
        self.again.retain(|job| !job.is_late(now));
        self.nacked.retain(|(_, job)| !job.is_late(now));
        if self.shared.with(|state| state.close_by).is_some() {
            self.given_up += before - self.in_hand();
        }
        while self.held.as_ref().is_none_or(|job| job.is_late(now)) && !self.may_take() {
            match self.jobs.try_recv() {
                Ok(job) => self.held = Some(job),
                Err(_) => {
                    self.held = self.held.take().filter(|job| !job.is_late(now));
                    break;
                }
            }
        }
    }

    /// How many messages were sent at least once and are not settled.
    fn in_hand(&self) -> usize {
        self.outstanding.len() + self.again.len() + self.nacked.len()
    }

    fn should_end(&mut self, now: Instant) -> bool {
        // No job comes any more once this is set.
        let Some(deadline) = self.shared.with(|state| state.close_by) else { return false };
        self.closing = true;
        self.again.extend(self.held.take().into_iter().chain(self.jobs.try_iter()));
        now >= deadline || self.in_hand() == 0
    }

    fn finish(mut self) {
        let mut given_up = self.given_up;
        let nacked = self.nacked.into_iter().map(|(_, job)| job);
        let sent = self.outstanding.take_all().map(|sent| sent.job);
        for job in sent.chain(self.again).chain(nacked).chain(self.jobs.try_iter()) {
            given_up += 1;
            job.fail(Cause::Closed);
        }
        self.shared.with(|state| state.given_up = given_up);
        if let Some(channel) = self.channel {
            channel.close(END_TIMEOUT);
        }
    }
}
