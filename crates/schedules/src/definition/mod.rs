//! What a schedule is: its times, its message, and what happens to occurrences that were missed. Pure.

pub(crate) mod calendar;
pub(crate) mod name;
pub(crate) mod serial;

use std::{collections::BTreeMap, fmt, str::FromStr};

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use serde::{Deserialize, Serialize};

use delayline_core::{
    codec::{AppKey, Delay},
    message::{Headers, InvalidMessage, Message, Properties, Value, check, headers, is_forbidden},
    topology::Unit,
};

use self::{
    calendar::{Calendar, CalendarError},
    name::{ScheduleName, message_id},
    serial::{app_key, bytes, seconds},
};

/// The largest body.
const MAX_BODY: usize = 64 * 1024;

/// Why a schedule cannot be as it is written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DefinitionError {
    /// Its cron expression, or its zone.
    #[error(transparent)]
    Calendar(#[from] CalendarError),
    /// Both or none of `cron` and `every`.
    #[error("a schedule has either a cron expression (`cron`) or an interval (`every`)")]
    Times,
    /// A zone for an interval.
    #[error("`zone` belongs to a cron expression; an interval counts the same in every zone")]
    ZoneOfInterval,
    /// The interval is too short.
    #[error("`every` is {every}; the shortest interval is {}", Timing::shortest())]
    TooShort {
        /// The interval.
        every: Delay,
    },
    /// It ends before it begins.
    #[error("`end` ({end}) is not later than `start` ({start})")]
    Order {
        /// Its start.
        start: Timestamp,
        /// Its end.
        end: Timestamp,
    },
    /// It is published so far ahead, or spread so widely, that no delay is long enough.
    #[error("`{name}` is {found}; it may be {limit} at most")]
    TooLong {
        /// The name of the value.
        name: &'static str,
        /// The value.
        found: Delay,
        /// The largest value.
        limit: Delay,
    },
    /// The body is too large.
    #[error("the body has {size} bytes; a schedule keeps {MAX_BODY} at most. Send a reference to the data")]
    Body {
        /// Its size in bytes.
        size: usize,
    },
    /// A header.
    #[error("header `{name}`: {reason}")]
    Header {
        /// Its name.
        name: String,
        /// The fault.
        reason: &'static str,
    },
    /// The message cannot be published.
    #[error(transparent)]
    Message(#[from] InvalidMessage),
}

/// When a schedule has occurrences.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Timing {
    /// At local times of a zone.
    Cron {
        /// Minute, hour, day of month, month, day of week; or a name such as `@daily`.
        cron: String,
        /// The IANA name of the zone.
        zone: String,
    },
    /// After equal intervals.
    Every {
        /// The interval in seconds.
        #[serde(with = "seconds")]
        #[schemars(with = "u32")]
        every: Delay,
    },
}

impl Timing {
    /// The shortest interval: 10 s.
    #[must_use]
    pub fn shortest() -> Delay {
        seconds_of(10)
    }

    /// The times of `cron` and `zone`, or of `every`.
    ///
    /// # Errors
    /// Both or none is given, or a zone for an interval.
    pub fn new(
        cron: Option<String>,
        every: Option<Delay>,
        zone: Option<String>,
    ) -> Result<Self, DefinitionError> {
        match (cron, every, zone) {
            (Some(cron), None, zone) => Ok(Self::Cron { cron, zone: zone.unwrap_or_else(|| "UTC".into()) }),
            (None, Some(every), None) => Ok(Self::Every { every }),
            (None, Some(_), Some(_)) => Err(DefinitionError::ZoneOfInterval),
            _ => Err(DefinitionError::Times),
        }
    }
}

impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cron { cron, zone } => write!(f, "{cron} ({zone})"),
            Self::Every { every } => write!(f, "every {every}"),
        }
    }
}

/// What happens to occurrences that could not be published in time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Missed {
    /// They are left out.
    Skip,
    /// The last one is published late.
    #[default]
    Once,
    /// All are published late.
    All,
}

impl Missed {
    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Once => "once",
            Self::All => "all",
        }
    }
}

impl FromStr for Missed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = [Self::Skip, Self::Once, Self::All].into_iter().find(|it| it.as_str() == text);
        found.ok_or_else(|| format!("`{text}` is not known; write skip, once or all"))
    }
}

