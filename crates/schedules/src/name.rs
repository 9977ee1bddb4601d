//! The names of schedules, and the ids of their messages. Pure.

use std::{fmt, str::FromStr};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use delayline_core::codec::MessageId;

/// The longest name of a schedule.
const MAX_NAME: usize = 40;

/// The name of a schedule: 1 to 40 of `A-Z`, `a-z`, `0-9`, `_` and `-`. One in a set.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct ScheduleName(String);

/// Why a text is not a [`ScheduleName`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{}` cannot be the name of a schedule; use 1 to {MAX_NAME} of A-Z, a-z, 0-9, `_` and `-`",
    name.escape_debug()
)]
pub struct ScheduleNameError {
    /// The given name.
    name: String,
}

/// The id with which the message of an occurrence can be recalled. It differs for each revision of a
/// schedule, so that recalling the messages of one leaves those of the next alone.
pub(crate) fn message_id(name: &ScheduleName, at: Timestamp, rev: u64) -> MessageId {
    let number = |mut number: u64| {
        let mut digits = Vec::new();
        while number > 0 || digits.is_empty() {
            digits.push(char::from_digit((number % 36) as u32, 36).unwrap_or('0'));
            number /= 36;
        }
        digits.iter().rev().collect::<String>()
    };
    // A revision is a time in ms, so each number has nine digits for the next 100 years.
    let rev = number(rev % 36_u64.pow(10));
    let id = format!("{name}-{}-{rev}", number(at.as_millisecond().unsigned_abs()));
    MessageId::new(id).expect("40 + 1 + 11 + 1 + 10 letters at most")
}

impl ScheduleName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ScheduleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ScheduleName {
    type Err = ScheduleNameError;

    fn from_str(name: &str) -> Result<Self, ScheduleNameError> {
        name.to_owned().try_into()
    }
}

impl TryFrom<String> for ScheduleName {
    type Error = ScheduleNameError;

    fn try_from(name: String) -> Result<Self, ScheduleNameError> {
        match name.len() <= MAX_NAME && MessageId::new(name.clone()).is_ok() {
            true => Ok(Self(name)),
            false => Err(ScheduleNameError { name }),
        }
    }
}

impl From<ScheduleName> for String {
    fn from(name: ScheduleName) -> Self {
        name.0
    }
}

impl ScheduleName {
    /// The longest there can be.
    pub(crate) fn longest() -> Self {
        Self("x".repeat(MAX_NAME))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_part_of_an_id() {
        for name in ["", "a b", "ä", "a.b", &"x".repeat(41)] {
            assert!(name.parse::<ScheduleName>().is_err(), "{name}");
        }
        assert_eq!(message_id(&ScheduleName::longest(), Timestamp::MAX, u64::MAX).as_str().len(), 62);
    }
}
