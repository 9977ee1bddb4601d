//! When a waiting message is due, by its contents: pure.
//!
//! A broker does not report how long a message has waited in its queue. Several headers are evidence of it,
//! and each is checked against the possible range. A message that is still in level n has at least the bits
//! below n to wait, and at most 2^n units more; a shortcut is like all levels of its bits. A due time outside of this range belongs to an earlier
//! journey, such as the headers of a retried message, or to a wrong clock, and is ignored.

use std::time::Duration;

use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use serde::Serialize;

use delayline_core::{
    codec::{Delay, Hop},
    message::{Headers, Value, headers},
};

/// The largest accepted difference between clocks.
const SLACK: Duration = Duration::from_secs(5);

/// The evidence of when a message is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Evidence {
    /// The header `delayline-due`, to the millisecond.
    DueHeader,
    /// The time at which the broker took it from the level before, to the second.
    Death,
    /// A header of NServiceBus or Celery.
    Framework,
    /// None: it may have waited in its level for any time, and waits there anew.
    Nothing,
}

/// Where a message waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    /// The level or shortcut.
    pub(super) hop: Hop,
    /// Its whole delay.
    pub(super) delay: Delay,
    /// Its routing key.
    pub(super) key: &'a str,
    /// The unit of its set or layout.
    pub(super) unit: Duration,
    /// The queues of levels that it may have been in before, if its delay has a higher bit.
    pub(super) before: &'a [&'a str],
    /// Whether NServiceBus' headers may be believed.
    pub(super) nservicebus: bool,
}

impl Place<'_> {
    /// Whether a message with this delay passes this level at all.
    pub(super) fn is_right(&self) -> bool {
        self.hop.is_passed_by(self.delay)
    }

    /// When the message is due, and the evidence of it.
    pub(super) fn due(&self, headers: &Headers, now: Timestamp) -> (Timestamp, Evidence) {
        let below = self.hop.rest(self.delay);
        let later = |from: Timestamp, by: Duration| from.saturating_add(by).unwrap_or(Timestamp::MAX);
        let rest = self.unit * (below + self.hop.units());
        let earliest = later(now, self.unit * below);
        let latest = later(now, rest);
        let told = [
            (own(headers), Evidence::DueHeader),
            (self.death(headers).map(|death| later(death, rest).min(latest)), Evidence::Death),
            (self.framework(headers), Evidence::Framework),
        ];
        let possible = |due: &Timestamp| later(*due, SLACK) >= earliest && *due <= later(latest, SLACK);
        let found = told.into_iter().find_map(|(due, by)| Some((due.filter(possible)?, by)));
        found.map_or((latest, Evidence::Nothing), |(due, by)| (due.max(earliest), by))
    }

    /// When the broker took the message from the level before, at the latest, on this journey.
    fn death(&self, headers: &Headers) -> Option<Timestamp> {
        let Some(Value::Array(deaths)) = headers.get("x-death") else { return None };
        let text = |death: &Headers, key: &str| match death.get(key) {
            Some(Value::Text(text)) => Some(text.clone()),
            _ => None,
        };
        deaths.iter().find_map(|death| {
            let Value::Table(death) = death else { return None };
            let Some(Value::Array(keys)) = death.get("routing-keys") else { return None };
            let of_this = keys.contains(&Value::Text(self.key.to_owned()));
            let of_before = text(death, "queue").is_some_and(|queue| self.before.contains(&queue.as_str()));
            if !of_this || !of_before {
                return None;
            }
            // The broker cuts off the fraction.
            Timestamp::from_second(death.get("time")?.as_i64()?.checked_add(1)?).ok()
        })
    }

    fn framework(&self, headers: &Headers) -> Option<Timestamp> {
        if !self.nservicebus {
            return celery(headers);
        }
        let text = |name: &str| match headers.get(name) {
            Some(Value::Text(text)) => nservicebus_time(text),
            _ => None,
        };
        let seconds = headers.get("NServiceBus.Transport.RabbitMQ.DelayInSeconds")?.as_i64()?;
        if seconds != i64::from(self.delay.seconds()) {
            return None;
        }
        // A delayed retry keeps the time at which the message was sent first.
        let sent = text("NServiceBus.TimeSent").max(text("NServiceBus.Retries.Timestamp"))?;
        let due = sent.checked_add(self.unit * self.delay.seconds()).ok()?;
        Some(text("NServiceBus.DeliverAt").map_or(due, |at| at.max(due)))
    }
}

fn own(headers: &Headers) -> Option<Timestamp> {
    Timestamp::from_millisecond(headers.get(headers::DUE)?.as_i64()?).ok()
}

/// `eta`, as Celery writes it: ISO 8601 with an offset. Without an offset it is ambiguous.
fn celery(headers: &Headers) -> Option<Timestamp> {
    match headers.get("eta")? {
        Value::Text(eta) => eta.parse().ok(),
        _ => None,
    }
}