/// Everything about a schedule that its owner decides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct Spec {
    /// The app key of the application that receives the messages.
    #[serde(with = "app_key")]
    #[schemars(with = "String")]
    pub app: AppKey,
    /// When it has occurrences.
    pub timing: Timing,
    /// The first instant at which it may have one. Intervals count from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Timestamp>,
    /// The last instant at which it may have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Timestamp>,
    /// Each message is up to this many seconds late, by a different amount for each occurrence.
    #[serde(default, with = "seconds")]
    #[schemars(with = "u32")]
    pub jitter: Delay,
    /// What happens to missed occurrences.
    #[serde(default)]
    pub missed: Missed,
    /// How many seconds later a missed occurrence may still be published.
    #[serde(with = "seconds")]
    #[schemars(with = "u32")]
    pub missed_within: Delay,
    /// How many seconds ahead occurrences are published.
    #[serde(with = "seconds")]
    #[schemars(with = "u32")]
    pub ahead: Delay,
    /// The MIME type of the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Headers of the messages.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The body, in base64.
    #[serde(default, with = "bytes")]
    #[schemars(with = "String")]
    pub body: Vec<u8>,
}

impl Spec {
    /// The default of `ahead` and `missed_within`: 24 hours.
    #[must_use]
    pub fn day() -> Delay {
        seconds_of(86_400)
    }

    /// The longest `ahead`, `missed_within` and `jitter`: 366 days.
    #[must_use]
    pub fn year() -> Delay {
        seconds_of(366 * 86_400)
    }

    /// With defaults for everything else.
    #[must_use]
    pub fn new(app: AppKey, timing: Timing) -> Self {
        Self {
            app,
            timing,
            start: None,
            end: None,
            jitter: Delay::ZERO,
            missed: Missed::default(),
            missed_within: Self::day(),
            ahead: Self::day(),
            content_type: None,
            headers: BTreeMap::new(),
            body: Vec::new(),
        }
    }

    /// Checks everything that can be checked without a broker.
    ///
    /// # Errors
    /// The first fault.
    pub fn check(&self) -> Result<(), DefinitionError> {
        Times::of(self, Unit::SECOND)?;
        if let Timing::Every { every } = self.timing
            && every < Timing::shortest()
        {
            return Err(DefinitionError::TooShort { every });
        }
        if let (Some(start), Some(end)) = (self.start, self.end)
            && end <= start
        {
            return Err(DefinitionError::Order { start, end });
        }
        let limits = [("ahead", self.ahead), ("missed_within", self.missed_within), ("jitter", self.jitter)];
        if let Some((name, found)) = limits.into_iter().find(|(_, found)| *found > Self::year()) {
            return Err(DefinitionError::TooLong { name, found, limit: Self::year() });
        }
        if self.body.len() > MAX_BODY {
            return Err(DefinitionError::Body { size: self.body.len() });
        }
        for name in self.headers.keys() {
            let reason = match name.as_str() {
                name if name.starts_with("delayline-") => "names that begin with `delayline-` are reserved",
                name if is_forbidden(name) => "it would move or lose the message",
                _ => continue,
            };
            return Err(DefinitionError::Header { name: name.clone(), reason });
        }
        let name = ScheduleName::longest(&self.app);
        let message = self.message(&name, Timestamp::now(), &TimeZone::UTC, Delay::ZERO);
        check(&message.with_id(message_id(&name, Timestamp::now(), u64::MAX)))?;
        Ok(())
    }

    /// The message of an occurrence, without its body.
    pub(crate) fn message(
        &self,
        name: &ScheduleName,
        at: Timestamp,
        zone: &TimeZone,
        delay: Delay,
    ) -> Message {
        let headers = self.headers.iter().map(|(name, value)| (name.clone(), Value::Text(value.clone())));
        let mut all: Headers = headers.collect();
        all.insert(headers::SCHEDULE.into(), name.as_str().into());
        all.insert(headers::OCCURRENCE.into(), Value::I64(at.as_millisecond()));
        let mut properties = Properties::default();
        properties.content_type.clone_from(&self.content_type);
        properties.message_id = Some(format!("{name}@{}", written(at, zone)));
        let mut message = Message::after(self.app.clone(), delay, Vec::new()).with_properties(properties);
        message.headers = all;
        message
    }
}

