//! The request for an application, with the names of `app add` and of a platform file.

use std::{
    fmt::Display,
    num::{NonZeroU32, NonZeroU64},
    str::FromStr,
};

use delayline_amqp::broker::Secret;
use delayline_core::{
    codec::{AppKey, Delay},
    topology::{JournalSettings, NativeRetry, RecallSettings, Rejected},
};
use serde::{Deserialize, Deserializer};

use super::{AppQueue, AppSpec, AppUser, Delivery, Target};

/// The request for an application: each field is a flag of `delayline app add`, and a key of a platform
/// file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AppRequest {
    /// Its RabbitMQ user; the app key if `None`.
    pub user: Option<String>,
    /// Whether users and permissions are left alone.
    pub no_user: bool,
    /// The queue it consumes; the app key if `None`.
    pub queue: Option<String>,
    /// Whether the queue must exist already.
    pub existing: bool,
    /// Whether rejected messages are retried by the service (`true`) or not at all (`"none"`): then they
    /// are parked.
    #[serde(deserialize_with = "retry")]
    pub retry: Option<Rejected>,
    /// Whether its queue first delays requeued messages, and for how long.
    #[serde(deserialize_with = "one")]
    pub native_retry: Option<NativeRetry>,
    /// How often a message is delayed that way; 5 times if `None`.
    pub native_attempts: Option<NonZeroU32>,
    /// Whether it has a landing queue; `None` if it keeps the one that it has.
    pub landing: Option<bool>,
    /// The existing queue that a landing queue passes messages on to.
    pub to_queue: Option<String>,
    /// The existing exchange that a landing queue passes messages on to.
    pub to_exchange: Option<String>,
    /// The routing key that messages get there.
    pub to_key: Option<String>,
    /// Whether it receives no messages.
    pub publish_only: bool,
    /// The other applications whose keys it may publish.
    #[serde(deserialize_with = "several")]
    pub may_publish: Vec<AppKey>,
    /// The longest delay it may publish; any if `None`.
    #[serde(deserialize_with = "one")]
    pub max_delay: Option<Delay>,
    /// Whether it may bind its queue under its own key itself.
    pub may_bind: bool,
    /// Whether it may publish to the retry and parked exchanges under its own key.
    pub may_retry: bool,
    /// Whether it manages schedules of the application itself.
    pub schedules: bool,
    /// The other applications whose messages it may publish with an id, and recall.
    #[serde(deserialize_with = "several")]
    pub may_recall: Vec<AppKey>,
    /// Whether its messages can be recalled.
    pub recall: bool,
    /// How long recalled messages are kept after they were due.
    #[serde(deserialize_with = "one")]
    pub keep_recalled: Option<Delay>,
    /// The most recalled messages that are kept.
    pub max_recalled: Option<NonZeroU32>,
    /// Whether there is a journal of scheduled messages, and how long it keeps a message after that was
    /// published.
    #[serde(deserialize_with = "one")]
    pub journal: Option<Delay>,
    /// How many bytes the journal keeps.
    #[serde(deserialize_with = "one")]
    pub journal_bytes: Option<ByteSize>,
}

/// A number of bytes, as people write it: `10GB`, `500 MB`, `64MiB`, `1000000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteSize(pub NonZeroU64);

/// Why a text is not a [`ByteSize`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{}` is not a size; write a whole number of bytes, or one with kB, MB, GB, TB, KiB, MiB, GiB or TiB, \
     such as 10GB", text.escape_debug()
)]
pub struct ByteSizeError {
    text: String,
}

impl FromStr for ByteSize {
    type Err = ByteSizeError;

    fn from_str(text: &str) -> Result<Self, ByteSizeError> {
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit: u64 = match text[digits.len()..].trim() {
            "" | "B" => 1,
            "kB" | "KB" => 1_000,
            "MB" => 1_000_000,
            "GB" => 1_000_000_000,
            "TB" => 1_000_000_000_000,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            "TiB" => 1 << 40,
            _ => 0,
        };
        let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
        let bytes = bytes.filter(|bytes| i64::try_from(*bytes).is_ok()).and_then(NonZeroU64::new);
        bytes.map(Self).ok_or_else(|| ByteSizeError { text: text.into() })
    }
}

/// Why a request is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppRequestError {
    /// Two fields exclude each other.
    #[error("`{0}` and `{1}` exclude each other. Leave one out")]
    Exclusive(&'static str, &'static str),
    /// A field has no meaning without another.
    #[error("`{0}` has no effect without `{1}`. Add that, or leave it out")]
    Alone(&'static str, &'static str),
}

