//! Recalling messages that were published with an id.
//!
//! A message cannot be taken out of the middle of a queue. But when it is due, it passes a direct
//! exchange of its application that has a binding for each recalled message. A message whose
//! routing key is bound there goes to the queue of recalled messages. Every other message goes on
//! to the application. So recalling is binding: any AMQP client can do it, without a daemon.
//!
//! ```no_run
//! use delayline::{Message, Router, Target, recall::{Answer, Recaller}};
//!
//! let target = Target::from_url("amqp://localhost")?;
//! let router = Router::builder(target.clone()).connect()?;
//! let reminder = Message::after("billing".parse()?, "30d".parse()?, "pay invoice 17")
//!     .with_id("invoice-17-1".parse()?); // the next reminder is `invoice-17-2`
//! let receipt = router.publish(reminder)?;
//! let handle = receipt.handle.expect("the message has an id");
//!
//! // The invoice was paid.
//! match Recaller::connect(target)?.recall(&handle)? {
//!     Answer::InTime => println!("no reminder is sent"),
//!     Answer::TooLate => println!("the reminder is out"),
//!     _ => println!("the reminder may be out"),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How certain an answer is
//!
//! A message is never early. So if its recall was bound at least [`MARGIN`] before it is due, it
//! goes to the recalled queue whenever it arrives: [`Answer::InTime`]. The due time is the
//! publisher's, and is compared with the clock of the caller. The margin allows for both: for two
//! clocks that differ, and for the nodes of a cluster, which do not learn of a binding at the same
//! moment.
//!
//! The binding has no arguments. In RabbitMQ (3.10 to 4.3 at least), the management API lists no
//! bindings of the vhost if a binding has both arguments and a `~` in its key.
//!
//! Faults on the way can duplicate a message. Both copies have the same routing key, so a recall
//! applies to both.

mod error;
mod replace;

/// Its Rust examples are compiled with the doc tests.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/how-to/recall.md")]
mod document {}

use std::{
    collections::{HashSet, VecDeque},
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};

use crate::target::Target;
use delayline_amqp::{AmqpError, Session, Turned, broker::Broker};
use delayline_core::{
    codec::AppKey,
    message::{Handle, Headers, Value, headers::DUE},
    topology::{Binding, Names},
};

pub use error::RecallError;
pub use replace::{ReplaceError, Replaced, renewed};

/// How long before its due time a message must be recalled so that it is certainly not delivered: 2
/// s.
pub const MARGIN: Duration = Duration::from_secs(2);

/// How many messages are read from the recalled queue at a time.
const PAGE: u16 = 1_000;

/// How long the broker may take to deliver the next of them.
const PATIENCE: Duration = Duration::from_secs(5);

/// The result of a recall, or of undoing a recall.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// It is done, more than [`MARGIN`] before the due time. A recalled message will not be
    /// delivered. A message whose recall was undone will be.
    InTime,
    /// The message was due already, and nothing was changed. It went to its destination before this
    /// call, or will go there when it arrives. If another caller recalled it in time, that is the
    /// recalled queue.
    TooLate,
    /// It is done, but the result is uncertain. The message was due so soon that it may be too
    /// late, or its due time is unknown or contradicts its delay. Or the message is due now, and an
    /// earlier attempt, whose answer was lost, may have been in time. [`Recaller::is_recalled`]
    /// tells afterwards.
    Uncertain,
}

impl Answer {
    /// The certainty of a change that is made now. A message that was published before is due at
    /// the latest after its delay, counted from now. If its handle has a later due time, a clock is
    /// wrong, and the message may already be due.
    fn for_what_is_done(handle: &Handle, now: Timestamp) -> Self {
        let margin = SignedDuration::try_from(MARGIN).unwrap_or_default();
        let longest = SignedDuration::from_secs(handle.routing_key().delay.seconds().into());
        let left = handle.due().map(|due| due.duration_since(now));
        match left {
            Some(left) if left >= margin && left <= longest.saturating_add(margin) => Self::InTime,
            _ => Self::Uncertain,
        }
    }
}

/// A connection that recalls messages of one set, one at a time. If it is lost, the next call
/// connects again. Threads can share it.
///
/// Its calls block until the broker answers. A task calls them where it may block, such as in
/// `tokio::task::spawn_blocking`.
pub struct Recaller {
    broker: Broker,
    names: Names,
    session: Mutex<Option<Session>>,
    known: Mutex<Known>,
}

/// The record of earlier recalls.
#[derive(Default)]
struct Known {
    /// The routing keys whose last change got no answer, so that the broker may have made it.
    lost: HashSet<String>,
    /// The most recently recalled routing keys.
    recalled: VecDeque<String>,
}

/// How many of them are remembered.
const REMEMBERED: usize = 10_000;

impl Recaller {
    /// Connects.
    ///
    /// # Errors
    /// Unreachable, TLS, or refused.
    pub fn connect(target: impl Into<Target>) -> Result<Self, AmqpError> {
        let Target { broker, set, .. } = target.into();
        let session = Mutex::new(Some(open(&broker)?));
        Ok(Self { broker, names: Names::new(set), session, known: Mutex::default() })
    }

