//! The id of a message. With it, the message can be recalled.

use std::{fmt, str::FromStr};

/// The id of a message that may be recalled: 1 to 64 of `A-Z`, `a-z`, `0-9`, `_` and `-`.
///
/// It ends the routing key, after the app key and the word `~`. The publisher chooses a new id for
/// each message of an application. A recall binds the id and the delay, so it also catches a later
/// message that has both.
///
/// ```
/// use delayline::codec::MessageId;
///
/// assert!("invoice-17-1".parse::<MessageId>().is_ok());
/// assert!("invoice.17".parse::<MessageId>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(String);

/// Why a text is not a [`MessageId`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageIdError {
    /// It is empty.
    #[error("the id is empty; use 1 to {} of A-Z, a-z, 0-9, `_` and `-`", MessageId::MAX_BYTES)]
    Empty,
    /// A character that is not allowed.
    #[error(
        "the id `{}` has {found:?} at byte {position}; use only A-Z, a-z, 0-9, `_` and `-`",
        id.escape_debug()
    )]
    ForbiddenCharacter {
        /// The given id.
        id: String,
        /// The first such character.
        found: char,
        /// Its position, in bytes from 0.
        position: usize,
    },
    /// It is longer than 64 bytes.
    #[error("the id is {length} bytes long; it may have {} at most", MessageId::MAX_BYTES)]
    TooLong {
        /// Its length in bytes.
        length: usize,
    },
}

impl MessageId {
    /// The longest id, in bytes. After an app key of more than 147 bytes, an id must be shorter;
    /// see [`RoutingKey::with_id`](super::RoutingKey::with_id).
    pub const MAX_BYTES: usize = 64;

    /// Checks an id.
    ///
    /// # Errors
    /// The fault in the id.
    pub fn new(id: impl Into<String>) -> Result<Self, MessageIdError> {
        let id = id.into();
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        if id.is_empty() {
            return Err(MessageIdError::Empty);
        }
        if id.len() > Self::MAX_BYTES {
            return Err(MessageIdError::TooLong { length: id.len() });
        }
        match id.char_indices().find(|&(_, c)| !allowed(c)) {
            Some((position, found)) => Err(MessageIdError::ForbiddenCharacter { id, found, position }),
            None => Ok(Self(id)),
        }
    }

    /// The separator before the suffix of a renewed id.
    const SEPARATOR: &str = "--";

    /// The length of the suffix.
    const SUFFIX: usize = 10;

    /// This id with another suffix: `--` and ten characters of `0-9a-z` that encode `number`. A
    /// suffix of that form is replaced, and an id of more than 52 bytes is truncated.
    /// `recall::renewed` uses a random number.
    ///
    /// ```
    /// use delayline::codec::MessageId;
    ///
    /// let id: MessageId = "invoice-17-1".parse()?;
    /// assert_eq!(id.with_suffix(35).as_str(), "invoice-17-1--000000000z");
    /// assert_eq!(id.with_suffix(35).with_suffix(36).as_str(), "invoice-17-1--0000000010");
    /// assert!(id.with_suffix(35).is_of(&id));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_suffix(&self, number: u64) -> Self {
        let mut left = number;
        let mut suffix: Vec<char> = (0..Self::SUFFIX)
            .map(|_| {
                let digit = char::from_digit(u32::try_from(left % 36).unwrap_or(0), 36);
                left /= 36;
                digit.unwrap_or('0')
            })
            .collect();
        suffix.reverse();
        let suffix: String = suffix.into_iter().collect();
        Self(format!("{}{}{suffix}", self.stem(), Self::SEPARATOR))
    }

    /// Whether this is the given id, with or without a suffix of
    /// [`with_suffix`](Self::with_suffix).
    #[must_use]
    pub fn is_of(&self, id: &Self) -> bool {
        self == id || id.split().is_none() && self.renews(id)
    }

    /// Whether this has a suffix of [`with_suffix`](Self::with_suffix), and equals the given id
    /// without it.
    #[must_use]
    pub fn renews(&self, id: &Self) -> bool {
        self != id && self.split().is_some() && self.stem() == id.stem()
    }

    /// The id without its suffix, if it has one.
    fn split(&self) -> Option<&str> {
        let (stem, suffix) = self.0.rsplit_once(Self::SEPARATOR)?;
        let digit = |c: char| c.is_ascii_digit() || c.is_ascii_lowercase();
        (!stem.is_empty() && suffix.len() == Self::SUFFIX && suffix.chars().all(digit)).then_some(stem)
    }

    /// The start of a renewed id.
    fn stem(&self) -> &str {
        let longest = Self::MAX_BYTES - Self::SEPARATOR.len() - Self::SUFFIX;
        let stem = self.split().unwrap_or(&self.0);
        &stem[..stem.len().min(longest)]
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for MessageId {
    type Err = MessageIdError;

    fn from_str(id: &str) -> Result<Self, MessageIdError> {
        Self::new(id)
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_ids_that_fit_a_word_of_a_key() {
        for id in ["a", "0", "-", "_", "Invoice_17-b", &"x".repeat(64)] {
            assert_eq!(MessageId::new(id).expect(id).as_str(), id);
        }
    }

    #[test]
    fn refuses_other_ids_with_a_reason() {
        assert_eq!(MessageId::new(""), Err(MessageIdError::Empty));
        assert_eq!(MessageId::new("x".repeat(65)), Err(MessageIdError::TooLong { length: 65 }));
        for (id, at) in
            [("a.b", 1), ("*", 0), ("#", 0), ("~", 0), ("a b", 1), ("ab\n", 2), ("ä", 0), ("a@1", 1)]
        {
            match MessageId::new(id) {
                Err(MessageIdError::ForbiddenCharacter { position, .. }) => assert_eq!(position, at, "{id}"),
                other => panic!("{id:?} gave {other:?}"),
            }
        }
    }
}
