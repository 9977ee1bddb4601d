//! The handle of a message: its publisher keeps it for a recall.

use std::{fmt, str::FromStr};

use jiff::Timestamp;

use crate::codec::{AppKey, MessageId, RoutingKey, RoutingKeyError};

/// A message that can be recalled: its whole routing key, as it was published, and its due time if
/// that is known.
///
/// As text it is the key, then an `@` and the due time, in ms since the epoch or as RFC 3339.
///
/// ```
/// use delayline::message::Handle;
///
/// let handle: Handle = "delay.0000.0000.0000.0000.0000.0101.1010.billing.~.17@1767222000000".parse()?;
/// assert_eq!(handle.id().as_str(), "17");
/// assert_eq!(handle.due().map(|due| due.as_second()), Some(1_767_222_000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Handle {
    key: RoutingKey,
    due: Option<Timestamp>,
}

/// Why something is not a [`Handle`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandleError {
    /// The routing key is malformed.
    #[error(transparent)]
    RoutingKey(#[from] RoutingKeyError),
    /// The routing key has no id, so nothing distinguishes the message from others.
    #[error(
        "the routing key `{key}` has no id, and only messages with an id can be recalled: publish them with \
         `.~.` and an id behind the app key"
    )]
    NoId {
        /// The key.
        key: String,
    },
    /// The text after the `@` is not a time.
    #[error(
        "`{}` is not a due time; write ms since the epoch, or a time such as 2026-12-31T18:00:00Z",
        text.escape_debug()
    )]
    Due {
        /// The text.
        text: String,
    },
}

impl Handle {
    /// The handle of a message that was published with this key.
    ///
    /// # Errors
    /// [`HandleError::NoId`].
    pub fn new(key: RoutingKey, due: Option<Timestamp>) -> Result<Self, HandleError> {
        match key.id() {
            Some(_) => Ok(Self { key, due }),
            None => Err(HandleError::NoId { key: key.encode() }),
        }
    }

    /// The routing key.
    #[must_use]
    pub fn routing_key(&self) -> &RoutingKey {
        &self.key
    }

    /// The application that receives the message.
    #[must_use]
    pub fn app(&self) -> &AppKey {
        &self.key.app
    }

    /// The id of the message.
    #[must_use]
    pub fn id(&self) -> &MessageId {
        self.key.id().expect("a handle has an id")
    }

    /// When the message is due, to the millisecond, if that is known.
    #[must_use]
    pub fn due(&self) -> Option<Timestamp> {
        self.due
    }

    /// Whether a message with this key that is due at `due` can be the intended one. A due time
    /// that was written as a date may lack its fraction of a second. Without a known due time, any
    /// message matches.
    #[must_use]
    pub fn may_be_due_at(&self, due: Timestamp) -> bool {
        self.due.is_none_or(|meant| meant.as_millisecond().abs_diff(due.as_millisecond()) < 1_000)
    }

    /// The same message, due at this time.
    #[must_use]
    pub fn with_due(self, due: Timestamp) -> Self {
        Self { due: Some(due), ..self }
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key.fmt(f)?;
        match self.due {
            Some(due) => write!(f, "@{}", due.as_millisecond()),
            None => Ok(()),
        }
    }
}

impl FromStr for Handle {
    type Err = HandleError;

    fn from_str(text: &str) -> Result<Self, HandleError> {
        // An app key can contain an `@`; an id cannot.
        let (key, due) = match text.rsplit_once('@') {
            Some((key, due)) if key.contains(".~.") => (key, Some(time(due)?)),
            _ => (text, None),
        };
        Self::new(key.parse()?, due)
    }
}

fn time(text: &str) -> Result<Timestamp, HandleError> {
    let parsed = match text.parse() {
        Ok(millisecond) => Timestamp::from_millisecond(millisecond).ok(),
        Err(_) => text.parse().ok(),
    };
    parsed.ok_or_else(|| HandleError::Due { text: text.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "delay.0000.0000.0000.0000.0000.0101.1010.a@b.~.17";

    #[test]
    fn is_read_as_it_is_written() {
        for text in [KEY.to_owned(), format!("{KEY}@1767222000123"), format!("{KEY}@-5")] {
            assert_eq!(text.parse::<Handle>().unwrap().to_string(), text);
        }
        let handle: Handle = format!("{KEY}@2026-01-01T00:00:00.5Z").parse().unwrap();
        assert_eq!(handle.to_string(), format!("{KEY}@1767225600500"));
        assert_eq!((handle.app().as_str(), handle.id().as_str()), ("a@b", "17"));
    }

    #[test]
    fn names_the_fault() {
        let parse = |text: &str| text.parse::<Handle>().unwrap_err();
        let plain = "delay.0000.0000.0000.0000.0000.0101.1010.billing";
        assert!(matches!(parse(plain), HandleError::NoId { .. }));
        assert!(matches!(parse(&format!("{KEY}@tomorrow")), HandleError::Due { .. }));
        assert!(matches!(parse(&format!("{KEY}@")), HandleError::Due { .. }));
        assert!(matches!(parse(&format!("{KEY}@99999999999999999")), HandleError::Due { .. }));
        assert!(matches!(parse("billing.~.17"), HandleError::RoutingKey(_)));
        assert!(matches!(parse(""), HandleError::RoutingKey(_)));
    }
}