/// An instant as it is in the id of a message: local time and offset, to the second or millisecond.
fn written(at: Timestamp, zone: &TimeZone) -> String {
    at.to_zoned(zone.clone()).strftime("%Y-%m-%dT%H:%M:%S%.f%:z").to_string()
}

/// The times of a schedule, ready to be counted.
#[derive(Debug, Clone)]
pub struct Times {
    kind: Kind,
    start: Option<Timestamp>,
    end: Option<Timestamp>,
}

#[derive(Debug, Clone)]
enum Kind {
    Calendar(Calendar),
    /// An interval in ms, and an instant that it counts from.
    Interval(i64, i64),
}

impl Times {
    /// The times of a schedule, in a set with this unit.
    ///
    /// # Errors
    /// The cron expression or the zone cannot be used here.
    pub fn of(spec: &Spec, unit: Unit) -> Result<Self, CalendarError> {
        let kind = match &spec.timing {
            Timing::Cron { cron, zone } => Kind::Calendar(Calendar::new(cron, zone)?),
            Timing::Every { every } => {
                let begin = spec.start.map_or(0, Timestamp::as_millisecond);
                Kind::Interval(ms(*every, unit).max(1), begin)
            }
        };
        Ok(Self { kind, start: spec.start, end: spec.end })
    }

    /// The same, unless the schedule has another fault. An application writes its schedules itself.
    ///
    /// # Errors
    /// The first fault.
    pub fn checked(spec: &Spec, unit: Unit) -> Result<Self, DefinitionError> {
        spec.check()?;
        Ok(Self::of(spec, unit)?)
    }

    /// The first occurrence after an instant; `None` after the last.
    #[must_use]
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let before_start = self.start.and_then(|start| start.checked_sub(SignedDuration::from_nanos(1)).ok());
        let after = before_start.map_or(after, |start| start.max(after));
        let next = match &self.kind {
            Kind::Calendar(calendar) => calendar.next(after)?,
            Kind::Interval(every, begin) => {
                let next = (after.as_millisecond() - begin).div_euclid(*every) + 1;
                let next = Timestamp::from_millisecond(begin + next * every).ok()?;
                // An instant with a fraction of a millisecond.
                match next > after {
                    true => next,
                    false => next.checked_add(SignedDuration::from_millis(*every)).ok()?,
                }
            }
        };
        self.end.is_none_or(|end| next <= end).then_some(next)
    }

    /// The zone in which its occurrences are written.
    #[must_use]
    pub fn zone(&self) -> &TimeZone {
        match &self.kind {
            Kind::Calendar(calendar) => calendar.zone(),
            Kind::Interval(..) => const { &TimeZone::UTC },
        }
    }
}

fn seconds_of(seconds: u64) -> Delay {
    Delay::from_seconds(seconds).unwrap_or(Delay::MAX)
}

/// A length of time in a set with this unit, in ms.
pub(crate) fn ms(delay: Delay, unit: Unit) -> i64 {
    i64::from(delay.seconds()) * i64::from(unit.millis())
}

