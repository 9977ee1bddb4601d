//! `delay.<28 bits>.<app-key>`: exact encoding and decoding.

use std::{fmt, str::FromStr};

use super::{AppKey, AppKeyError, Delay, LEVELS};

/// What every routing key begins with.
const PREFIX: &str = "delay.";

/// The length of everything before the app key.
const HEAD: usize = PREFIX.len() + 2 * LEVELS as usize;

/// A delay and the application that receives the message after it.
///
/// ```
/// use delayline::codec::RoutingKey;
///
/// let key: RoutingKey =
///     "delay.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.1.0.1.1.0.1.0.billing".parse()?;
/// assert_eq!(key.delay.seconds(), 90);
/// assert_eq!(key.app.as_str(), "billing");
/// # Ok::<(), delayline::codec::RoutingKeyError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RoutingKey {
    /// How long the message waits.
    pub delay: Delay,
    /// Who receives it then.
    pub app: AppKey,
}

/// Why something is not a [`RoutingKey`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RoutingKeyError {
    /// Another first word than `delay`.
    #[error("the routing key begins with `{}`; its first word must be `delay`", found.escape_debug())]
    FirstWord {
        /// The first word that was found.
        found: String,
    },
    /// The key ends before its 28th bit.
    #[error(
        "the routing key ends after {bits} of the 28 bits; write the delay as exactly 28 words of 0 or 1"
    )]
    TooFewBits {
        /// How many bits it has.
        bits: usize,
    },
    /// A word among the 28 is neither `0` nor `1`.
    #[error(
        "bit {position} of the routing key (counted from 1) is `{}`; each of the 28 words after \
         `delay` must be 0 or 1", found.escape_debug()
    )]
    NotABit {
        /// Which of the 28, from 1.
        position: usize,
        /// What stands there.
        found: String,
    },
    /// All bits are there, but no app key follows.
    #[error("the routing key has no app key after its 28 bits; add `.` and the name of the application")]
    NoAppKey,
    /// The rest is not an app key.
    #[error(transparent)]
    AppKey(#[from] AppKeyError),
}

impl RoutingKey {
    /// Puts the two parts together.
    #[must_use]
    pub fn new(delay: Delay, app: AppKey) -> Self {
        Self { delay, app }
    }

    /// The key as it goes over the wire: 63 to 255 bytes.
    #[must_use]
    pub fn encode(&self) -> String {
        encode(self.delay, &self.app)
    }

    /// The pattern with which an application binds its queue to the dispatch
    /// exchange: 28 `*` and its own key, so that it receives exactly its own
    /// messages. A pattern such as `#.orders` would also match `eu.orders`.
    #[must_use]
    pub fn binding_pattern(app: &AppKey) -> String {
        format!("{PREFIX}{}{app}", "*.".repeat(LEVELS.into()))
    }

    /// Reads a binding pattern back: the app key, if it is an exact one.
    ///
    /// # Errors
    /// The pattern itself, if it would match other keys than one app's.
    pub fn app_of_pattern(pattern: &str) -> Result<AppKey, &str> {
        pattern
            .strip_prefix(PREFIX)
            .and_then(|rest| (0..LEVELS).try_fold(rest, |rest, _| rest.strip_prefix("*.")))
            .and_then(|app| AppKey::new(app).ok())
            .ok_or(pattern)
    }
}

pub(crate) fn encode(delay: Delay, app: &AppKey) -> String {
    let mut key = String::with_capacity(HEAD + app.as_str().len());
    key.push_str(PREFIX);
    for level in (0..LEVELS).rev() {
        key.push_str(if delay.seconds() >> level & 1 == 1 { "1." } else { "0." });
    }
    key.push_str(app.as_str());
    key
}

impl fmt::Display for RoutingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.encode())
    }
}

impl FromStr for RoutingKey {
    type Err = RoutingKeyError;

    fn from_str(key: &str) -> Result<Self, RoutingKeyError> {
        let (first, mut rest) = key.split_once('.').unwrap_or((key, ""));
        if first != PREFIX.trim_end_matches('.') {
            return Err(RoutingKeyError::FirstWord { found: first.into() });
        }
        let mut bits = 0_u32;
        for position in 1..=usize::from(LEVELS) {
            if rest.is_empty() {
                return Err(RoutingKeyError::TooFewBits { bits: position - 1 });
            }
            let (word, after) = rest.split_once('.').unwrap_or((rest, ""));
            bits = bits << 1
                | match word {
                    "0" => 0,
                    "1" => 1,
                    _ => {
                        return Err(RoutingKeyError::NotABit { position, found: word.into() });
                    }
                };
            rest = after;
        }
        if rest.is_empty() {
            return Err(RoutingKeyError::NoAppKey);
        }
        Ok(Self::new(Delay::from_bits(bits), AppKey::new(rest)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NINETY: &str = "delay.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.1.0.1.1.0.1.0.billing";

    fn key(seconds: u64, app: &str) -> RoutingKey {
        RoutingKey::new(Delay::from_seconds(seconds).unwrap(), AppKey::new(app).unwrap())
    }

    #[test]
    fn encodes_the_contract_example() {
        assert_eq!(key(90, "billing").encode(), NINETY);
        assert_eq!(NINETY.parse::<RoutingKey>(), Ok(key(90, "billing")));
    }

    #[test]
    fn fits_255_bytes_with_the_longest_app_key() {
        assert_eq!(key(1, &"x".repeat(AppKey::MAX_BYTES)).encode().len(), 255);
    }

    #[test]
    fn names_what_is_wrong() {
        let bits = |n: usize| vec!["0"; n].join(".");
        let parse = |key: &str| key.parse::<RoutingKey>().unwrap_err();
        assert_eq!(parse(""), RoutingKeyError::FirstWord { found: String::new() });
        assert_eq!(parse("later.0"), RoutingKeyError::FirstWord { found: "later".into() });
        assert_eq!(parse("delay"), RoutingKeyError::TooFewBits { bits: 0 });
        assert_eq!(parse(&format!("delay.{}", bits(27))), RoutingKeyError::TooFewBits { bits: 27 });
        assert_eq!(
            parse(&format!("delay.{}.billing", bits(27))),
            RoutingKeyError::NotABit { position: 28, found: "billing".into() }
        );
        assert_eq!(parse("delay.0.2.0"), RoutingKeyError::NotABit { position: 2, found: "2".into() });
        assert_eq!(parse("delay..0"), RoutingKeyError::NotABit { position: 1, found: String::new() });
        assert_eq!(parse(&format!("delay.{}", bits(28))), RoutingKeyError::NoAppKey);
        assert_eq!(parse(&format!("delay.{}.", bits(28))), RoutingKeyError::NoAppKey);
        assert!(matches!(
            parse(&format!("delay.{}.a.#", bits(28))),
            RoutingKeyError::AppKey(AppKeyError::ForbiddenCharacter { .. })
        ));
    }

    #[test]
    fn binds_exactly_one_app() {
        let app = AppKey::new("eu.orders").unwrap();
        let pattern = RoutingKey::binding_pattern(&app);
        assert_eq!(pattern.matches('*').count(), 28);
        assert_eq!(RoutingKey::app_of_pattern(&pattern), Ok(app));
        for loose in
            ["#", "#.orders", "delay.#", "delay.*.*.orders", &format!("{pattern}.*"), &format!("{pattern}.#")]
        {
            assert_eq!(RoutingKey::app_of_pattern(loose), Err(loose));
        }
    }
}
