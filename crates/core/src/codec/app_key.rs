//! The name of a consuming application, which ends a routing key.

use std::{fmt, str::FromStr};

/// The app key: 1 or more dot-separated words, 150 bytes at most.
///
/// No word is empty, none is `~`, and none holds `*`, `#`, white space or control characters.
/// An AMQP routing key has 255 bytes at most: the delay takes 41 of them, and the rest is for
/// an id behind the app key, separated by the word `~`.
///
/// ```
/// use delayline::codec::AppKey;
///
/// assert!("eu.orders".parse::<AppKey>().is_ok());
/// assert!("eu.*".parse::<AppKey>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppKey(String);

/// Why a text is not an [`AppKey`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppKeyError {
    /// It is empty.
    #[error("the app key is empty; give the consuming application a name, such as `billing`")]
    Empty,
    /// Two dots in a row, or a dot at the start or end.
    #[error("the app key `{key}` has an empty word; put one or more characters between its dots")]
    EmptyWord {
        /// The given key.
        key: String,
    },
    /// The word `~`, which separates an app key from what follows it.
    #[error("the app key `{key}` contains the word `~`, which is reserved; use another word")]
    ReservedWord {
        /// The given key.
        key: String,
    },
    /// A wildcard, white space or a control character.
    #[error(
        "the app key `{}` has {found:?} at byte {position}; `*`, `#`, white space and control \
         characters are not allowed", key.escape_debug()
    )]
    ForbiddenCharacter {
        /// The given key.
        key: String,
        /// The first such character.
        found: char,
        /// Its position, in bytes from 0.
        position: usize,
    },
    /// It is longer than 150 bytes.
    #[error("the app key is {length} bytes long; it may have 150 at most")]
    TooLong {
        /// Its length in bytes.
        length: usize,
    },
}

impl AppKey {
    /// The longest app key, in bytes.
    pub const MAX_BYTES: usize = 150;

    /// The word that app keys must not contain.
    pub(super) const RESERVED_WORD: &str = "~";

    /// Checks a name.
    ///
    /// # Errors
    /// The fault; see [`AppKeyError`].
    pub fn new(key: impl Into<String>) -> Result<Self, AppKeyError> {
        let key = key.into();
        check(&key)?;
        Ok(Self(key))
    }

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn check(key: &str) -> Result<(), AppKeyError> {
    if key.is_empty() {
        return Err(AppKeyError::Empty);
    }
    if key.len() > AppKey::MAX_BYTES {
        return Err(AppKeyError::TooLong { length: key.len() });
    }
    let forbidden = |c: char| matches!(c, '*' | '#') || c.is_whitespace() || c.is_control();
    if let Some((position, found)) = key.char_indices().find(|&(_, c)| forbidden(c)) {
        return Err(AppKeyError::ForbiddenCharacter { key: key.into(), found, position });
    }
    if key.split('.').any(str::is_empty) {
        return Err(AppKeyError::EmptyWord { key: key.into() });
    }
    if key.split('.').any(|word| word == AppKey::RESERVED_WORD) {
        return Err(AppKeyError::ReservedWord { key: key.into() });
    }
    Ok(())
}

impl FromStr for AppKey {
    type Err = AppKeyError;

    fn from_str(key: &str) -> Result<Self, AppKeyError> {
        Self::new(key)
    }
}

impl fmt::Display for AppKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for AppKey {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_words_and_dots() {
        for key in ["a", "billing", "eu.orders", "0.1", "käse.😀", "~a", "a.~~", &"x".repeat(150)] {
            assert_eq!(AppKey::new(key).expect(key).as_str(), key);
        }
    }

    #[test]
    fn refuses_other_keys_with_a_reason() {
        assert_eq!(AppKey::new(""), Err(AppKeyError::Empty));
        assert_eq!(AppKey::new("x".repeat(151)), Err(AppKeyError::TooLong { length: 151 }));
        for key in [".", "a.", ".a", "a..b"] {
            assert!(matches!(AppKey::new(key), Err(AppKeyError::EmptyWord { .. })), "{key}");
        }
        for (key, position) in [("a.*", 2), ("#", 0), ("a b", 1), ("a\u{7f}", 1), ("a\u{a0}", 1), ("\n", 0)] {
            match AppKey::new(key) {
                Err(AppKeyError::ForbiddenCharacter { position: at, .. }) => {
                    assert_eq!(at, position)
                }
                other => panic!("{key:?} gave {other:?}"),
            }
        }
        for key in ["~", "a.~", "~.a", "a.~.b"] {
            assert!(matches!(AppKey::new(key), Err(AppKeyError::ReservedWord { .. })), "{key}");
        }
        // 76 two-byte letters are 152 bytes: the limit counts bytes, not letters.
        assert!(AppKey::new("ä".repeat(76)).is_err());
    }
}
