//! The names of schedules, and the ids of their messages. Pure.

use std::{fmt, str::FromStr};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use delayline_core::codec::{AppKey, MessageId};

/// The longest name of a schedule, without its application.
const MAX_NAME: usize = 40;

/// The name of a schedule: 1 to 40 of `A-Z`, `a-z`, `0-9`, `_` and `-`. One in a set. The name of a schedule
/// that an application manages itself begins with that application: `billing/newsletter`.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct ScheduleName(String);

/// Why a text is not a [`ScheduleName`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{}` cannot be the name of a schedule; use 1 to {MAX_NAME} of A-Z, a-z, 0-9, `_` and `-`, after `APP/` \
     if the application manages its schedules itself",
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
    let name = name.without_owner();
    let id = format!("{name}-{}-{rev}", number(at.as_millisecond().unsigned_abs()));
    MessageId::new(id).expect("40 + 1 + 11 + 1 + 10 letters at most")
}

impl ScheduleName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The application that manages the schedule itself; `None` if the platform team does.
    #[must_use]
    pub fn owner(&self) -> Option<AppKey> {
        AppKey::new(self.0.rsplit_once('/')?.0).ok()
    }

    fn without_owner(&self) -> &str {
        self.0.rsplit_once('/').map_or(&self.0, |(_, name)| name)
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
        let (owner, own) = match name.rsplit_once('/') {
            Some((owner, own)) => (AppKey::new(owner).is_ok(), own),
            None => (true, name.as_str()),
        };
        match owner && own.len() <= MAX_NAME && MessageId::new(own).is_ok() {
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
    /// The longest there can be for an application.
    pub(crate) fn longest(app: &AppKey) -> Self {
        Self(format!("{app}/{}", "x".repeat(MAX_NAME)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_part_of_an_id() {
        for name in ["", "a b", "ä", "a.b", &"x".repeat(41), "/a", "a/", "a b/c", "~/a"] {
            assert!(name.parse::<ScheduleName>().is_err(), "{name}");
        }
        let app = AppKey::new("eu/orders.x").unwrap();
        let name = ScheduleName::longest(&app);
        assert_eq!((name.owner(), name.as_str().parse()), (Some(app), Ok(name.clone())));
        assert_eq!(message_id(&name, Timestamp::MAX, u64::MAX).as_str().len(), 62);
        assert_eq!("news".parse::<ScheduleName>().unwrap().owner(), None);
    }
}
