//! A stand-in for the router, for tests of applications.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use jiff::Timestamp;

use delayline_core::{
    message::{Message, Quota, admit},
    topology::Unit,
};

use super::{Cause, Confirmation, Publish, PublishError, Receipt};

/// Records messages instead of publishing them. It refuses the same messages as the router, and
/// fails on request.
///
/// ```
/// use delayline::{Message, codec::AppKey, router::{Cause, Publish, testing::Recorder}};
///
/// fn remind(publisher: &impl Publish) -> bool {
///     let app = AppKey::new("billing").expect("a valid name");
///     publisher.publish(Message::after(app, "2d".parse().expect("a delay"), "pay!")).is_ok()
/// }
///
/// let recorder = Recorder::new();
/// recorder.fail_next(Cause::Nacked);
/// assert!(!remind(&recorder));
/// assert!(remind(&recorder));
/// assert_eq!(recorder.messages()[0].body, b"pay!");
/// assert_eq!(recorder.take().len(), 1);
/// assert!(recorder.messages().is_empty());
/// ```
#[derive(Debug, Clone, Default)]
pub struct Recorder(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    messages: Vec<Message>,
    failures: VecDeque<Cause>,
}

impl Recorder {
    /// A recorder that accepts every valid message.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the next publish fail. Each further call makes one more fail.
    pub fn fail_next(&self, cause: Cause) {
        self.inner().failures.push_back(cause);
    }

    /// The messages that were published since the last call of this, in order. Without it, a
    /// recorder keeps all of them.
    #[must_use]
    pub fn take(&self) -> Vec<Message> {
        std::mem::take(&mut self.inner().messages)
    }

    /// The messages that were published and not taken, in order.
    #[must_use]
    pub fn messages(&self) -> Vec<Message> {
        self.inner().messages.clone()
    }
}

impl Publish for Recorder {
    fn send(&self, message: Message) -> Confirmation {
        let (now, instant) = (Timestamp::now(), Instant::now());
        let schedule = admit(&Quota::default(), &message, (Unit::SECOND, false), now, instant);
        let mut inner = self.inner();
        Confirmation::ready(match (schedule, inner.failures.pop_front()) {
            (Err(invalid), _) => Err(PublishError::new(Cause::Invalid(invalid), message, false)),
            (Ok(_), Some(cause)) => {
                let doubtful = cause.leaves_doubt();
                Err(PublishError::new(cause, message, doubtful))
            }
            (Ok(schedule), None) => {
                let receipt = Receipt::new(schedule.due(), schedule.remaining(instant));
                let handle = message.handle(receipt.delay, receipt.due);
                inner.messages.push(message);
                Ok(Receipt { handle, ..receipt })
            }
        })
    }
}
