//! A message to be delivered later, and what it becomes on the wire.
//!
//! All of it is pure: what a message may contain, which headers the wire contract forbids,
//! and how a delay turns into a due time and a routing key.

mod carried;
mod forbidden;
mod handle;
mod header;
#[cfg(feature = "serde")]
mod json;
mod prepare;
mod published;
mod quota;
mod resend;
mod schedule;

use jiff::Timestamp;

use crate::codec::{AppKey, Delay, MessageId, RoutingKey, Tolerance};

pub use carried::{MAX_NESTING, crashes_streams, not_kept};
pub use forbidden::{asks_to_be_held, is_forbidden};
pub use handle::{Handle, HandleError};
pub use header::{Headers, Value};
pub use prepare::{InvalidMessage, MAX_PROPERTIES_BYTES, Wire, check, check_parts};
pub use published::{Published, nearest};
pub use quota::{MaxDelay, MaxDelayError, MaxRecalls, MaxRecallsError, Quota};
pub use resend::{move_user_id, resend};
pub use schedule::Schedule;

/// The longest short string of AMQP, in bytes.
const MAX_SHORT: usize = 255;

/// Names of the headers that begin with `delayline-`.
pub mod headers {
    /// When the message is due, in ms since the epoch.
    pub const DUE: &str = "delayline-due";
    /// The ms since the epoch after which the message is worthless. It replaces
    /// the property `expiration`, which would make the message leave its level
    /// early.
    pub const EXPIRES: &str = "delayline-expires";
    /// The exchange that a message came from before it was sent again.
    pub const EXCHANGE: &str = "delayline-exchange";
    /// The routing key that it came with.
    pub const ROUTING_KEY: &str = "delayline-routing-key";
    /// The property `user_id` of a message that another user sent again: the broker accepts
    /// that property only from the user it names.
    pub const USER_ID: &str = "delayline-user-id";
    /// The number of the retry, from 1.
    pub const ATTEMPT: &str = "delayline-attempt";
    /// When it failed for the first time, in ms since the epoch.
    pub const FIRST_FAILED: &str = "delayline-first-failed";
    /// When it failed last, in ms since the epoch.
    pub const LAST_FAILED: &str = "delayline-last-failed";
    /// Why it failed last.
    pub const FAILURE: &str = "delayline-failure";
    /// Whether a copy of it went into the journal of its application, so that one of its retry
    /// does so as well.
    pub const JOURNAL: &str = "delayline-journal";
    /// Why it was parked.
    pub const REASON: &str = "delayline-reason";
}

/// When a message should be delivered.
///
/// Times of the standard library convert:
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use delayline::{codec::Delay, message::When};
///
/// let in_a_minute = When::After(Duration::from_secs(60).try_into()?);
/// let tomorrow = When::At((SystemTime::now() + Duration::from_secs(86_400)).try_into()?);
/// # assert_eq!(in_a_minute, When::After(Delay::from_seconds(60)?));
/// # assert!(matches!(tomorrow, When::At(_)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum When {
    /// This long after it was given to the router.
    After(Delay),
    /// At an instant of the wall clock, rounded up to a whole unit from now; at
    /// once if it has passed.
    At(Timestamp),
}

/// A message, its recipient, and its time.
///
/// ```
/// use delayline::{codec::{AppKey, Delay}, message::Message};
///
/// let message = Message::after(AppKey::new("billing")?, "90s".parse()?, "invoice 17")
///     .with_header("customer", "C-4")
///     .with_tolerance("5%".parse()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Message {
    /// The application that receives it.
    pub app: AppKey,
    /// When it is delivered.
    pub when: When,
    /// How much later is acceptable to save queue hops.
    pub tolerance: Tolerance,
    /// The payload: any bytes. Brokers cap it (16 MiB by default from
    /// RabbitMQ 4.0, 128 MiB before) and refuse the message if it is larger. A
    /// [`Quota`] can cap it too.
    pub body: Vec<u8>,
    /// The standard properties.
    pub properties: Properties,
    /// Further headers. Those that would change where or when the message goes
    /// (`CC`, `BCC`, `x-death` and its relatives, `x-delivery-count`,
    /// `x-opt-delivery-time`, `x-opt-delivery-delay`) are not sent.
    pub headers: Headers,
    /// What makes it recognisable, so that it can be recalled. Its application needs the
    /// objects for that (`delayline app add --recall`): without them, messages with an id are
    /// unroutable.
    pub id: Option<MessageId>,
    /// Whether a copy goes into the journal of its application, so that it can be listed until
    /// it is due. The application needs one (`delayline app add --recall --journal`); without
    /// one, there is no copy, and everything else is the same.
    pub journalled: bool,
    /// Where it goes instead of through the levels.
    pub direct: Option<Direct>,
    /// The key it may have been published with already.
    pub(crate) fixed: Option<Fixed>,
}

/// The handle of a message that was published without an answer, and the time it was meant
/// for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fixed {
    handle: Handle,
    when: When,
}

/// An exchange and a routing key, for a message that is not delayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Direct {
    /// The exchange.
    pub exchange: String,
    /// The routing key.
    pub routing_key: String,
    /// Whether properties and headers are sent as they are, also those that would move the
    /// message: it leaves us here.
    pub verbatim: bool,
}

