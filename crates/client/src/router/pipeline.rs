//! Many messages in flight.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    time::Duration,
};

use crossbeam_channel::{Receiver, Select, Sender, unbounded};

use delayline_core::message::Message;

use super::{Publish, PublishError, Receipt, confirmation::Answer};

/// The result of a message of a [`Pipeline`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Outcome<T> {
    /// The tag that was pushed with the message.
    pub tag: T,
    /// The receipt, or the reason why it is missing.
    pub result: Result<Receipt, PublishError>,
}

/// Publishes without waiting for each confirm, with a bounded window: a number of messages, and
/// [`MAX_BYTES`](Self::MAX_BYTES) of bodies.
///
/// Each message is pushed with a tag, which its [`Outcome`] carries. Outcomes arrive in the order
/// of the broker's answers.
///
/// ```no_run
/// # use delayline::{Message, Router, Target};
/// # let router = Router::builder(Target::from_url("amqp://localhost")?).connect()?;
/// let mut pipeline = router.pipeline();
/// let mut failed = Vec::new();
/// for number in 0..100_000 {
///     let message = Message::after("billing".parse()?, "90s".parse()?, number.to_string());
///     // Blocks while the window is full, until there is an outcome to hand back.
///     failed.extend(pipeline.push(number, message).filter(|outcome| outcome.result.is_err()));
/// }
/// // The rest, each as it is confirmed.
/// failed.extend(pipeline.filter(|outcome| outcome.result.is_err()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Dropping a pipeline discards outcomes that were not taken. Its messages are still sent.
pub struct Pipeline<T> {
    publisher: Box<dyn Publish>,
    window: usize,
    next_id: u64,
    /// The tags, and the lengths of the bodies in bytes.
    in_flight: BTreeMap<u64, (T, usize)>,
    /// The total length of these bodies.
    bytes: usize,
    /// Outcomes that had to arrive before there was room.
    early: VecDeque<Outcome<T>>,
    answers: Receiver<(u64, Answer)>,
    reply: Sender<(u64, Answer)>,
}

impl<T> Pipeline<T> {
    /// The most bytes of bodies in flight, unless a single one is larger.
    pub const MAX_BYTES: usize = 64 * 1024 * 1024;

    /// A pipeline that keeps this many messages in flight, 1 or more.
    pub fn new(publisher: impl Publish + 'static, window: usize) -> Self {
        let (reply, answers) = unbounded();
        let publisher = Box::new(publisher);
        Self {
            publisher,
            window: window.max(1),
            next_id: 0,
            in_flight: BTreeMap::new(),
            bytes: 0,
            early: VecDeque::new(),
            answers,
            reply,
        }
    }

    /// Publishes a message. Returns an outcome if one is ready. Once the window is full, it waits
    /// until there is room.
    pub fn push(&mut self, tag: T, message: Message) -> Option<Outcome<T>> {
        let freed = if self.in_flight() >= self.window { self.next() } else { None };
        let bytes = message.body.len();
        while !self.in_flight.is_empty() && self.bytes.saturating_add(bytes) > Self::MAX_BYTES {
            let Some(outcome) = self.answers.recv().ok().and_then(|answer| self.outcome(answer)) else {
                break;
            };
            self.early.push_back(outcome);
        }
        let (id, reply) = (self.next_id, self.reply.clone());
        self.next_id += 1;
        self.in_flight.insert(id, (tag, bytes));
        self.bytes += bytes;
        self.publisher.send(message).on_answer(move |answer| {
            // The pipeline may have been dropped.
            let _ = reply.send((id, answer));
        });
        freed.or_else(|| self.try_next())
    }

    /// The number of messages whose outcomes were not taken yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len() + self.early.len()
    }

    /// The total length of the bodies in flight, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// An outcome, if one has arrived.
    pub fn try_next(&mut self) -> Option<Outcome<T>> {
        self.take(|answers| answers.try_recv().ok())
    }

    /// The next outcome within `limit`. Also `None` if no message is in flight.
    pub fn next_within(&mut self, limit: Duration) -> Option<Outcome<T>> {
        self.take(|answers| answers.recv_timeout(limit).ok())
    }

    fn take(
        &mut self,
        receive: impl FnOnce(&Receiver<(u64, Answer)>) -> Option<(u64, Answer)>,
    ) -> Option<Outcome<T>> {
        if self.in_flight() == 0 {
            return None;
        }
        self.early.pop_front().or_else(|| receive(&self.answers).and_then(|answer| self.outcome(answer)))
    }

    fn outcome(&mut self, (id, result): (u64, Answer)) -> Option<Outcome<T>> {
        let (tag, bytes) = self.in_flight.remove(&id)?;
        self.bytes -= bytes;
        Some(Outcome { tag, result })
    }

    /// Lets a `select` wake up when there may be an outcome.
    pub(crate) fn watch<'s>(&'s self, select: &mut Select<'s>) {
        select.recv(&self.answers);
    }
}

impl Pipeline<usize> {
    /// Publishes these messages. Returns their results, in their order.
    pub(super) fn all(mut self, messages: impl IntoIterator<Item = Message>) -> Vec<Answer> {
        let mut outcomes = Vec::new();
        for (number, message) in messages.into_iter().enumerate() {
            outcomes.extend(self.push(number, message));
        }
        outcomes.extend(self);
        outcomes.sort_by_key(|outcome| outcome.tag);
        outcomes.into_iter().map(|outcome| outcome.result).collect()
    }
}

impl<T> Iterator for Pipeline<T> {
    type Item = Outcome<T>;

    /// Waits for the next outcome. `None` if no message is in flight and every outcome was taken.
    fn next(&mut self) -> Option<Outcome<T>> {
        self.take(|answers| answers.recv().ok())
    }
}

impl<T> fmt::Debug for Pipeline<T> {
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
        goes::<Pipeline<String>>();
    }
}
