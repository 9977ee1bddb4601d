//! Which messages of a journal are meant: pure.

use std::{borrow::Cow, str::FromStr};

use jiff::Timestamp;

use delayline_core::{
    codec::MessageId,
    message::{Headers, Value},
};

use super::entry::Entry;

/// Which scheduled messages to list.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ScheduleFilter {
    /// Those that are due at this time or later; from now on if `None`.
    pub due_after: Option<Timestamp>,
    /// Those that are due before this time.
    pub due_before: Option<Timestamp>,
    /// Those with this id, also if it was renewed.
    pub id: Option<MessageId>,
    /// Those with all these headers.
    pub headers: Vec<HeaderFilter>,
    /// The one at this offset of the journal.
    pub place: Option<u64>,
    /// `true`: those whose recall is bound; `false`: those that are not known to be recalled. If it is unknown
    /// which recalls are bound, this leaves out none.
    pub recalled: Option<bool>,
}

/// A header that a message must have, as text: `customer=C-4`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderFilter {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

impl FromStr for HeaderFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok(Self { name: name.into(), value: value.into() }),
            _ => Err(format!("`{}` names no header and value; write `customer=C-4`", text.escape_debug())),
        }
    }
}

impl HeaderFilter {
    /// Whether the header is there, and its value is this text or has this text as its usual form.
    fn admits(&self, headers: &Headers) -> bool {
        headers.get(&self.name).and_then(text).is_some_and(|text| text == self.value)
    }
}

/// A value of a header as text, if it has a usual form.
pub(super) fn text(value: &Value) -> Option<Cow<'_, str>> {
    Some(match value {
        Value::Text(text) => text.into(),
        Value::Bytes(bytes) => std::str::from_utf8(bytes).ok()?.into(),
        Value::Bool(value) => value.to_string().into(),
        Value::F32(value) => value.to_string().into(),
        Value::F64(value) => value.to_string().into(),
        value => value.as_i64()?.to_string().into(),
    })
}

impl ScheduleFilter {
    /// Sets from when on.
    #[must_use]
    pub fn with_due_after(mut self, due_after: Option<Timestamp>) -> Self {
        self.due_after = due_after;
        self
    }

    /// Sets until when.
    #[must_use]
    pub fn with_due_before(mut self, due_before: Option<Timestamp>) -> Self {
        self.due_before = due_before;
        self
    }

    /// Sets the id.
    #[must_use]
    pub fn with_id(mut self, id: Option<MessageId>) -> Self {
        self.id = id;
        self
    }

    /// Sets the headers.
    #[must_use]
    pub fn with_headers(mut self, headers: Vec<HeaderFilter>) -> Self {
        self.headers = headers;
        self
    }

    /// Sets the place.
    #[must_use]
    pub fn with_place(mut self, place: Option<u64>) -> Self {
        self.place = place;
        self
    }

    /// Admits only those whose recall is bound, or only those that are not known to be recalled.
    #[must_use]
    pub fn only_recalled(mut self, recalled: bool) -> Self {
        self.recalled = Some(recalled);
        self
    }

    /// Whether the filter admits a message at this time, whatever its state. `headers` is `None` if they
    /// cannot be read, and the answer is `None` if they decide.
    pub(super) fn admits(&self, entry: &Entry, headers: Option<&Headers>, now: Timestamp) -> Option<bool> {
        if self.id.as_ref().is_some_and(|id| !entry.key.id().is_some_and(|its| its.is_of(id)))
            || self.place.is_some_and(|place| place != entry.place)
        {
            return Some(false);
        }
        let in_time = entry.latest() >= self.due_after.unwrap_or(now)
            && self.due_before.is_none_or(|before| entry.due < before);
        if !in_time || self.headers.is_empty() {
            return Some(in_time);
        }
        headers.map(|headers| self.headers.iter().all(|header| header.admits(headers)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduled::journal::entry::tests::entry;

    #[test]
    fn messages_due_from_now_on_are_admitted_unless_the_filter_has_another_time() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let admits =
            |filter: &ScheduleFilter, due| filter.admits(&entry(1, "a", due), None, at(100)).unwrap();
        let any = ScheduleFilter::default();
        assert!(admits(&any, 100) && !admits(&any, 99));
        let unsure = Entry { latest: Some(at(105)), ..entry(1, "a", 95) };
        let then = |now| any.admits(&unsure, None, at(now)).unwrap();
        assert!(then(100) && !then(106));
        let between = any.clone().with_due_after(Some(at(10))).with_due_before(Some(at(20)));
        assert!(admits(&between, 10) && admits(&between, 19));
        assert!(!admits(&between, 9) && !admits(&between, 20));
        let by_id = |id: &str| ScheduleFilter::default().with_id(Some(id.parse().unwrap()));
        assert!(admits(&by_id("a"), 200) && !admits(&by_id("b"), 200));
    }

    #[test]
    fn all_headers_must_have_the_value_as_it_is_written() {
        let headers: Headers = [
            ("customer", Value::from("C=4")),
            ("number", Value::I32(-7)),
            ("half", Value::F64(0.5)),
            ("paid", Value::Bool(true)),
            ("raw", Value::Bytes(b"x".to_vec())),
            ("empty", Value::from("")),
            ("none", Value::Void),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        let admits = |texts: &[&str]| {
            let filters = texts.iter().map(|text| text.parse().unwrap()).collect();
            let filter = ScheduleFilter::default().with_headers(filters);
            let of = |headers| filter.admits(&entry(1, "a", 200), headers, Timestamp::UNIX_EPOCH);
            assert_eq!(of(None), None);
            of(Some(&headers)).unwrap()
        };
        for text in ["customer=C=4", "number=-7", "half=0.5", "paid=true", "raw=x", "empty="] {
            assert!(admits(&[text]), "{text}");
        }
        for text in ["customer=C", "Customer=C=4", "number=7", "paid=1", "none=", "other="] {
            assert!(!admits(&[text]), "{text}");
        }
        assert!(admits(&["paid=true", "number=-7"]) && !admits(&["paid=true", "number=7"]));
        for text in ["customer", "=C-4", ""] {
            let error = text.parse::<HeaderFilter>().unwrap_err();
            assert!(error.contains("customer=C-4"), "{error}");
        }
    }
}
