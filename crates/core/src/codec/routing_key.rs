//! `delay.<28 bits, four to a word>.<app-key>`, optionally followed by `.~.<id>`: exact encoding
//! and decoding.

use std::{fmt, str::FromStr};

use super::{AppKey, AppKeyError, Delay, MessageId, MessageIdError, WORD_BITS, WORDS};

/// The beginning of every routing key.
const PREFIX: &str = "delay.";

/// The length of everything before the app key.
const HEAD: usize = PREFIX.len() + WORDS as usize * (WORD_BITS as usize + 1);

/// The separator between the app key and the id.
const BEFORE_ID: &str = ".~.";

/// The possible words of the delay, by their value.
pub const FOUR_BITS: [&str; 1 << WORD_BITS] = [
    "0000", "0001", "0010", "0011", "0100", "0101", "0110", "0111", "1000", "1001", "1010", "1011", "1100",
    "1101", "1110", "1111",
];

/// A delay and the application that receives the message after it.
///
/// ```
/// use delayline::codec::RoutingKey;
///
/// let key: RoutingKey = "delay.0000.0000.0000.0000.0000.0101.1010.billing".parse()?;
/// assert_eq!(key.delay.seconds(), 90);
/// assert_eq!(key.app.as_str(), "billing");
/// # Ok::<(), delayline::codec::RoutingKeyError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RoutingKey {
    /// How long the message is delayed.
    pub delay: Delay,
    /// The application that receives it then.
    pub app: AppKey,
    /// The id of a message that may be recalled.
    id: Option<MessageId>,
}

/// Why a text is not a [`RoutingKey`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RoutingKeyError {
    /// The first word is not `delay`.
    #[error("the routing key begins with `{}`; its first word must be `delay`", found.escape_debug())]
    FirstWord {
        /// The first word.
        found: String,
    },
    /// The key ends before its seventh word of bits.
    #[error(
        "the routing key ends after {words} of the seven words of the delay; write the delay as 28 bits, \
         four to a word"
    )]
    TooFewWords {
        /// How many of the seven words it has.
        words: usize,
    },
    /// A word of the delay is not four bits.
    #[error(
        "word {position} of the delay is `{}`; each of the seven words after `delay` must be four \
         bits, 0 or 1", found.escape_debug()
    )]
    NotFourBits {
        /// Which of the seven it is, from 1.
        position: usize,
        /// The word.
        found: String,
    },
    /// The delay is complete, but the app key is missing.
    #[error("the routing key has no app key after its delay; add `.` and the name of the application")]
    NoAppKey,
    /// The rest is not an app key.
    #[error(transparent)]
    AppKey(#[from] AppKeyError),
    /// The text after the word `~` is not an id.
    #[error(transparent)]
    MessageId(#[from] MessageIdError),
    /// App key and id together are too long for a routing key.
    #[error(
        "the app key and the id make a routing key of {length} bytes, and AMQP carries {} at most; use an id \
         of {room} bytes or fewer",
        RoutingKey::MAX_BYTES
    )]
    TooLong {
        /// The length of the key in bytes.
        length: usize,
        /// The longest id behind this app key, in bytes.
        room: usize,
    },
}

impl RoutingKey {
    /// The longest routing key that AMQP carries, in bytes.
    pub const MAX_BYTES: usize = 255;

    /// Combines the two parts.
    #[must_use]
    pub fn new(delay: Delay, app: AppKey) -> Self {
        Self { delay, app, id: None }
    }

    /// Adds an id, so that the message can be recalled.
    ///
    /// ```
    /// use delayline::codec::RoutingKey;
    ///
    /// let key: RoutingKey = "delay.0000.0000.0000.0000.0000.0101.1010.billing".parse()?;
    /// let key = key.with_id("invoice-17".parse()?)?;
    /// assert_eq!(key.encode(), "delay.0000.0000.0000.0000.0000.0101.1010.billing.~.invoice-17");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`RoutingKeyError::TooLong`]: after an app key of 150 bytes, an id has at most 61 bytes.
    pub fn with_id(self, id: MessageId) -> Result<Self, RoutingKeyError> {
        check_room(&self.app, &id)?;
        Ok(Self { id: Some(id), ..self })
    }

    /// The id, if it has one.
    #[must_use]
    pub fn id(&self) -> Option<&MessageId> {
        self.id.as_ref()
    }

    /// The key as it goes over the wire: 42 to 255 bytes.
    #[must_use]
    pub fn encode(&self) -> String {
        encode(self.delay, &self.app, self.id.as_ref())
    }

