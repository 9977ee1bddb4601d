//! The answer to a message, for publishers that block, for tasks, and for callbacks.

use std::{
    fmt, mem,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use log::error;

use super::{PublishError, Receipt};

/// The receipt of a message, or why there is none.
pub(super) type Answer = Result<Receipt, PublishError>;

/// The answer of the broker to a message that was [sent](super::Router::send).
///
/// It is a standard-library future, for any runtime: `router.send(message).await`. Code without a
/// runtime [waits](Self::wait), or sets a [callback](Self::on_answer). It always resolves, at the
/// publish timeout at the latest.
///
/// The message is already on its way, and is sent even if this is dropped. Then a failure goes
/// unnoticed.
#[must_use = "the message is safe only once this resolves with a receipt"]
pub struct Confirmation(pub(super) Arc<Slot>);

/// The place where an answer is left.
#[derive(Default)]
pub(super) struct Slot {
    state: Mutex<State>,
    answered: Condvar,
}

#[derive(Default)]
enum State {
    #[default]
    Open,
    /// A task waits.
    Task(Waker),
    Callback(Box<dyn FnOnce(Answer) + Send>),
    Answered(Answer),
    /// The answer was taken.
    Taken,
}

impl Confirmation {
    /// An answer that is known already, for stand-ins that implement
    /// [`Publish`](super::Publish).
    pub fn ready(answer: Result<Receipt, PublishError>) -> Self {
        Self(Arc::new(Slot { state: Mutex::new(State::Answered(answer)), answered: Condvar::new() }))
    }

    /// Waits for the answer. It blocks the thread, so do not use it in a task.
    ///
    /// # Errors
    /// The message is not confirmed. The error has the reason and the message; see the
    /// [module](super).
    pub fn wait(self) -> Result<Receipt, PublishError> {
        let mut state = self.0.lock();
        loop {
            if let Some(answer) = state.take() {
                return answer;
            }
            state = self.0.answered.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Calls this with the answer: at once if it has arrived, and otherwise in the router's own
    /// thread. The callback must not block, because that thread does nothing else meanwhile.
    pub fn on_answer(self, callback: impl FnOnce(Result<Receipt, PublishError>) + Send + 'static) {
        let mut state = self.0.lock();
        match state.take() {
            Some(answer) => {
                drop(state);
                callback(answer);
            }
            None => *state = State::Callback(Box::new(callback)),
        }
    }
}

impl Future for Confirmation {
    type Output = Result<Receipt, PublishError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.lock();
        if let Some(answer) = state.take() {
            return Poll::Ready(answer);
        }
        assert!(!matches!(*state, State::Taken), "a confirmation was polled after it was ready");
        *state = State::Task(context.waker().clone());
        Poll::Pending
    }
}

impl State {
    fn take(&mut self) -> Option<Answer> {
        match mem::replace(self, Self::Taken) {
            Self::Answered(answer) => Some(answer),
            other => {
                *self = other;
                None
            }
        }
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves the answer. It is called once.
    pub(super) fn answer(&self, answer: Answer) {
        let mut state = self.lock();
        match mem::replace(&mut *state, State::Taken) {
            State::Callback(callback) => {
                drop(state);
                // A callback must not end the router's thread.
                if catch_unwind(AssertUnwindSafe(|| callback(answer))).is_err() {
                    error!("the callback for a confirm panicked");
                }
            }
            State::Task(waker) => {
                *state = State::Answered(answer);
                drop(state);
                waker.wake();
            }
            _ => {
                *state = State::Answered(answer);
                drop(state);
                self.answered.notify_one();
            }
        }
    }
}

impl fmt::Debug for Confirmation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answered = matches!(*self.0.lock(), State::Answered(_));
        f.debug_struct("Confirmation").field("answered", &answered).finish()
    }
}