/// How late the message of an occurrence should be, in ms: the same whenever it is computed.
pub(crate) fn jitter_ms(spec: &Spec, name: &ScheduleName, at: Timestamp, unit: Unit) -> i64 {
    let most = ms(spec.jitter, unit);
    // FNV-1a.
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let bytes = name.as_str().bytes().chain(at.as_millisecond().to_le_bytes());
    let mut random = fastrand::Rng::with_seed(bytes.fold(0xcbf2_9ce4_8422_2325, mix));
    random.i64(0..=most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(timing: Timing) -> Spec {
        Spec::new(AppKey::new("billing").unwrap(), timing)
    }

    fn every(text: &str) -> Spec {
        spec(Timing::Every { every: text.parse().unwrap() })
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn intervals_are_of_absolute_time() {
        let times = Times::of(&every("15m"), Unit::SECOND).unwrap();
        // Also while the clocks of most zones change.
        assert_eq!(times.next(at("2026-10-25T00:59:59.999Z")), Some(at("2026-10-25T01:00:00Z")));
        assert_eq!(times.next(at("2026-10-25T01:00:00Z")), Some(at("2026-10-25T01:15:00Z")));
        assert_eq!(times.next(at("2026-10-25T01:00:00.0005Z")), Some(at("2026-10-25T01:15:00Z")));
        let mut from = every("1h");
        from.start = Some(at("2026-10-25T00:10:00Z"));
        from.end = Some(at("2026-10-25T02:10:00Z"));
        let times = Times::of(&from, Unit::SECOND).unwrap();
        assert_eq!(times.next(Timestamp::UNIX_EPOCH), from.start);
        assert_eq!(times.next(at("2026-10-25T00:10:00Z")), Some(at("2026-10-25T01:10:00Z")));
        assert_eq!(times.next(at("2026-10-25T01:10:00Z")), from.end);
        assert_eq!(times.next(from.end.unwrap()), None);
        // In a set that counts 10 ms.
        let times = Times::of(&every("10s"), Unit::from_millis(10).unwrap()).unwrap();
        assert_eq!(times.next(Timestamp::UNIX_EPOCH).map(|it| it.as_millisecond()), Some(100));
    }

    #[test]
    fn the_id_of_a_message_is_the_local_time() {
        let name: ScheduleName = "newsletter".parse().unwrap();
        let cron = spec(Timing::new(Some("0 8 * * *".into()), None, Some("Europe/Berlin".into())).unwrap());
        let times = Times::of(&cron, Unit::SECOND).unwrap();
        let next = times.next(at("2026-12-24T00:00:00Z")).unwrap();
        let message = cron.message(&name, next, times.zone(), Delay::ZERO);
        assert_eq!(message.properties.message_id.unwrap(), "newsletter@2026-12-24T08:00:00+01:00");
        assert_eq!(message.headers["delayline-schedule"], "newsletter".into());
        assert_eq!(message.headers["delayline-occurrence"], Value::I64(next.as_millisecond()));
        let id = |rev| message_id(&name, next, rev).to_string();
        assert_eq!(id(1_790_000_000_000), "newsletter-my17p0g0-mubbs7i8");
        assert_ne!(id(1), id(2));
    }

    #[test]
    fn jitter_is_the_same_for_the_same_occurrence() {
        let (mut jittered, name) = (every("10s"), "a".parse().unwrap());
        jittered.jitter = "60s".parse().unwrap();
        let of = |second| jitter_ms(&jittered, &name, Timestamp::from_second(second).unwrap(), Unit::SECOND);
        let all: Vec<_> = (0..1_000).map(of).collect();
        assert_eq!(all, (0..1_000).map(of).collect::<Vec<_>>());
        assert!(all.iter().all(|ms| (0..=60_000).contains(ms)));
        let mean = all.iter().sum::<i64>() / 1_000;
        assert!((25_000..35_000).contains(&mean), "{mean}");
        assert_eq!(jitter_ms(&every("10s"), &name, Timestamp::UNIX_EPOCH, Unit::SECOND), 0);
    }

    #[test]
    fn faults_are_named() {
        let fault = |change: fn(&mut Spec)| {
            let mut spec = every("1m");
            change(&mut spec);
            spec.check().unwrap_err().to_string()
        };
        assert_eq!(every("10s").check(), Ok(()));
        assert!(fault(|it| it.timing = Timing::Every { every: "9s".parse().unwrap() }).contains("is 10s"));
        assert!(fault(|it| it.ahead = "400d".parse().unwrap()).contains("`ahead` is 400d"));
        assert!(fault(|it| it.body = vec![0; 65_537]).contains("65537 bytes"));
        assert!(fault(|it| it.content_type = Some("x".repeat(256))).contains("content_type"));
        assert!(fault(|it| drop(it.headers.insert("CC".into(), "a".into()))).contains("`CC`: it would move"));
        assert!(fault(|it| drop(it.headers.insert("delayline-due".into(), "1".into()))).contains("reserved"));
        assert!(
            fault(|it| {
                it.start = Some(Timestamp::UNIX_EPOCH);
                it.end = it.start;
            })
            .contains("is not later")
        );
        let minute = || Some("1m".parse().unwrap());
        assert_eq!(Timing::new(None, None, None), Err(DefinitionError::Times));
        assert_eq!(Timing::new(Some("@daily".into()), minute(), None), Err(DefinitionError::Times));
        assert_eq!(Timing::new(None, minute(), Some("UTC".into())), Err(DefinitionError::ZoneOfInterval));
    }
}
