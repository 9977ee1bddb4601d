//! A message to be delivered later, and its form on the wire.
//!
//! All of it is pure: which contents a message may have, which headers the wire contract forbids,
//! and how a delay becomes a due time and a routing key.

mod arrival;
mod carried;
pub mod direct;
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

pub use arrival::SMALLEST_FRAME_LIMIT;
pub use carried::{MAX_NESTING, crashes_streams};
use direct::Direct;
pub use forbidden::{asks_to_be_held, is_forbidden};
pub use handle::{Handle, HandleError};
pub use header::{Headers, Value};
pub use prepare::{InvalidMessage, MAX_PROPERTIES_BYTES, Wire, check, check_parts};
pub use published::{Published, nearest};
pub use quota::{MaxDelay, MaxDelayError, MaxRecalls, MaxRecallsError, Quota, admit};
pub use resend::{move_user_id, resend};
pub use schedule::Schedule;

/// The longest short string of AMQP, in bytes.
const MAX_SHORT: usize = 255;

/// Names of headers that begin with `delayline-`.
pub mod headers {
    /// When the message is due, in ms since the epoch.
    pub const DUE: &str = "delayline-due";
    /// The ms since the epoch after which the message is worthless. It replaces the property
    /// `expiration`, with which the message would leave its level early.
    pub const EXPIRES: &str = "delayline-expires";
    /// The exchange that a message was published to before it was sent again.
    pub const EXCHANGE: &str = "delayline-exchange";
    /// The routing key that it had then.
    pub const ROUTING_KEY: &str = "delayline-routing-key";
    /// The property `user_id` of a message that another user sent again. The broker accepts that
    /// property only from the user it names.
    pub const USER_ID: &str = "delayline-user-id";
    /// The number of the retry, from 1.
    pub const ATTEMPT: &str = "delayline-attempt";
    /// When it failed for the first time, in ms since the epoch.
    pub const FIRST_FAILED: &str = "delayline-first-failed";
    /// When it failed last, in ms since the epoch.
    pub const LAST_FAILED: &str = "delayline-last-failed";
    /// Why it failed last.
    pub const FAILURE: &str = "delayline-failure";
    /// The name of the recurring schedule that it belongs to.
    pub const SCHEDULE: &str = "delayline-schedule";
    /// The occurrence of that schedule, in ms since the epoch.
    pub const OCCURRENCE: &str = "delayline-occurrence";
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
    /// This long after the router received it.
    After(Delay),
    /// At an instant of the wall clock, rounded up to a whole unit from now. If it has passed, at
    /// once.
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
    /// The id, so that it can be recalled. Its application needs the objects for recalls
    /// (`delayline app add --recall`). Without them, messages with an id are unroutable.
    pub id: Option<MessageId>,
    /// The target, if it bypasses the levels.
    pub(crate) direct: Option<Direct>,
    /// The key that it may have been published with before.
    pub(crate) fixed: Option<Fixed>,
}

/// The handle of a message that was published without an answer, and its intended time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fixed {
    handle: Handle,
    when: When,
}

/// The standard properties of an AMQP message; all text is 255 bytes at most.
///
/// The delivery mode is not included: every message is sent persistent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Properties {
    /// MIME type of the body.
    pub content_type: Option<String>,
    /// Encoding of the body.
    pub content_encoding: Option<String>,
    /// Priority, 0 to 255. On RabbitMQ 4.0 to 4.2 a priority over 4 can hold
    /// back other messages in the same level.
    pub priority: Option<u8>,
    /// The message that a reply refers to.
    pub correlation_id: Option<String>,
    /// Where to send a reply.
    pub reply_to: Option<String>,
    /// Time to live in ms, counted from when the router receives the message. Sent as the header
    /// [`headers::EXPIRES`].
    pub expiration: Option<String>,
    /// The application's own id for the message.
    pub message_id: Option<String>,
    /// Seconds since the epoch.
    pub timestamp: Option<u64>,
    /// The kind of message.
    pub kind: Option<String>,
    /// The publishing user. The broker refuses any name except the connected user's.
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
    /// A message that is delivered after a delay.
    pub fn after(app: AppKey, delay: Delay, body: impl Into<Vec<u8>>) -> Self {
        Self::new(app, When::After(delay), body)
    }

    /// A message that is delivered at an instant.
    pub fn at(app: AppKey, instant: Timestamp, body: impl Into<Vec<u8>>) -> Self {
        Self::new(app, When::At(instant), body)
    }

    /// A message that is delivered at this time.
    pub fn new(app: AppKey, when: When, body: impl Into<Vec<u8>>) -> Self {
        Self {
            app,
            when,
            tolerance: Tolerance::NONE,
            body: body.into(),
            properties: Properties::default(),
            headers: Headers::new(),
            id: None,
            direct: None,
            fixed: None,
        }
    }

    /// Gives it an id, so that it can be recalled. The waiting messages of an application should
    /// have different ids. If two have the same id and delay, recalling one recalls both.
    #[must_use]
    pub fn with_id(mut self, id: MessageId) -> Self {
        self.id = Some(id);
        self
    }

    /// The handle for recalling it, once it is published with this delay and due at this time.
    /// `None` without an id.
    #[must_use]
    pub fn handle(&self, delay: Delay, due: Timestamp) -> Option<Handle> {
        let id = self.id.clone().filter(|_| self.direct.is_none())?;
        let key = RoutingKey::new(delay, self.app.clone()).with_id(id).ok()?;
        Handle::new(key, Some(due)).ok()
    }

    /// Allows it to be later, if that saves hops.
    #[must_use]
    pub fn with_tolerance(mut self, tolerance: Tolerance) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// Adds a header, or replaces the header of that name.
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

/// Records the handle that a message may have been published with. Publishing it again uses the
/// same handle, so that recalling it recalls every copy.
pub fn fix(message: &mut Message, handle: Handle) {
    message.fixed = Some(Fixed { handle, when: message.when });
}

/// The handle that a message was published with before, if the message has not changed.
pub fn fixed(message: &Message) -> Option<&Handle> {
    let fixed = message.fixed.as_ref()?;
    let same = fixed.handle.app() == &message.app
        && Some(fixed.handle.id()) == message.id.as_ref()
        && fixed.when == message.when;
    same.then_some(&fixed.handle)
}