    /// The pattern with which an application binds its queue to the dispatch
    /// exchange: seven `*` and its own key, so that it receives exactly its own
    /// messages. A pattern such as `#.orders` would also match `eu.orders`.
    #[must_use]
    pub fn binding_pattern(app: &AppKey) -> String {
        format!("{PREFIX}{}{app}", "*.".repeat(WORDS.into()))
    }

    /// The pattern for the messages of an application that have an id. It matches no others.
    #[must_use]
    pub fn recall_pattern(app: &AppKey) -> String {
        format!("{}{BEFORE_ID}*", Self::binding_pattern(app))
    }

    /// Reads a binding pattern: the app key, if the pattern is exact.
    ///
    /// # Errors
    /// The pattern itself, if it can match the keys of other applications.
    pub fn app_of_pattern(pattern: &str) -> Result<AppKey, &str> {
        pattern
            .strip_prefix(PREFIX)
            .and_then(|rest| (0..WORDS).try_fold(rest, |rest, _| rest.strip_prefix("*.")))
            .and_then(|app| AppKey::new(app).ok())
            .ok_or(pattern)
    }
}

/// Refuses an id that is too long for the app key.
pub(crate) fn check_room(app: &AppKey, id: &MessageId) -> Result<(), RoutingKeyError> {
    let room = RoutingKey::MAX_BYTES - HEAD - app.as_str().len() - BEFORE_ID.len();
    match id.as_str().len() {
        length if length > room => {
            Err(RoutingKeyError::TooLong { length: RoutingKey::MAX_BYTES - room + length, room })
        }
        _ => Ok(()),
    }
}