    /// Recalls a message. After [`Answer::InTime`], it will not be delivered. Recalling it twice is
    /// no error.
    ///
    /// # Errors
    /// The broker refuses, or the connection is lost.
    pub fn recall(&self, handle: &Handle) -> Result<Answer, RecallError> {
        let answer = self.change(handle, Session::bind)?;
        let key = handle.routing_key().encode();
        let recalled = &mut self.known().recalled;
        if answer != Answer::TooLate && !recalled.contains(&key) {
            recalled.truncate(REMEMBERED - 1);
            recalled.push_front(key);
        }
        Ok(answer)
    }

    /// Undoes the recall of a message. After [`Answer::InTime`], it will be delivered. It is no
    /// error if the message was not recalled.
    ///
    /// # Errors
    /// The broker refuses, or the connection is lost.
    pub fn undo(&self, handle: &Handle) -> Result<Answer, RecallError> {
        let answer = self.change(handle, Session::unbind)?;
        let key = handle.routing_key().encode();
        self.known().recalled.retain(|recalled| *recalled != key);
        Ok(answer)
    }

    /// Whether this recaller recently recalled the message.
    fn has_recalled(&self, handle: &Handle) -> bool {
        self.known().recalled.contains(&handle.routing_key().encode())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(
        &self,
        handle: &Handle,
        change: fn(&mut Session, &Binding) -> Result<(), AmqpError>,
    ) -> Result<Answer, RecallError> {
        let binding = Binding::recalling(&self.names, handle.routing_key());
        if is_over(handle, Timestamp::now()) {
            let earlier = self.known().lost.contains(&binding.key);
            return Ok(if earlier { Answer::Uncertain } else { Answer::TooLate });
        }
        match self.call(handle.app(), |session| change(session, &binding)) {
            Ok(()) => {
                self.known().lost.remove(&binding.key);
                Ok(Answer::for_what_is_done(handle, Timestamp::now()))
            }
            Err(error) => {
                if error.may_be_done() {
                    self.known().lost.insert(binding.key);
                }
                Err(error)
            }
        }
    }

    /// Fails if an application has no objects for recalling, as far as this user can see. So an
    /// operation that cannot be completed is not begun.
    ///
    /// # Errors
    /// [`RecallError::NotOffered`], [`RecallError::NoSet`], or the connection is lost.
    pub fn check(&self, app: &AppKey) -> Result<(), RecallError> {
        let queue = self.names.recalled(app);
        match self.call(app, |session| counted(session, &queue)) {
            // Some versions answer only users with the permission to configure the queue.
            Ok(_) | Err(RecallError::NotPermitted { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether a message is in the queue of recalled messages now. It reads the queue on a separate
    /// connection, and requeues everything. Messages that another consumer holds meanwhile are not
    /// found. If a policy gives the queue a delivery limit, each call counts as a delivery, and the
    /// broker drops messages over the limit.
    ///
    /// # Errors
    /// The broker refuses, or the connection is lost.
    pub fn is_recalled(&self, handle: &Handle) -> Result<bool, RecallError> {
        let queue = self.names.recalled(handle.app());
        let ready = self.call(handle.app(), |session| ready(session, &queue))?;
        let mut reader = open(&self.broker)?;
        let found = holds(&mut reader, &queue, ready, handle);
        drop(reader);
        // The next call should find the messages that this one has requeued.
        let deadline = Instant::now() + PATIENCE;
        while self.call(handle.app(), |session| counted(session, &queue))? < Some(ready)
            && Instant::now() < deadline
        {
            thread::sleep(Duration::from_millis(5));
        }
        found.map_err(|error| RecallError::new(handle.app(), error))
    }

    fn call<T>(
        &self,
        app: &AppKey,
        work: impl FnOnce(&mut Session) -> Result<T, AmqpError>,
    ) -> Result<T, RecallError> {
        let mut kept = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        let mut session = match kept.take() {
            Some(session) => session,
            None => open(&self.broker)?,
        };
        let result = work(&mut session).map_err(|error| match RecallError::new(app, error) {
            // Without a set, registering the application would not help.
            RecallError::NotOffered { text, .. }
                if session.exchange_exists(&self.names.entry()) == Ok(false) =>
            {
                RecallError::NoSet { text }
            }
            error => error,
        });
        if !result.as_ref().is_err_and(RecallError::is_connection) {
            *kept = Some(session);
        }
        result
    }
}

fn open(broker: &Broker) -> Result<Session, AmqpError> {
    Session::open_for(broker, "recall")
}

/// Whether the message was due by then.
fn is_over(handle: &Handle, now: Timestamp) -> bool {
    handle.due().is_some_and(|due| due <= now)
}

/// How many messages of a queue are ready, by the broker's count; `None` if the queue was too slow.
fn counted(session: &mut Session, queue: &str) -> Result<Option<u32>, AmqpError> {
    let missing = || AmqpError::Channel { code: 404, text: format!("there is no queue `{queue}`") };
    Ok(session.queue_depth(queue)?.ok_or_else(missing)?.ready)
}

/// How many messages of a queue are ready. If there seem to be none, the queue itself is asked: the broker
/// reports 0 for a queue that does not answer.
fn ready(session: &mut Session, queue: &str) -> Result<u32, AmqpError> {
    match counted(session, queue)? {
        Some(ready @ 1..) => Ok(ready),
        _ if session.is_empty(queue)? => Ok(0),
        // It has answered, so it can be counted.
        _ => Ok(counted(session, queue)?.map_or(1, |ready| ready.max(1))),
    }
}

/// Whether the message is among this many at the head of the queue. The session holds the messages
/// that it has read until it is closed.
fn holds(session: &mut Session, queue: &str, mut left: u32, handle: &Handle) -> Result<bool, AmqpError> {
    let key = handle.routing_key().encode();
    let browser = session.browse()?;
    while left > 0 {
        let size = u16::try_from(left).map_or(PAGE, |left| left.min(PAGE));
        let page = browser.page(queue, size)?;
        for _ in 0..size {
            match page.next(PATIENCE) {
                Turned::Delivery(delivery)
                    if delivery.routing_key == key && is_due_with(&delivery.headers, handle) =>
                {
                    return Ok(true);
                }
                Turned::Delivery(_) => left -= 1,
                // Another consumer took the rest.
                Turned::Timeout => return Ok(false),
                Turned::Ended(cause) => return Err(cause),
            }
        }
        page.end()?;
    }
    Ok(false)
}

/// Whether a message with the key of a handle matches the handle's due time, if both have one. An
/// earlier message with the same id and delay may still be there.
fn is_due_with(headers: &Headers, handle: &Handle) -> bool {
    let due = headers.get(DUE).and_then(Value::as_i64);
    due.and_then(|due| Timestamp::from_millisecond(due).ok()).is_none_or(|due| handle.may_be_due_at(due))
}

impl fmt::Debug for Recaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recaller").field("broker", &self.broker.to_string()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(due_ms: Option<i64>) -> Handle {
        let key = "delay.0000.0000.0000.0000.0000.0101.1010.billing.~.17".parse().unwrap();
        Handle::new(key, due_ms.map(|due| Timestamp::from_millisecond(due).unwrap())).unwrap()
    }

    #[test]
    fn an_answer_is_certain_only_before_the_margin() {
        let answer =
            |due, now| Answer::for_what_is_done(&handle(due), Timestamp::from_millisecond(now).unwrap());
        assert_eq!(answer(Some(10_000), 8_000), Answer::InTime);
        assert_eq!(answer(Some(10_000), 8_001), Answer::Uncertain);
        assert_eq!(answer(Some(10_000), 20_000), Answer::Uncertain, "it was bound, perhaps too late");
        assert_eq!(answer(None, 0), Answer::Uncertain);
        // Its delay is 90 s.
        assert_eq!(answer(Some(100_000), 8_000), Answer::InTime, "clocks differ a little");
        assert_eq!(answer(Some(100_001), 8_000), Answer::Uncertain, "it was due before, perhaps");
    }

    #[test]
    fn an_earlier_message_with_the_same_key_is_another_one() {
        let due = |ms: i64| Headers::from([(DUE.to_owned(), ms.into())]);
        assert!(is_due_with(&due(10_000), &handle(Some(10_000))));
        assert!(!is_due_with(&due(9_000), &handle(Some(10_000))));
        // Written as a date, without the fraction of a second.
        assert!(is_due_with(&due(10_412), &handle(Some(10_000))));
        // The due time is unknown.
        assert!(is_due_with(&due(9_000), &handle(None)));
        assert!(is_due_with(&Headers::new(), &handle(Some(10_000))));
    }

    #[test]
    fn only_a_known_due_time_can_have_passed() {
        let at = |now| Timestamp::from_millisecond(now).unwrap();
        assert!(is_over(&handle(Some(5)), at(5)) && !is_over(&handle(Some(5)), at(4)));
        assert!(!is_over(&handle(None), at(i64::from(i32::MAX))));
    }

    #[test]
    fn a_refusal_contains_a_remedy() {
        let app = AppKey::new("billing").unwrap();
        let refusal =
            |code| RecallError::new(&app, AmqpError::Channel { code, text: "REASON".into() }).to_string();
        assert!(refusal(404).contains("register it again with --recall"), "{}", refusal(404));
        assert!(refusal(403).contains("may not recall messages of `billing`: REASON"), "{}", refusal(403));
        assert!(refusal(406).contains("406"));
    }

    #[test]
    fn only_a_request_that_reached_the_broker_may_be_done() {
        let app = AppKey::new("billing").unwrap();
        let may_be = |error| RecallError::new(&app, error).may_be_done();
        let (address, reason) = (String::new(), String::new());
        assert!(!may_be(AmqpError::Unreachable { address, reason: reason.clone() }));
        assert!(!may_be(AmqpError::Channel { code: 403, text: String::new() }));
        assert!(may_be(AmqpError::Silent { limit: MARGIN, reason: reason.clone() }));
        assert!(may_be(AmqpError::Lost { reason }));
        assert!(may_be(AmqpError::Closed { code: 320, text: String::new() }));
    }
}
