//! Limits on what this process may publish: pure.

use std::{collections::BTreeMap, str::FromStr, time::Instant};

use jiff::Timestamp;

use crate::{
    codec::{AppKey, AppKeyError, Delay, DelayError},
    topology::Unit,
};

use super::{InvalidMessage, Message, Schedule, carried::decimal, fixed};

/// The most that a router may publish. It refuses further messages before they leave the process.
/// It does not limit other publishers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quota {
    /// The largest body, in bytes; any size if `None`. Properties and headers do not count, as for
    /// the broker's own limit.
    pub max_message_size: Option<usize>,
    /// The longest delays.
    pub max_delay: MaxDelay,
    /// Whether headers may be or contain decimals.
    decimals: bool,
}

/// The longest delay, for all applications or by application. The limit includes any delay that a
/// tolerance adds.
///
/// ```
/// use delayline::message::MaxDelay;
///
/// let limits: MaxDelay = "30d billing=90d eu.orders=1h".parse()?;
/// assert_eq!(limits.of(&"billing".parse()?).map(|delay| delay.to_string()), Some("90d".into()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MaxDelay {
    /// For applications without their own limit. If `None`, up to the longest possible delay.
    pub default: Option<Delay>,
    /// For these applications, instead of the default.
    pub apps: BTreeMap<AppKey, Delay>,
}

impl MaxDelay {
    /// The longest delay of an application, if there is a limit.
    #[must_use]
    pub fn of(&self, app: &AppKey) -> Option<Delay> {
        self.apps.get(app).copied().or(self.default)
    }
}

/// Why a text is not a [`MaxDelay`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{part}` is neither a delay such as `30d` nor an application with one, such as `billing=90d`: {reason}"
)]
pub struct MaxDelayError {
    part: String,
    reason: String,
}

impl FromStr for MaxDelay {
    type Err = MaxDelayError;

    /// Reads delays separated by spaces: one for all applications, and `APP=DELAY` for those
    /// with their own. A delay is written without spaces here.
    fn from_str(text: &str) -> Result<Self, MaxDelayError> {
        let read = |text: &str| text.parse().map_err(|error: DelayError| error.to_string());
        let (default, apps) = by_app(text, read).map_err(|(part, reason)| MaxDelayError { part, reason })?;
        Ok(Self { default, apps })
    }
}

/// How many recalls an application may have pending. No broker can refuse a binding over such a
/// limit. `delayline doctor`, metrics and alerts check it.
///
/// ```
/// use delayline_core::message::MaxRecalls;
///
/// let limits: MaxRecalls = "5000 billing=50000".parse()?;
/// assert_eq!((limits.of(&"billing".parse()?), limits.of(&"mail".parse()?)), (50_000, 5_000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MaxRecalls {
    /// For applications without their own limit; 10,000 by default.
    pub default: u64,
    /// For these applications, instead of the default.
    pub apps: BTreeMap<AppKey, u64>,
}

impl MaxRecalls {
    /// How many an application may have pending.
    #[must_use]
    pub fn of(&self, app: &AppKey) -> u64 {
        self.apps.get(app).copied().unwrap_or(self.default)
    }
}

impl Default for MaxRecalls {
    fn default() -> Self {
        Self { default: 10_000, apps: BTreeMap::new() }
    }
}

/// Why a text is not a [`MaxRecalls`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{part}` is neither a number such as `10000` nor an application with one, such as `billing=50000`: \
     {reason}"
)]
pub struct MaxRecallsError {
    part: String,
    reason: String,
}

impl FromStr for MaxRecalls {
    type Err = MaxRecallsError;

    /// Reads numbers separated by spaces: one for all applications, and `APP=NUMBER` for those
    /// with their own.
    fn from_str(text: &str) -> Result<Self, MaxRecallsError> {
        let read = |text: &str| text.parse().map_err(|_| "write a whole number, 0 or more".to_owned());
        let (default, apps) =
            by_app(text, read).map_err(|(part, reason)| MaxRecallsError { part, reason })?;
        Ok(Self { default: default.unwrap_or(Self::default().default), apps })
    }
}

/// The limit for all applications, and the limits for single ones.
type ByApp<T> = (Option<T>, BTreeMap<AppKey, T>);