/// `2026-11-23 06:09:54:123456 Z`
fn nservicebus_time(text: &str) -> Option<Timestamp> {
    let (seconds, micros) = text.strip_suffix(" Z")?.rsplit_once(':')?;
    let at = DateTime::strptime("%Y-%m-%d %H:%M:%S", seconds).ok()?;
    if micros.len() != 6 {
        return None;
    }
    let at = at.with().subsec_nanosecond(micros.parse::<i32>().ok()?.checked_mul(1_000)?).build().ok()?;
    TimeZone::UTC.to_timestamp(at).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "the key";

    fn place(level: u8, delay: u64) -> Place<'static> {
        Place {
            hop: Hop::Level(level.try_into().unwrap()),
            delay: Delay::from_seconds(delay).unwrap(),
            key: KEY,
            unit: Duration::from_secs(1),
            before: &["before"],
            nservicebus: false,
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn due(place: Place<'_>, headers: &Headers, now: i64) -> (i64, Evidence) {
        let (due, by) = place.due(headers, at(now));
        (due.as_second(), by)
    }

    fn text(pairs: &[(&str, &str)]) -> Headers {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), Value::from(*value))).collect()
    }

    fn died(queue: &str, key: &str, time: u64) -> Headers {
        let death = Headers::from([
            ("queue".into(), queue.into()),
            ("routing-keys".into(), Value::Array(vec![key.into()])),
            ("time".into(), Value::Timestamp(time)),
        ]);
        Headers::from([("x-death".into(), Value::Array(vec![Value::Void, Value::Table(death)]))])
    }

    #[test]
    fn the_due_time_is_believed_if_the_level_allows_it() {
        // Bits 3 and 1, in level 3: 2 to 10 s are left.
        let place = place(3, 0b1010);
        let own = |ms: i64| Headers::from([(headers::DUE.to_owned(), Value::I64(ms))]);
        assert_eq!(due(place, &own(1_007_000), 1_000), (1_007, Evidence::DueHeader));
        assert_eq!(place.due(&own(1_007_123), at(1_000)).0.as_millisecond(), 1_007_123);
        // A moment too early for this level is a clock error; long ago is another journey.
        assert_eq!(due(place, &own(1_000_000), 1_000), (1_002, Evidence::DueHeader));
        assert_eq!(due(place, &own(900_000), 1_000), (1_010, Evidence::Nothing));
        assert_eq!(due(place, &own(1_100_000), 1_000), (1_010, Evidence::Nothing));
        assert_eq!(due(place, &Headers::new(), 1_000), (1_010, Evidence::Nothing));
    }

    #[test]
    fn the_level_before_gives_the_due_time_to_the_second() {
        // It came at 995.x to a level where it waits 8 s and 2 s more.
        let place = place(3, 0b1_1010);
        assert_eq!(due(place, &died("before", KEY, 995), 1_000), (1_006, Evidence::Death));
        assert_eq!(due(place, &died("before", KEY, 1_000), 1_000), (1_010, Evidence::Death));
        for other in [died("elsewhere", KEY, 995), died("before", "another key", 995), died("before", KEY, 5)]
        {
            assert_eq!(due(place, &other, 1_000).1, Evidence::Nothing);
        }
        assert_eq!(
            due(Place { before: &[], ..place }, &died("before", KEY, 995), 1_000).1,
            Evidence::Nothing
        );
    }

    #[test]
    fn due_times_of_frameworks_are_read() {
        let eta = |eta: &str| text(&[("eta", eta)]);
        assert_eq!(
            due(place(3, 10), &eta("1970-01-01T00:16:47.5+00:00"), 1_000),
            (1_007, Evidence::Framework)
        );
        assert_eq!(due(place(3, 10), &eta("1970-01-01T00:16:47"), 1_000).1, Evidence::Nothing);
        let nsb = Place { nservicebus: true, ..place(3, 10) };
        let mut sent = text(&[("NServiceBus.TimeSent", "1970-01-01 00:16:35:250000 Z")]);
        assert_eq!(due(nsb, &sent, 1_000).1, Evidence::Nothing);
        sent.insert("NServiceBus.Transport.RabbitMQ.DelayInSeconds".into(), Value::I32(10));
        assert_eq!(
            nsb.due(&sent, at(1_000)),
            (Timestamp::from_millisecond(1_005_250).unwrap(), Evidence::Framework)
        );
        // A retry: the first time no longer counts.
        sent.insert("NServiceBus.TimeSent".into(), "1970-01-01 00:00:00:000000 Z".into());
        assert_eq!(due(nsb, &sent, 1_000).1, Evidence::Nothing);
        sent.insert("NServiceBus.Retries.Timestamp".into(), "1970-01-01 00:16:38:000000 Z".into());
        assert_eq!(due(nsb, &sent, 1_000), (1_008, Evidence::Framework));
        sent.insert("NServiceBus.DeliverAt".into(), "1970-01-01 00:16:49:000000 Z".into());
        assert_eq!(due(nsb, &sent, 1_000), (1_009, Evidence::Framework));
        sent.insert("NServiceBus.Transport.RabbitMQ.DelayInSeconds".into(), Value::I32(11));
        assert_eq!(due(nsb, &sent, 1_000).1, Evidence::Nothing);
    }

    #[test]
    fn odd_times_are_no_evidence() {
        for odd in [
            "",
            " Z",
            "1970-01-01 00:16:35 Z",
            "1970-01-01 00:16:35:25 Z",
            "1970-01-01 00:16:35:-25000 Z",
            "x:000000 Z",
        ] {
            assert_eq!(nservicebus_time(odd), None, "{odd}");
        }
        assert_eq!(
            nservicebus_time("2026-11-23 06:09:54:123456 Z").unwrap().to_string(),
            "2026-11-23T06:09:54.123456Z"
        );
    }

    #[test]
    fn a_message_is_never_taken_for_due_earlier_than_its_level_allows() {
        for delay in [1, 6, 7, 10, 26, 27, 255] {
            let whole = Delay::from_seconds(delay).unwrap();
            for hop in Hop::all().filter(|hop| hop.is_passed_by(whole)) {
                let place = Place { hop, ..place(0, delay) };
                let rest = i64::from(hop.rest(whole));
                for ms in (900_000..1_300_000).step_by(333) {
                    let headers = Headers::from([(headers::DUE.to_owned(), Value::I64(ms))]);
                    let (due, _) = place.due(&headers, at(1_000));
                    assert!(due >= at(1_000 + rest), "{delay} {hop:?} {ms}: {due}");
                }
            }
        }
    }
}
