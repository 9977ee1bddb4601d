//! Recalling messages that were published with an id.
//!
//! A message cannot be taken out of the middle of a queue. But when it is due, it passes a
//! direct exchange of its application that has bindings only for what was recalled: a message
//! whose routing key is bound there goes to the queue of recalled messages, and every other
//! goes on to the application. So recalling is binding, any AMQP client can do it, and no
//! daemon takes part.
//!
//! ```no_run
//! use delayline::{Message, Router, broker::Broker, codec::AppKey, recall::{Answer, Recaller}};
//!
//! let broker = Broker::from_url("amqp://localhost")?;
//! let router = Router::builder(broker.clone()).connect()?;
//! let reminder = Message::after(AppKey::new("billing")?, "30d".parse()?, "pay invoice 17")
//!     .with_id("invoice-17-1".parse()?); // the next reminder is `invoice-17-2`
//! let receipt = router.publish(reminder)?;
//! let handle = receipt.handle.expect("the message has an id");
//!
//! // The invoice was paid.
//! match Recaller::connect(broker, Default::default())?.recall(&handle)? {
//!     Answer::InTime => println!("nobody is reminded"),
//!     Answer::TooLate => println!("the reminder is out"),
//!     _ => println!("the reminder may be out"),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What an answer is worth
//!
//! A message is never early. So a message whose recall was bound in good time before it is
//! due, by [`MARGIN`], goes to the recalled queue whenever it comes: [`Answer::InTime`]. The
//! due time is the publisher's, and is compared with the clock of whoever recalls. The margin
//! leaves room for both: for two clocks that differ, and for the nodes of a cluster, which do
//! not learn of a binding at the same moment.
//!
//! The binding has no arguments: the management API of RabbitMQ (3.10 to 4.3 at least) lists no
//! binding of the vhost any more once there is one that has arguments and a `~` in its key.
//!
//! Faults on the way can make two of one message. Both have the same routing key, so a recall
//! is for both.

mod replace;

/// Its Rust examples are compiled with ours.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/recall.md")]
mod document {}

use std::{
    collections::{HashSet, VecDeque},
    fmt, thread,
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};

use delayline_amqp::{AmqpError, Session, Turned, broker::Broker};
use delayline_core::{
    codec::AppKey,
    message::{Handle, Headers, Value, headers::DUE},
    topology::{Binding, IF_MISSING, Names, SetName},
};

pub use replace::{ReplaceError, Replaced, renewed};

/// How long before it is due a message has to be recalled so that it is certainly not
/// delivered: 2 s.
pub const MARGIN: Duration = Duration::from_secs(2);

/// How many messages are taken from the recalled queue at a time, to look at them.
const PAGE: u16 = 1_000;

/// How long the broker may take to hand out the next one of them.
const PATIENCE: Duration = Duration::from_secs(5);

/// What came of a recall, or of undoing one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// It is done in good time: a message that was recalled will not be delivered, and one
    /// whose recall was undone will be.
    InTime,
    /// The message was due already, and nothing was changed. It has arrived where it belonged
    /// before this call, or will when it comes: among the recalled ones, if somebody else had
    /// recalled it in time.
    TooLate,
    /// It is done, but so shortly before the message was due that it may have come too late,
    /// or it is not known when the message is due, or it says a time that its delay rules out; or the message is due now, and an earlier
    /// try, whose answer was lost, may have done it. [`Recaller::is_recalled`] tells afterwards.
    Uncertain,
}

impl Answer {
    /// What something is worth that is done now. A message that was published before is due after
    /// its delay, counted from now, at the latest: if it says more, one of the clocks is wrong, and
    /// it may have been due already.
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

/// Why a message could not be recalled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecallError {
    /// There is no set.
    #[error("{text}; {IF_MISSING}")]
    NoSet {
        /// The broker's own words.
        text: String,
    },
    /// The application has no objects for recalling.
    #[error(
        "messages of `{app}` cannot be recalled: it was registered without that ({text}). Run `delayline app \
         add {app} --recall`; its messages with an id are unroutable until then"
    )]
    NotOffered {
        /// The application.
        app: AppKey,
        /// The broker's own words.
        text: String,
    },
    /// The user may not.
    #[error("this user may not recall messages of `{app}`: {text}")]
    NotPermitted {
        /// The application.
        app: AppKey,
        /// The broker's own words.
        text: String,
    },
    /// The AMQP side failed; it is not known whether anything was done. Doing it again is
    /// safe. Do it with the same [`Recaller`]: it knows then that this try may have been in
    /// time.
    #[error(transparent)]
    Amqp(#[from] AmqpError),
}