/// The routing key for a delay, an app key and an id, as made by [`RoutingKey::encode`].
pub fn encode(delay: Delay, app: &AppKey, id: Option<&MessageId>) -> String {
    let behind = id.map_or(0, |id| BEFORE_ID.len() + id.as_str().len());
    let mut key = String::with_capacity(HEAD + app.as_str().len() + behind);
    key.push_str(PREFIX);
    for word in (0..WORDS).rev() {
        key.push_str(FOUR_BITS[(delay.seconds() >> (word * WORD_BITS) & 0b1111) as usize]);
        key.push('.');
    }
    key.push_str(app.as_str());
    if let Some(id) = id {
        key.push_str(BEFORE_ID);
        key.push_str(id.as_str());
    }
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
        for position in 1..=usize::from(WORDS) {
            if rest.is_empty() {
                return Err(RoutingKeyError::TooFewWords { words: position - 1 });
            }
            let (word, after) = rest.split_once('.').unwrap_or((rest, ""));
            let value = (0_u32..).zip(FOUR_BITS).find(|&(_, bits)| bits == word);
            let Some((value, _)) = value else {
                return Err(RoutingKeyError::NotFourBits { position, found: word.into() });
            };
            bits = bits << WORD_BITS | value;
            rest = after;
        }
        if rest.is_empty() {
            return Err(RoutingKeyError::NoAppKey);
        }
        // No app key has the word `~`, so the first one ends it.
        let (app, id) = match rest.split_once(BEFORE_ID) {
            Some((app, id)) => (app, Some(MessageId::new(id)?)),
            None => (rest, None),
        };
        let key = Self::new(Delay::from_bits(bits), AppKey::new(app)?);
        match id {
            Some(id) => key.with_id(id),
            None => Ok(key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NINETY: &str = "delay.0000.0000.0000.0000.0000.0101.1010.billing";

    fn key(seconds: u64, app: &str) -> RoutingKey {
        RoutingKey::new(Delay::from_seconds(seconds).unwrap(), AppKey::new(app).unwrap())
    }

    #[test]
    fn encodes_the_contract_example() {
        assert_eq!(key(90, "billing").encode(), NINETY);
        assert_eq!(NINETY.parse::<RoutingKey>(), Ok(key(90, "billing")));
    }

    #[test]
    fn every_bit_has_its_place() {
        for level in 0..crate::codec::LEVELS {
            let key = key(1 << level, "a");
            let text = key.encode();
            let bits: String = text["delay.".len()..HEAD].replace('.', "");
            assert_eq!(u32::from_str_radix(&bits, 2), Ok(1 << level), "{text}");
            assert_eq!(text.parse(), Ok(key));
        }
    }

    #[test]
    fn leaves_room_for_the_longest_app_key() {
        assert_eq!(key(1, &"x".repeat(AppKey::MAX_BYTES)).encode().len(), HEAD + 150);
        assert_eq!(HEAD, 41);
    }

    #[test]
    fn names_the_fault() {
        let words = |n: usize| vec!["0000"; n].join(".");
        let parse = |key: &str| key.parse::<RoutingKey>().unwrap_err();
        let not_four = |position, found: &str| RoutingKeyError::NotFourBits { position, found: found.into() };
        assert_eq!(parse(""), RoutingKeyError::FirstWord { found: String::new() });
        assert_eq!(parse("later.0000"), RoutingKeyError::FirstWord { found: "later".into() });
        assert_eq!(parse("delay"), RoutingKeyError::TooFewWords { words: 0 });
        assert_eq!(parse(&format!("delay.{}", words(6))), RoutingKeyError::TooFewWords { words: 6 });
        assert_eq!(parse(&format!("delay.{}.billing", words(6))), not_four(7, "billing"));
        // A 29th bit makes a word of five characters, which is invalid.
        assert_eq!(parse("delay.10000.0000.0000.0000.0000.0000.0000.billing"), not_four(1, "10000"));
        for wrong in ["0002", "000", "+000", "-001", "0.5", "", "000\u{0660}"] {
            let found = wrong.split('.').next().unwrap();
            assert_eq!(parse(&format!("delay.0000.{wrong}.{}.a", words(5))), not_four(2, found));
        }
        assert_eq!(parse(&format!("delay.{}", words(7))), RoutingKeyError::NoAppKey);
        assert_eq!(parse(&format!("delay.{}.", words(7))), RoutingKeyError::NoAppKey);
        for app in ["a.#", "a.~", "~", "~.id", ".~.id"] {
            let error = parse(&format!("delay.{}.{app}", words(7)));
            assert!(matches!(error, RoutingKeyError::AppKey(_)), "{app} gave {error:?}");
        }
        for id in ["a.~.", "a.~.x.y", "a.~.x y", "a.~.~", "a.~.*"] {
            let error = parse(&format!("delay.{}.{id}", words(7)));
            assert!(matches!(error, RoutingKeyError::MessageId(_)), "{id} gave {error:?}");
        }
    }

    #[test]
    fn an_id_follows_the_app_key() {
        let id = |text: &str| MessageId::new(text).unwrap();
        let with_id = key(90, "eu.orders").with_id(id("17")).unwrap();
        let text = "delay.0000.0000.0000.0000.0000.0101.1010.eu.orders.~.17";
        assert_eq!(with_id.encode(), text);
        assert_eq!(text.parse::<RoutingKey>(), Ok(with_id.clone()));
        assert_eq!((with_id.id(), key(90, "eu.orders").id()), (Some(&id("17")), None));
        assert_eq!(RoutingKey::recall_pattern(&with_id.app), "delay.*.*.*.*.*.*.*.eu.orders.~.*");
        assert!(crate::topology::topic_matches(&RoutingKey::recall_pattern(&with_id.app), text));
        assert!(!crate::topology::topic_matches(&RoutingKey::binding_pattern(&with_id.app), text));
    }

    #[test]
    fn an_id_and_an_app_key_fit_together_or_are_refused() {
        let id = |length: usize| MessageId::new("x".repeat(length)).unwrap();
        let app = |length: usize| key(1, &"a".repeat(length));
        assert_eq!(app(150).with_id(id(61)).unwrap().encode().len(), RoutingKey::MAX_BYTES);
        assert_eq!(app(147).with_id(id(64)).unwrap().encode().len(), RoutingKey::MAX_BYTES);
        assert_eq!(app(150).with_id(id(62)), Err(RoutingKeyError::TooLong { length: 256, room: 61 }));
        let text = format!("{}.~.{}", app(150), id(62));
        assert!(matches!(text.parse::<RoutingKey>(), Err(RoutingKeyError::TooLong { .. })));
    }

    #[test]
    fn binds_exactly_one_app() {
        let app = AppKey::new("eu.orders").unwrap();
        let pattern = RoutingKey::binding_pattern(&app);
        assert_eq!(pattern.matches('*').count(), 7);
        assert_eq!(RoutingKey::app_of_pattern(&pattern), Ok(app));
        for loose in
            ["#", "#.orders", "delay.#", "delay.*.*.orders", &format!("{pattern}.*"), &format!("{pattern}.#")]
        {
            assert_eq!(RoutingKey::app_of_pattern(loose), Err(loose));
        }
    }
}