/// Reads limits separated by spaces: one for all applications, and `APP=LIMIT` for those with their
/// own. An error contains the faulty part and the reason.
fn by_app<T>(text: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<ByApp<T>, (String, String)> {
    let (mut default, mut apps) = (None, BTreeMap::new());
    for part in text.split_whitespace() {
        let failed = |reason: String| (part.to_owned(), reason);
        // An app key can contain `=`; a limit cannot.
        let twice = match part.rsplit_once('=') {
            Some((app, limit)) => {
                let app = app.parse().map_err(|error: AppKeyError| failed(error.to_string()))?;
                apps.insert(app, read(limit).map_err(failed)?).is_some()
            }
            None => default.replace(read(part).map_err(failed)?).is_some(),
        };
        if twice {
            return Err(failed("this limit is given twice".into()));
        }
    }
    Ok((default, apps))
}

impl Quota {
    /// No limits, and decimals in headers are allowed: for a program that sends on messages of
    /// other clients. A queue keeps decimals; a stream crashes over them.
    #[must_use]
    pub fn forwarding() -> Self {
        Self { decimals: true, ..Self::default() }
    }

    /// Sets the largest body, in bytes.
    #[must_use]
    pub fn with_max_message_size(mut self, bytes: usize) -> Self {
        self.max_message_size = Some(bytes);
        self
    }

    /// Sets the longest delays.
    #[must_use]
    pub fn with_max_delay(mut self, longest: MaxDelay) -> Self {
        self.max_delay = longest;
        self
    }

    /// Refuses a message over the quota: its body, or the delay with which it would be published.
    /// Also refuses decimals, except for forwarding.
    fn check(&self, message: &Message, delay: Delay) -> Result<(), InvalidMessage> {
        if let Some(name) = decimal(&message.headers).filter(|_| !self.decimals) {
            return Err(InvalidMessage::Decimal { name: name.to_owned() });
        }
        let size = message.body.len();
        if let Some(limit) = self.max_message_size.filter(|&limit| size > limit) {
            return Err(InvalidMessage::OverSize { size, limit });
        }
        match self.max_delay.of(&message.app).filter(|&limit| delay > limit) {
            Some(limit) => Err(InvalidMessage::OverDelay { app: message.app.clone(), delay, limit }),
            None => Ok(()),
        }
    }
}

/// Every check before a message is published: the limits of the wire, the longest delay of the
/// levels, and the quota.
pub fn admit(
    quota: &Quota,
    message: &Message,
    (unit, shortcuts): (Unit, bool),
    now: Timestamp,
    taken: Instant,
) -> Result<Schedule, InvalidMessage> {
    super::check(message)?;
    let schedule = match fixed(message) {
        Some(handle) => Schedule::again(handle, unit, taken),
        None => Schedule::new(message.when, message.tolerance, (unit, shortcuts), now, taken)?,
    };
    quota.check(message, schedule.remaining(taken))?;
    Ok(schedule)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Value;

    fn app(key: &str) -> AppKey {
        AppKey::new(key).unwrap()
    }

    fn admits(quota: &Quota, message: &Message) -> Result<(), String> {
        let admitted = admit(quota, message, (Unit::SECOND, false), Timestamp::UNIX_EPOCH, Instant::now());
        admitted.map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn reads_limits() {
        let limits: MaxDelay = " 30d billing=90d  a=b=1h ".parse().unwrap();
        let text = |key: &str| limits.of(&app(key)).unwrap().to_string();
        assert_eq!((text("billing"), text("a=b"), text("x")), ("90d".into(), "1h".into(), "30d".into()));
        assert_eq!("".parse::<MaxDelay>(), Ok(MaxDelay::default()));
        let only: MaxDelay = "x=0".parse().unwrap();
        assert_eq!((only.of(&app("x")), only.of(&app("y"))), (Some(Delay::ZERO), None));
        for (wrong, named) in [
            ("soon", "`soon`"),
            ("30d 20d", "`20d`"),
            ("a=1h a=2h", "`a=2h`"),
            ("a=", "`a=`"),
            ("=1h", "`=1h`"),
            ("a.#=1h", "`a.#=1h`"),
            ("9999999d", "`9999999d`"),
        ] {
            let error = wrong.parse::<MaxDelay>().unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn reads_how_many_recalls_there_may_be() {
        let limits: MaxRecalls = "500 billing=7".parse().unwrap();
        assert_eq!((limits.of(&app("billing")), limits.of(&app("x"))), (7, 500));
        let only: MaxRecalls = "billing=7".parse().unwrap();
        assert_eq!(only.of(&app("x")), 10_000);
        for (wrong, named) in [("many", "`many`"), ("a=-1", "`a=-1`"), ("1 2", "`2`"), ("a.#=1", "`a.#=1`")] {
            let error = wrong.parse::<MaxRecalls>().unwrap_err().to_string();
            assert!(error.contains(named) && error.contains("billing=50000"), "{error}");
        }
    }

    #[test]
    fn an_exceeded_quota_is_refused_with_both_numbers() {
        let quota = Quota::default().with_max_message_size(3).with_max_delay("1m short=10s".parse().unwrap());
        let message =
            |key: &str, delay: &str, body: &str| Message::after(app(key), delay.parse().unwrap(), body);
        assert_eq!(admits(&quota, &message("x", "1m", "abc")), Ok(()));
        assert_eq!(admits(&quota, &message("short", "10s", "")), Ok(()));
        let error = admits(&quota, &message("x", "1m", "abcd")).unwrap_err();
        assert!(
            error.contains("4 bytes") && error.contains("3") && error.contains("max_message_size"),
            "{error}"
        );
        let error = admits(&quota, &message("short", "11s", "")).unwrap_err();
        assert!(error.contains("11s") && error.contains("10s") && error.contains("`short`"), "{error}");
        // The delay that the tolerance adds counts: it would be in the routing key.
        let later = message("x", "60s", "").with_tolerance("100%".parse().unwrap());
        assert!(admits(&quota, &later).unwrap_err().contains("1m 4s"));
        let at = Message::at(app("x"), Timestamp::from_second(61).unwrap(), "");
        assert!(admits(&quota, &at).unwrap_err().contains("1m 1s"));
        assert_eq!(admits(&Quota::default(), &later), Ok(()));
    }

    #[test]
    fn decimals_are_only_forwarded() {
        let decimal = || Value::Decimal { scale: 2, value: 125 };
        for (value, name) in [
            (decimal(), "price"),
            (Value::Array(vec![Value::Table([("in".to_owned(), decimal())].into())]), "prices"),
        ] {
            let message = Message::after(app("x"), Delay::ZERO, "").with_header(name, value.clone());
            let error = admits(&Quota::default(), &message).unwrap_err();
            assert!(error.contains(&format!("`{name}`")) && error.contains("as text"), "{error}");
            assert_eq!(admits(&Quota::forwarding(), &message), Ok(()));
            // This header is not sent.
            let death = Message::after(app("x"), Delay::ZERO, "").with_header("x-death", value);
            assert_eq!(admits(&Quota::default(), &death), Ok(()));
        }
    }
}
