//! Many messages in flight.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::Arc,
    time::Instant,
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Select, Sender, unbounded};

use delayline_core::message::Message;

use super::{
    GRACE, Publish, PublishError, Receipt, Router,
    ticket::{Reply, Ticket},
};

/// The result of a message of a [`Pipeline`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Outcome<T> {
    /// The tag that was pushed with the message.
    pub tag: T,
    /// The receipt, or why there is none.
    pub result: Result<Receipt, PublishError>,
}

/// Publishes without waiting for each confirm, with a bounded window.
///
/// Each message is pushed with a tag of your own, which its [`Outcome`] carries.
/// Outcomes come in the order the broker answers in.
///
/// ```no_run
/// # use delayline::{Message, Router, broker::Broker, codec::AppKey};
/// # let router = Router::builder(Broker::from_url("amqp://localhost")?).connect()?;
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
pub struct Pipeline<'p, T> {
    way: Way<'p, T>,
    ready: VecDeque<Outcome<T>>,
}

/// How messages are published.
enum Way<'p, T> {
    /// Through a router, which answers when the broker does.
    Routed(Routed<'p, T>),
    /// One by one. Outcomes are handed back once so many wait, as from a router whose window
    /// is full.
    Each { publisher: &'p dyn Publish, window: usize },
}

struct Routed<'r, T> {
    router: &'r Router,
    in_flight: BTreeMap<u64, (T, Arc<Ticket>)>,
    answers: Receiver<(u64, Reply)>,
    reply: Sender<(u64, Reply)>,
}

impl<'p, T> Pipeline<'p, T> {
    pub(super) fn routed(router: &'p Router) -> Self {
        let (reply, answers) = unbounded();
        let routed = Routed { router, in_flight: BTreeMap::new(), answers, reply };
        Self { way: Way::Routed(routed), ready: VecDeque::new() }
    }

    /// A pipeline over something that can only publish one message after the other. As with a
    /// router, an outcome is handed back once more than `window` messages wait for theirs, or
    /// when it is asked for.
    #[must_use]
    pub fn one_by_one(publisher: &'p dyn Publish, window: usize) -> Self {
        Self { way: Way::Each { publisher, window }, ready: VecDeque::new() }
    }

    /// Publishes a message. Returns an outcome if one is ready: the message's own, if it
    /// cannot be sent; otherwise that of an earlier one once the window is full, waiting for
    /// it if necessary.
    pub fn push(&mut self, tag: T, message: Message) -> Option<Outcome<T>> {
        match &mut self.way {
            Way::Routed(routed) => {
                // Room first, so that nothing waits for a place that only we can free.
                if routed.in_flight.len() >= routed.router.window {
                    let freed = routed.wait();
                    self.ready.extend(freed);
                }
                match routed.router.submit(message, &routed.reply) {
                    Ok((id, ticket)) => {
                        routed.in_flight.insert(id, (tag, ticket));
                    }
                    Err(error) => self.ready.push_back(Outcome { tag, result: Err(error) }),
                }
                self.try_next()
            }
            Way::Each { publisher, window } => {
                self.ready.push_back(Outcome { tag, result: publisher.publish(message) });
                if self.ready.len() > *window { self.ready.pop_front() } else { None }
            }
        }
    }

    /// The number of messages without an outcome yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        match &self.way {
            Way::Routed(routed) => routed.in_flight.len(),
            Way::Each { .. } => self.ready.len(),
        }
    }

    /// An outcome, if there is one already: an answer of the broker, or a missed deadline.
    pub fn try_next(&mut self) -> Option<Outcome<T>> {
        self.ready.pop_front().or_else(|| match &mut self.way {
            Way::Routed(routed) => routed.try_next(),
            Way::Each { .. } => None,
        })
    }

    /// Lets a `select` wake up when there may be an outcome.
    // For the other crates of this workspace; nothing is promised about it.
    #[doc(hidden)]
    pub fn watch<'s>(&'s self, select: &mut Select<'s>) {
        if let Way::Routed(routed) = &self.way {
            select.recv(&routed.answers);
        }
    }
}

impl<T> Routed<'_, T> {
    fn try_next(&mut self) -> Option<Outcome<T>> {
        while let Ok((id, answer)) = self.answers.try_recv() {
            if let Some(outcome) = self.settle(id, answer) {
                return Some(outcome);
            }
        }
        // The worker does not report messages that it drops because they are too late.
        let (&oldest, (_, ticket)) = self.in_flight.first_key_value()?;
        (Instant::now() >= ticket.deadline + GRACE).then(|| self.give_up(oldest)).flatten()
    }

    fn settle(&mut self, id: u64, answer: Reply) -> Option<Outcome<T>> {
        let (tag, ticket) = self.in_flight.remove(&id)?;
        Some(Outcome { tag, result: self.router.settle(ticket, answer) })
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
                Ok((id, answer)) => {
                    if let Some(outcome) = self.settle(id, answer) {
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
        self.ready.pop_front().or_else(|| match &mut self.way {
            Way::Routed(routed) => routed.wait(),
            Way::Each { .. } => None,
        })
    }
}

impl<T> fmt::Debug for Pipeline<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline").field("in_flight", &self.in_flight()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipeline_can_go_to_another_thread() {
        fn goes<T: Send>() {}
        goes::<Pipeline<'_, String>>();
    }
}
