//! How the router's thread handles the end of a channel or a connection.

use std::{sync::Arc, thread, time::Instant};

use crossbeam_channel::{RecvTimeoutError, bounded};
use log::{debug, info, warn};

use delayline_amqp::AmqpError;
use delayline_core::backoff::Doubling;

use super::{
    Status,
    channel::{ConfirmChannel, Connector},
    suspicion::{Judged, judge},
    worker::{END_TIMEOUT, TICK, Worker},
};

impl<C: Connector> Worker<C> {
    /// Publishes messages on a new connection if they were not confirmed in time. A broker that
    /// lost a queue's leader, or has just started, may never answer for a message on its old
    /// channel, nor for any later message for that queue.
    pub(super) fn give_up_a_silent_channel(&mut self, now: Instant) {
        if self.blocked || self.channel.is_none() {
            return;
        }
        let (limit, since) = (self.settings.confirm_timeout, self.unblocked);
        if self.outstanding.iter().any(|message| message.is_overdue(now, since, limit)) {
            warn!("the broker has not confirmed a message for {limit:?} or more");
            self.ended(true);
        }
    }

    /// Handles a channel or connection that ended or was given up. Messages without a confirm are
    /// sent again on the next one, before all others. A message that ends every connection is
    /// rejected.
    pub(super) fn ended(&mut self, given_up: bool) {
        let Some(mut channel) = self.channel.take() else {
            return;
        };
        let ended = self.beside(move || {
            let cause = channel.end(END_TIMEOUT);
            let reopened = if cause.is_connection() { Err(cause.clone()) } else { channel.reopen() };
            (cause, reopened.map(|()| channel))
        });
        let (cause, channel) = ended.unwrap_or_else(|| {
            let unknown = AmqpError::Lost { reason: "the router is closed".into() };
            (unknown.clone(), Err(unknown))
        });
        let refusal = cause.refusal().filter(|_| !given_up);
        let is_lost = !given_up && matches!(cause, AmqpError::Lost { .. });
        let answers = self.outstanding.is_alone().then_some(self.answers);
        let Judged { guilty, mut again, last } =
            judge(self.outstanding.take_all(), refusal.as_ref(), is_lost, answers);
        if let Some((message, cause)) = guilty {
            self.settings.stats.count(|counts| counts.rejected += 1);
            message.fail(cause);
            // Each rejected message is progress.
            self.attempts = 0;
        }
        match &refusal {
            Some(_) => debug!("{cause}; {} messages are sent one at a time to find the cause", again.len()),
            None => self.settings.stats.count(|counts| counts.lost += 1),
        }
        match channel {
            Ok(channel) => self.channel = Some(channel),
            Err(error) => self.lost(&error),
        }
        again.append(&mut self.again);
        again.extend(last);
        self.again = again;
    }

    fn lost(&mut self, cause: &AmqpError) {
        warn!("{cause}; reconnecting");
        self.blocked = false;
        // Each pause is longer until the broker answers: a connection alone is no progress.
        self.next_attempt = Instant::now() + Doubling::RECONNECT.pause(self.attempts);
        self.attempts = self.attempts.saturating_add(1);
        self.set(Status::NotConnected { reason: cause.to_string() });
    }

    pub(super) fn reconnect(&mut self) {
        let connector = Arc::clone(&self.connector);
        let Some(connected) = self.beside(move || connector.connect()) else {
            self.next_attempt = Instant::now() + TICK;
            return;
        };
        match connected {
            Ok(channel) => {
                self.settings.stats.count(|counts| counts.reconnects += 1);
                info!("connected to the broker; {} messages to publish again", self.again.len());
                self.channel = Some(channel);
                self.set(Status::Connected);
            }
            Err(error) => {
                self.attempts = self.attempts.saturating_add(1);
                let pause = Doubling::RECONNECT.spread(self.attempts);
                warn!("{error}; next attempt in {pause:?}");
                self.next_attempt = Instant::now() + pause;
                self.set(Status::NotConnected { reason: error.to_string() });
            }
        }
    }

    /// Runs a call that may wait for the broker on a separate thread, and keeps deadlines
    /// meanwhile. `None` if the router is closed first.
    fn beside<T: Send + 'static>(&mut self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (done, result) = bounded(1);
        let work = move || {
            // The router may be closed meanwhile.
            let _ = done.send(work());
        };
        thread::Builder::new().name("delayline-connect".into()).spawn(work).ok()?;
        loop {
            match result.recv_timeout(TICK) {
                Ok(result) => return Some(result),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Ok(request) = self.requests.try_recv() {
                self.take(request);
            }
            if self.tick(Instant::now()) {
                return None;
            }
        }
    }
}