impl AppRequest {
    /// The description of the application. The password is for a user that does not exist yet.
    ///
    /// # Errors If parts of the request exclude each other.
    pub fn spec(self, app: AppKey, password: Option<Secret>) -> Result<AppSpec, AppRequestError> {
        self.check()?;
        let recall = self.recall.then(|| {
            let mut settings = RecallSettings::default();
            settings.keep = self.keep_recalled.unwrap_or(settings.keep);
            settings.max_length = self.max_recalled.unwrap_or(settings.max_length);
            settings.journal = self.journal.map(|age| {
                let journal = JournalSettings::default().with_max_age(age);
                self.journal_bytes.map_or(journal, |bytes| journal.with_max_bytes(bytes.0))
            });
            settings
        });
        let native_retry = self
            .native_retry
            .map(|retry| retry.with_attempts(self.native_attempts.unwrap_or(NativeRetry::ATTEMPTS)));
        let queue = |name: String, existing: bool| AppQueue {
            name,
            existing,
            rejected: self.retry,
            native_retry,
            keep_landing: self.landing.is_none(),
        };
        let delivery = match (self.to_exchange, self.to_queue) {
            _ if self.publish_only => Delivery::Nothing,
            (Some(exchange), _) => {
                Delivery::Landing(Target::Exchange { exchange, key: self.to_key, queue: self.queue })
            }
            (None, Some(name)) => Delivery::Landing(Target::Queue(queue(name, true))),
            (None, None) => {
                let own = queue(self.queue.unwrap_or_else(|| app.to_string()), self.existing);
                match self.landing {
                    Some(true) => Delivery::Landing(Target::Queue(own)),
                    Some(false) | None => Delivery::Direct(own),
                }
            }
        };
        let user = (!self.no_user).then(|| AppUser {
            name: self.user.unwrap_or_else(|| app.to_string()),
            password,
            may_publish: self.may_publish,
            max_delay: self.max_delay,
            may_bind: self.may_bind,
            may_retry: self.may_retry,
            may_schedule: self.schedules,
            may_recall: self.may_recall,
        });
        Ok(AppSpec { app, delivery, user, recall })
    }

    fn check(&self) -> Result<(), AppRequestError> {
        let queue = ("queue", self.queue.is_some());
        let existing = ("existing", self.existing);
        let retry = ("retry", self.retry.is_some());
        let landing = ("landing", self.landing == Some(true));
        let direct = ("landing", self.landing == Some(false));
        let to_queue = ("to_queue", self.to_queue.is_some());
        let to_exchange = ("to_exchange", self.to_exchange.is_some());
        let recall = ("recall", self.recall);
        let journal = ("journal", self.journal.is_some());
        let publish_only = ("publish_only", self.publish_only);
        let schedules = ("schedules", self.schedules);
        let rights = [
            ("user", self.user.is_some()),
            ("may_publish", !self.may_publish.is_empty()),
            ("max_delay", self.max_delay.is_some()),
            ("may_bind", self.may_bind),
            ("may_retry", self.may_retry),
            ("may_recall", !self.may_recall.is_empty()),
            schedules,
            publish_only,
        ];
        let rules: [(_, &[_]); 5] = [
            (publish_only, &[queue, existing, retry, landing, to_queue, to_exchange, recall, schedules]),
            (("no_user", self.no_user), &rights),
            (existing, &[retry]),
            (to_queue, &[queue, existing, retry, to_exchange, direct]),
            (to_exchange, &[existing, retry, direct]),
        ];
        for ((one, _), others) in rules.into_iter().filter(|((_, said), _)| *said) {
            if let Some((other, _)) = others.iter().find(|(_, said)| *said) {
                return Err(AppRequestError::Exclusive(one, other));
            }
        }
        let needs = [
            ("native_retry", self.native_retry.is_some(), retry),
            (
                "native_attempts",
                self.native_attempts.is_some(),
                ("native_retry", self.native_retry.is_some()),
            ),
            ("to_key", self.to_key.is_some(), to_exchange),
            ("keep_recalled", self.keep_recalled.is_some(), recall),
            ("max_recalled", self.max_recalled.is_some(), recall),
            ("journal", self.journal.is_some(), recall),
            ("journal_bytes", self.journal_bytes.is_some(), journal),
        ];
        match needs.into_iter().find(|(_, said, (_, other))| *said && !other) {
            Some((one, _, (other, _))) => Err(AppRequestError::Alone(one, other)),
            None => Ok(()),
        }
    }
}

fn parsed<T: FromStr<Err: Display>, E: serde::de::Error>(text: &str) -> Result<T, E> {
    text.parse().map_err(E::custom)
}

