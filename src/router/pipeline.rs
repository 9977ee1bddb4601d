//! Many messages in flight.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::Arc,
    time::Instant,
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Select, Sender, unbounded};

use crate::message::Message;

use super::{
    GRACE, PublishError, Receipt, Router,
    ticket::{Ticket, Verdict},
};

/// What became of a message of a [`Pipeline`].
#[derive(Debug)]
pub struct Outcome<T> {
    /// What was pushed with the message.
    pub tag: T,
    /// Whether the broker has it.
    pub result: Result<Receipt, PublishError>,
}

/// Publishes without waiting for each confirm, with a bounded window.
///
/// Each message is pushed with a tag of your own, which its [`Outcome`] carries.
/// Outcomes come in the order the broker answers in.
///
/// ```no_run
/// # use delayline::{Message, Router, Settings, codec::AppKey};
/// # let router = Router::connect(&Settings::from_url("amqp://localhost")?)?;
/// let mut pipeline = router.pipeline();
/// let mut failed = Vec::new();
/// for number in 0..100_000 {
///     let message = Message::after(AppKey::new("billing")?, "90s".parse()?, number.to_string());
///     // Blocks while the window is full, until there is an outcome to hand back.
///     failed.extend(pipeline.push(number, message).filter(|outcome| outcome.result.is_err()));
/// }
/// // The rest, each as it is confirmed.
/// failed.extend(pipeline.filter(|outcome| outcome.result.is_err()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Dropping a pipeline forgets outcomes that were not taken; the messages are
/// sent all the same.
pub struct Pipeline<'r, T> {
    router: &'r Router,
    in_flight: BTreeMap<u64, (T, Arc<Ticket>)>,
    answers: Receiver<(u64, Verdict)>,
    reply: Sender<(u64, Verdict)>,
    ready: VecDeque<Outcome<T>>,
}

impl<'r, T> Pipeline<'r, T> {
    pub(super) fn new(router: &'r Router) -> Self {
        let (reply, answers) = unbounded();
        Self { router, in_flight: BTreeMap::new(), answers, reply, ready: VecDeque::new() }
    }

    /// Hands a message over. Returns an outcome if one is due: the message's
    /// own, if it cannot be sent; otherwise that of an earlier one once the
    /// window is full, waiting for it if need be.
    pub fn push(&mut self, tag: T, message: Message) -> Option<Outcome<T>> {
        // Room first, so that nothing waits for a place that only we can free.
        if self.in_flight.len() >= self.router.window {
            let freed = self.wait();
            self.ready.extend(freed);
        }
        match self.router.submit(message, &self.reply) {
            Ok((id, ticket)) => {
                self.in_flight.insert(id, (tag, ticket));
            }
            Err(error) => self.ready.push_back(Outcome { tag, result: Err(error) }),
        }
        self.try_next()
    }

    /// The number of messages without an outcome yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// An outcome, if there is one already: an answer of the broker, or that there was
    /// none in time.
    pub fn try_next(&mut self) -> Option<Outcome<T>> {
        if let Some(outcome) = self.ready.pop_front() {
            return Some(outcome);
        }
        while let Ok((id, verdict)) = self.answers.try_recv() {
            if let Some(outcome) = self.settle(id, verdict) {
                return Some(outcome);
            }
        }
        // The worker says nothing of what it drops because it is too late.
        let (&oldest, (_, ticket)) = self.in_flight.first_key_value()?;
        (Instant::now() >= ticket.deadline + GRACE).then(|| self.give_up(oldest)).flatten()
    }

    /// Lets a `select` wake up when there may be an outcome.
    pub fn watch<'s>(&'s self, select: &mut Select<'s>) {
        select.recv(&self.answers);
    }

    fn settle(&mut self, id: u64, verdict: Verdict) -> Option<Outcome<T>> {
        let (tag, ticket) = self.in_flight.remove(&id)?;
        Some(Outcome { tag, result: self.router.settle(ticket, verdict) })
    }

    fn give_up(&mut self, id: u64) -> Option<Outcome<T>> {
        let (tag, ticket) = self.in_flight.remove(&id)?;
        Some(Outcome { tag, result: Err(self.router.late(ticket)) })
    }

    /// Waits for an answer; `None` when no message is in flight.
    fn wait(&mut self) -> Option<Outcome<T>> {
        loop {
            // Ids and deadlines grow together.
            let (&oldest, (_, ticket)) = self.in_flight.first_key_value()?;
            match self.answers.recv_deadline(ticket.deadline + GRACE) {
                Ok((id, verdict)) => {
                    if let Some(outcome) = self.settle(id, verdict) {
                        return Some(outcome);
                    }
                }
                Err(RecvTimeoutError::Timeout) => return self.give_up(oldest),
                Err(RecvTimeoutError::Disconnected) => unreachable!("we hold a sender ourselves"),
            }
        }
    }
}

impl<T> Iterator for Pipeline<'_, T> {
    type Item = Outcome<T>;

    /// Waits for the next outcome; `None` when no message is in flight and every
    /// outcome was taken.
    fn next(&mut self) -> Option<Outcome<T>> {
        self.ready.pop_front().or_else(|| self.wait())
    }
}

impl<T> fmt::Debug for Pipeline<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline").field("in_flight", &self.in_flight.len()).finish_non_exhaustive()
    }
}