impl RecallError {
    fn new(app: &AppKey, error: AmqpError) -> Self {
        const ACCESS_REFUSED: u16 = 403;
        const NOT_FOUND: u16 = 404;
        let app = app.clone();
        match error {
            AmqpError::Channel { code: NOT_FOUND, text } => Self::NotOffered { app, text },
            AmqpError::Channel { code: ACCESS_REFUSED, text } => Self::NotPermitted { app, text },
            other => Self::Amqp(other),
        }
    }

    /// Whether the session is of no more use.
    fn is_connection(&self) -> bool {
        matches!(self, Self::Amqp(error) if error.is_connection())
    }

    /// Whether the broker may have done it all the same.
    fn may_be_done(&self) -> bool {
        use AmqpError::{Closed, Lost, Silent};
        matches!(self, Self::Amqp(Closed { .. } | Lost { .. } | Silent { .. }))
    }
}

/// A connection that recalls messages of one set, one at a time. If it is lost, the next call
/// connects again.
pub struct Recaller {
    broker: Broker,
    names: Names,
    session: Option<Session>,
    /// The routing keys whose last change was lost on its way, so that the broker may have made
    /// it.
    lost: HashSet<String>,
    /// The routing keys that were recalled last.
    recalled: VecDeque<String>,
}

/// How many of those are remembered.
const REMEMBERED: usize = 10_000;

impl Recaller {
    /// Connects.
    ///
    /// # Errors
    /// Unreachable, TLS, or refused.
    pub fn connect(broker: Broker, set: SetName) -> Result<Self, AmqpError> {
        let session = Some(open(&broker)?);
        Ok(Self { broker, names: Names::new(set), session, lost: HashSet::new(), recalled: VecDeque::new() })
    }

    /// Recalls a message: once this answers [`Answer::InTime`], it will not be delivered.
    /// Recalling it twice is no error.
    ///
    /// # Errors
    /// If the broker refuses, or is lost.
    pub fn recall(&mut self, handle: &Handle) -> Result<Answer, RecallError> {
        let answer = self.change(handle, Session::bind)?;
        if answer != Answer::TooLate && !self.has_recalled(handle) {
            self.recalled.truncate(REMEMBERED - 1);
            self.recalled.push_front(handle.routing_key().encode());
        }
        Ok(answer)
    }

    /// Undoes the recall of a message: once this answers [`Answer::InTime`], it will be
    /// delivered. It is no error if the message was not recalled.
    ///
    /// # Errors
    /// If the broker refuses, or is lost.
    pub fn undo(&mut self, handle: &Handle) -> Result<Answer, RecallError> {
        let answer = self.change(handle, Session::unbind)?;
        let key = handle.routing_key().encode();
        self.recalled.retain(|recalled| *recalled != key);
        Ok(answer)
    }

    /// Whether the message is among the last ones that this one recalled.
    fn has_recalled(&self, handle: &Handle) -> bool {
        self.recalled.contains(&handle.routing_key().encode())
    }

    fn change(
        &mut self,
        handle: &Handle,
        change: fn(&mut Session, &Binding) -> Result<(), AmqpError>,
    ) -> Result<Answer, RecallError> {
        let binding = Binding::recalling(&self.names, handle.routing_key());
        if is_over(handle, Timestamp::now()) {
            let earlier = self.lost.contains(&binding.key);
            return Ok(if earlier { Answer::Uncertain } else { Answer::TooLate });
        }
        match self.call(handle.app(), |session| change(session, &binding)) {
            Ok(()) => {
                self.lost.remove(&binding.key);
                Ok(Answer::for_what_is_done(handle, Timestamp::now()))
            }
            Err(error) => {
                if error.may_be_done() {
                    self.lost.insert(binding.key);
                }
                Err(error)
            }
        }
    }