fn one<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(input: D) -> Result<Option<T>, D::Error> {
    Option::<String>::deserialize(input)?.map(|text| parsed(&text)).transpose()
}

fn several<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<AppKey>, D::Error> {
    Vec::<String>::deserialize(input)?.iter().map(|text| parsed::<AppKey, D::Error>(text)).collect()
}

fn retry<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Rejected>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "`retry` is `true`, `false` or `\"none\"`")]
    enum Said {
        Service(bool),
        None(None),
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum None {
        None,
    }
    Ok(match Said::deserialize(input)? {
        Said::Service(yes) => yes.then_some(Rejected::Retried),
        Said::None(None::None) => Some(Rejected::Parked),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(request: AppRequest) -> Result<AppSpec, AppRequestError> {
        request.spec(AppKey::new("billing").unwrap(), None)
    }

    #[test]
    fn an_empty_request_is_a_queue_and_a_user_of_the_same_name() {
        let spec = spec(AppRequest::default()).unwrap();
        assert_eq!(spec.delivery, Delivery::Direct(AppQueue::new("billing")));
        assert_eq!(spec.user.unwrap().name, "billing");
    }

    #[test]
    fn a_journal_has_an_age_and_a_size() {
        let journal = |text: &str| spec(toml::from_str(text).unwrap()).unwrap().recall.unwrap().journal;
        assert_eq!(journal("recall = true"), None);
        let standard = journal("recall = true\njournal = \"7d\"").unwrap();
        assert_eq!((standard.max_age.seconds(), standard.max_bytes.get()), (604_800, 10_000_000_000));
        let small = journal("recall = true\njournal = \"7d\"\njournal_bytes = \"64MiB\"").unwrap();
        assert_eq!(small.max_bytes.get(), 64 << 20);
        assert!(
            toml::from_str::<AppRequest>("journal_bytes = \"much\"")
                .unwrap_err()
                .to_string()
                .contains("much")
        );
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let read = |text: &str| text.parse::<ByteSize>().ok().map(|size| size.0.get());
        for (text, bytes) in
            [("1000000", 1_000_000), ("10GB", 10_000_000_000), ("5 kB", 5_000), ("2TiB", 2 << 40)]
        {
            assert_eq!(read(text), Some(bytes), "{text}");
        }
        for text in ["", "GB", "0", "0GB", "-5GB", "1.5GB", "10 gb", "99999999999TB", "5GB5", "ä"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn fields_that_exclude_each_other_are_named() {
        let of = |text: &str| spec(toml::from_str(text).unwrap()).map(|_| ()).map_err(|it| it.to_string());
        for (text, words) in [
            ("publish_only = true\nlanding = true", "`publish_only` and `landing`"),
            ("no_user = true\nmay_publish = [\"a\"]", "`no_user` and `may_publish`"),
            ("existing = true\nretry = true", "`existing` and `retry`"),
            ("to_queue = \"a\"\nto_exchange = \"b\"", "`to_queue` and `to_exchange`"),
            ("to_exchange = \"a\"\nretry = true", "`to_exchange` and `retry`"),
            ("to_queue = \"a\"\nlanding = false", "`to_queue` and `landing`"),
            ("to_key = \"a\"", "without `to_exchange`"),
            ("max_recalled = 5", "without `recall`"),
            ("journal = \"90d\"", "without `recall`"),
            ("recall = true\njournal_bytes = \"1GB\"", "without `journal`"),
            ("publish_only = true\nrecall = true", "`publish_only` and `recall`"),
            ("no_user = true\nschedules = true", "`no_user` and `schedules`"),
            ("publish_only = true\nschedules = true", "`publish_only` and `schedules`"),
        ] {
            assert!(of(text).unwrap_err().contains(words), "{text}: {:?}", of(text));
        }
        let rejected = |text: &str| {
            let spec = spec(toml::from_str(text).unwrap()).unwrap();
            let Delivery::Direct(queue) = spec.delivery else { panic!("{spec:?}") };
            queue.rejected
        };
        assert_eq!(rejected("retry = true"), Some(Rejected::Retried));
        assert_eq!(rejected("retry = \"none\""), Some(Rejected::Parked));
        assert_eq!((rejected("retry = false"), rejected("")), (None, None));
        let error = toml::from_str::<AppRequest>("retry = \"never\"").unwrap_err().to_string();
        assert!(error.contains("`true`, `false` or `\"none\"`"), "{error}");
        assert_eq!(of("to_exchange = \"a\"\nto_key = \"k\"\nqueue = \"q\"\nmax_delay = \"30d\""), Ok(()));
    }
}