/// The standard properties of an AMQP message; all text is 255 bytes at most.
///
/// The delivery mode is missing: every message is sent persistent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Properties {
    /// MIME type of the body.
    pub content_type: Option<String>,
    /// Encoding of the body.
    pub content_encoding: Option<String>,
    /// Priority, 0 to 255. On RabbitMQ 4.0 to 4.2 a priority over 4 can hold
    /// back other messages in the same level.
    pub priority: Option<u8>,
    /// What a reply refers to.
    pub correlation_id: Option<String>,
    /// Where to reply.
    pub reply_to: Option<String>,
    /// Time to live in ms, counted from when the router takes the message. Sent
    /// as the header [`headers::EXPIRES`].
    pub expiration: Option<String>,
    /// The application's own id for the message.
    pub message_id: Option<String>,
    /// Seconds since the epoch.
    pub timestamp: Option<u64>,
    /// The kind of message.
    pub kind: Option<String>,
    /// The publishing user; the broker refuses any other than the connected one.
    pub user_id: Option<String>,
    /// The publishing application.
    pub app_id: Option<String>,
}

impl Properties {
    /// The properties that AMQP writes as short strings, by their AMQP names.
    pub fn short_strings(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [
            ("content_type", &self.content_type),
            ("content_encoding", &self.content_encoding),
            ("correlation_id", &self.correlation_id),
            ("reply_to", &self.reply_to),
            ("expiration", &self.expiration),
            ("message_id", &self.message_id),
            ("type", &self.kind),
            ("user_id", &self.user_id),
            ("app_id", &self.app_id),
        ]
        .into_iter()
        .filter_map(|(name, text)| Some((name, text.as_deref()?)))
    }
}

impl Message {
    /// Whether the next queue that it enters is an application's own, which may be full for
    /// as long as that application likes.
    pub fn goes_straight_to_an_application(&self) -> bool {
        match &self.direct {
            Some(direct) => direct.verbatim,
            None => self.when == When::After(Delay::ZERO),
        }
    }

    /// A message that is delivered after a delay.
    pub fn after(app: AppKey, delay: Delay, body: impl Into<Vec<u8>>) -> Self {
        Self::new(app, When::After(delay), body)
    }

    /// A message that is delivered at an instant.
    pub fn at(app: AppKey, instant: Timestamp, body: impl Into<Vec<u8>>) -> Self {
        Self::new(app, When::At(instant), body)
    }

    /// A message that is delivered when it says.
    pub fn new(app: AppKey, when: When, body: impl Into<Vec<u8>>) -> Self {
        Self {
            app,
            when,
            tolerance: Tolerance::NONE,
            body: body.into(),
            properties: Properties::default(),
            headers: Headers::new(),
            id: None,
            journalled: false,
            direct: None,
            fixed: None,
        }
    }

    /// A message that goes to an exchange at once, bypassing the levels.
    pub fn direct(app: AppKey, exchange: String, body: impl Into<Vec<u8>>) -> Self {
        let routing_key = app.to_string();
        Self::keyed(app, exchange, routing_key, body)
    }

    /// A message that goes to an exchange at once, with a routing key that stays the same
    /// however long the message waits in the router.
    pub fn keyed(app: AppKey, exchange: String, routing_key: String, body: impl Into<Vec<u8>>) -> Self {
        let direct = Some(Direct { exchange, routing_key, verbatim: false });
        Self { direct, ..Self::after(app, Delay::ZERO, body) }
    }

    /// Like [`keyed`](Self::keyed), with all its properties and headers sent as they are.
    pub fn verbatim(app: AppKey, exchange: String, routing_key: String, body: impl Into<Vec<u8>>) -> Self {
        let direct = Some(Direct { exchange, routing_key, verbatim: true });
        Self { direct, ..Self::after(app, Delay::ZERO, body) }
    }

    /// Gives it an id, so that it can be recalled. No two waiting messages of an application
    /// should have the same one: recalling one of two with the same id and delay recalls both.
    #[must_use]
    pub fn with_id(mut self, id: MessageId) -> Self {
        self.id = Some(id);
        self
    }

    /// Has a copy of it put into the journal of its application, so that it can be listed, and
    /// with an id also recalled by that. A journal does not keep headers that are tables, arrays or
    /// decimals, nor some others: publishing such a message is refused, and the error names what
    /// it is.
    #[must_use]
    pub fn journalled(mut self) -> Self {
        self.journalled = true;
        self
    }

    /// What it can be recalled with, once it is published with this delay and due at this time;
    /// `None` without an id.
    #[must_use]
    pub fn handle(&self, delay: Delay, due: Timestamp) -> Option<Handle> {
        let id = self.id.clone().filter(|_| self.direct.is_none())?;
        let key = RoutingKey::new(delay, self.app.clone()).with_id(id).ok()?;
        Handle::new(key, Some(due)).ok()
    }

    /// Records the handle that it may have been published with. It gets the same one when it
    /// is published again, so that recalling it recalls every copy.
    pub fn fix(&mut self, handle: Handle) {
        self.fixed = Some(Fixed { handle, when: self.when });
    }

    /// The handle that it was published with before, if it is still the same message.
    pub fn fixed(&self) -> Option<&Handle> {
        let fixed = self.fixed.as_ref()?;
        let same = fixed.handle.app() == &self.app
            && Some(fixed.handle.id()) == self.id.as_ref()
            && fixed.when == self.when;
        same.then_some(&fixed.handle)
    }

    /// Allows it to be later, if that saves hops.
    #[must_use]
    pub fn with_tolerance(mut self, tolerance: Tolerance) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// Adds a header, or replaces the one of that name.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Sets the standard properties.
    #[must_use]
    pub fn with_properties(mut self, properties: Properties) -> Self {
        self.properties = properties;
        self
    }
}