    /// Fails if an application has no objects for recalling, as far as this user can see. So
    /// nothing is begun that cannot be finished.
    ///
    /// # Errors
    /// [`RecallError::NotOffered`], [`RecallError::NoSet`], or if the broker is lost.
    pub fn check(&mut self, app: &AppKey) -> Result<(), RecallError> {
        let queue = self.names.recalled(app);
        match self.call(app, |session| ready(session, &queue)) {
            // Some versions let only those count who may configure the queue.
            Ok(_) | Err(RecallError::NotPermitted { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether a message is in the queue of recalled messages now. It reads the queue on a
    /// connection of its own, and puts everything back; what somebody else holds meanwhile is
    /// not seen. A queue with a delivery limit, by a policy, counts each look, and drops the
    /// messages after so many.
    ///
    /// # Errors
    /// If the broker refuses, or is lost.
    pub fn is_recalled(&mut self, handle: &Handle) -> Result<bool, RecallError> {
        let queue = self.names.recalled(handle.app());
        let ready = self.call(handle.app(), |session| ready(session, &queue))?;
        let mut reader = open(&self.broker)?;
        let found = holds(&mut reader, &queue, ready, handle);
        drop(reader);
        // The next look should find what this one has put back.
        let deadline = Instant::now() + PATIENCE;
        while self.call(handle.app(), |session| self::ready(session, &queue))? < ready
            && Instant::now() < deadline
        {
            thread::sleep(Duration::from_millis(5));
        }
        found.map_err(|error| RecallError::new(handle.app(), error))
    }

    fn call<T>(
        &mut self,
        app: &AppKey,
        work: impl FnOnce(&mut Session) -> Result<T, AmqpError>,
    ) -> Result<T, RecallError> {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => open(&self.broker)?,
        };
        let result = work(&mut session).map_err(|error| match RecallError::new(app, error) {
            // Without a set, it is not the application that has to be registered.
            RecallError::NotOffered { text, .. }
                if session.exchange_exists(&self.names.entry()) == Ok(false) =>
            {
                RecallError::NoSet { text }
            }
            error => error,
        });
        if !result.as_ref().is_err_and(RecallError::is_connection) {
            self.session = Some(session);
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

/// How many messages of a queue are ready.
fn ready(session: &mut Session, queue: &str) -> Result<u32, AmqpError> {
    let missing = || AmqpError::Channel { code: 404, text: format!("there is no queue `{queue}`") };
    Ok(session.queue_depth(queue)?.ok_or_else(missing)?.ready)
}

/// Whether the first messages of a queue, so many, have this one. The session holds what it
/// has read until it is closed.
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
                // Somebody else took the rest.
                Turned::Timeout => return Ok(false),
                Turned::Ended(cause) => return Err(cause),
            }
        }
        page.end()?;
    }
    Ok(false)
}

/// Whether a message with the key of a handle is due when the handle says, as far as both say
/// it: an earlier message with the same id and delay may be there still.
fn is_due_with(headers: &Headers, handle: &Handle) -> bool {
    let due = headers.get(DUE).and_then(Value::as_i64);
    due.and_then(|due| Timestamp::from_millisecond(due).ok()).is_none_or(|due| handle.may_be_due_at(due))
}

impl fmt::Debug for Recaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recaller").field("connected", &self.session.is_some()).finish_non_exhaustive()
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
    fn an_answer_is_certain_only_in_good_time() {
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
        // Written down as a date, without the fraction of a second.
        assert!(is_due_with(&due(10_412), &handle(Some(10_000))));
        // Nobody says when it is due.
        assert!(is_due_with(&due(9_000), &handle(None)));
        assert!(is_due_with(&Headers::new(), &handle(Some(10_000))));
    }

    #[test]
    fn only_a_known_due_time_can_be_over() {
        let at = |now| Timestamp::from_millisecond(now).unwrap();
        assert!(is_over(&handle(Some(5)), at(5)) && !is_over(&handle(Some(5)), at(4)));
        assert!(!is_over(&handle(None), at(i64::from(i32::MAX))));
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let app = AppKey::new("billing").unwrap();
        let refusal =
            |code| RecallError::new(&app, AmqpError::Channel { code, text: "REASON".into() }).to_string();
        assert!(refusal(404).contains("delayline app add billing --recall"), "{}", refusal(404));
        assert!(refusal(403).contains("may not recall messages of `billing`: REASON"), "{}", refusal(403));
        assert!(refusal(406).contains("406"));
    }

    #[test]
    fn only_what_reached_the_broker_may_be_done() {
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
