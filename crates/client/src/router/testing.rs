//! A stand-in for the router, for tests of applications.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use jiff::Timestamp;

use delayline_core::{
    message::{Message, Quota},
    topology::Unit,
};

use super::{Cause, Pipeline, Publish, PublishError, Receipt};

/// Records what is published instead of sending it. It refuses the same
/// messages as the router, and fails when told to.
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
/// ```
///
/// Its pipelines hand outcomes back as late as a router does that has a window of so many
/// messages:
///
/// ```
/// use delayline::{Message, codec::AppKey, router::{Publish, testing::Recorder}};
///
/// fn remind_all(publisher: &impl Publish, names: &[&str]) -> usize {
///     let mut pipeline = publisher.pipeline();
///     let app = AppKey::new("billing").expect("a valid name");
///     let delay = "2d".parse().expect("a delay");
///     let mut outcomes = Vec::new();
///     for name in names {
///         outcomes.extend(pipeline.push(*name, Message::after(app.clone(), delay, "pay!")));
///     }
///     outcomes.extend(pipeline);
///     outcomes.iter().filter(|outcome| outcome.result.is_ok()).count()
/// }
///
/// let recorder = Recorder::new().with_window(2);
/// assert_eq!(remind_all(&recorder, &["a", "b", "c", "d"]), 4);
/// ```
#[derive(Debug, Default)]
pub struct Recorder {
    inner: Mutex<Inner>,
    window: usize,
}

#[derive(Debug, Default)]
struct Inner {
    messages: Vec<Message>,
    failures: VecDeque<Cause>,
}

impl Recorder {
    /// A recorder that takes everything.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many messages of a pipeline wait for their outcome before one is handed back; none
    /// unless this is said.
    #[must_use]
    pub fn with_window(mut self, messages: usize) -> Self {
        self.window = messages;
        self
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the next publish fail, and the one after it if called twice.
    pub fn fail_next(&self, cause: Cause) {
        self.inner().failures.push_back(cause);
    }

    /// What was published, in order.
    #[must_use]
    pub fn messages(&self) -> Vec<Message> {
        self.inner().messages.clone()
    }
}

impl Publish for Recorder {
    fn pipeline<T>(&self) -> Pipeline<'_, T> {
        Pipeline::one_by_one(self, self.window)
    }

    fn publish(&self, message: Message) -> Result<Receipt, PublishError> {
        let (now, instant) = (Timestamp::now(), Instant::now());
        let schedule = Quota::default().admit(&message, Unit::SECOND, now, instant);
        let mut inner = self.inner();
        match (schedule, inner.failures.pop_front()) {
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
        }
    }
}
