//! Times of day and dates, as typed and as shown.

use std::{fmt, sync::Once};

use jiff::{
    Timestamp, ToSpan, Zoned,
    civil::{DateTime, Time},
    fmt::temporal::Pieces,
    tz::{AmbiguousOffset, Offset, TimeZone},
};

use crate::failure::Failure;

/// Reads an instant: `2026-12-24T18:00:00Z`, with any offset or zone; local time without one;
/// or a time of day alone, which means its next occurrence.
pub fn instant(text: &str) -> Result<Timestamp, String> {
    at(text, Timestamp::now(), local_zone)
}

/// Refuses a time that ends before it begins.
pub fn in_order(after: Option<Timestamp>, before: Option<Timestamp>) -> Result<(), Failure> {
    match (after, before) {
        (Some(after), Some(before)) if before <= after => Err(Failure::usage(format!(
            "--due-before ({}) is not later than --due-after ({}); a time of day alone is the next one, so write \
             the dates as well",
            date(before),
            date(after)
        ))),
        _ => Ok(()),
    }
}

fn at(
    text: &str,
    now: Timestamp,
    local_zone: impl FnOnce() -> Result<TimeZone, String>,
) -> Result<Timestamp, String> {
    let text = text.trim();
    // The library would ignore an offset behind a bare time of day.
    if text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b':' | b'.'))
        && let Ok(time) = text.parse::<Time>()
    {
        return time_of_day(time, now, &local_zone()?);
    }
    let unreadable = || {
        format!("`{text}` is not a time; write `2026-12-24T18:00:00Z`, `2026-12-24 18:00` (local) or `18:00`")
    };
    // As times are printed here. A word there that names no zone is an abbreviation.
    let text = match text.split_whitespace().collect::<Vec<_>>()[..] {
        [date, time, offset, zone] if offset.starts_with(['+', '-']) && zone.contains('/') => {
            &format!("{date}T{time}{offset}[{zone}]")
        }
        [date, time, offset, _] | [date, time, offset] if offset.starts_with(['+', '-']) => {
            &format!("{date}T{time}{offset}")
        }
        _ => text,
    };
    let pieces = Pieces::parse(text).map_err(|_| unreadable())?;
    let zone = pieces.time_zone_annotation().map(|annotation| {
        annotation.to_time_zone().map_err(|_| {
            format!(
                "`{text}` names a time zone that this machine does not know; {KNOWN_ZONES}, or write an offset: \
                 `2026-12-24T18:00+01:00`"
            )
        })
    });
    if pieces.offset().is_none() {
        let datetime = pieces.date().to_datetime(pieces.time().unwrap_or(Time::midnight()));
        return in_zone(datetime, &zone.unwrap_or_else(local_zone)?);
    }
    if pieces.time().is_none() {
        return Err(unreadable());
    }
    if let Some(zone) = zone {
        let zone = zone?;
        return text.parse::<Zoned>().map(|zoned| zoned.timestamp()).map_err(|_| {
            format!(
                "`{text}` has an offset that {} does not have then; omit the offset or the zone",
                name(&zone)
            )
        });
    }
    text.parse().map_err(|_| out_of_range(text))
}

/// The next time that clocks show this.
fn time_of_day(time: Time, now: Timestamp, zone: &TimeZone) -> Result<Timestamp, String> {
    let today = now.to_zoned(zone.clone()).date();
    // A time that clocks show twice or skip counts as past only once both of its instants passed.
    let last = zone.to_ambiguous_timestamp(today.to_datetime(time)).later();
    let ahead = last.is_ok_and(|last| last > now);
    let day = if ahead { today } else { today.saturating_add(1.day()) };
    in_zone(day.to_datetime(time), zone)
}

fn in_zone(datetime: DateTime, zone: &TimeZone) -> Result<Timestamp, String> {
    let ambiguous = zone.to_ambiguous_timestamp(datetime);
    let with = |offset: Offset| {
        let instant = offset.to_timestamp(datetime).map_err(|_| out_of_range(datetime))?;
        Ok::<_, String>(instant.to_zoned(zone.clone()).strftime("`%Y-%m-%dT%H:%M:%S%:z`").to_string())
    };
    let shown = datetime.strftime("%Y-%m-%d %H:%M:%S");
    match ambiguous.offset() {
        AmbiguousOffset::Unambiguous { .. } => ambiguous.unambiguous().map_err(|_| out_of_range(datetime)),
        AmbiguousOffset::Gap { before, .. } => Err(format!(
            "there is no {shown} in {}: the clocks skip it; write a time that exists, such as {}",
            name(zone),
            with(before)?
        )),
        AmbiguousOffset::Fold { before, after } => Err(format!(
            "{shown} occurs twice in {}, because the clocks are put back; write {} or the later {}",
            name(zone),
            with(before)?,
            with(after)?
        )),
    }
}

fn out_of_range(text: impl fmt::Display) -> String {
    format!("`{text}` is out of range; a delay is at most 8.5 years")
}

const KNOWN_ZONES: &str = "use a name such as `Europe/Berlin` or `UTC` (the package tzdata lists them in \
     /usr/share/zoneinfo)";

/// The time zone of this process.
fn local_zone() -> Result<TimeZone, String> {
    match (TimeZone::try_system(), std::env::var_os("TZ")) {
        (Ok(zone), _) => Ok(zone),
        // A machine without a time zone setting, such as a container, uses UTC.
        (Err(_), None) => Ok(TimeZone::UTC),
        (Err(_), Some(named)) => Err(format!(
            "the environment variable TZ is `{}`, a time zone that this machine does not know, so there is \
             no local time; set TZ to one it knows, or unset it: {KNOWN_ZONES}; a time with an offset, such \
             as `2026-12-24T18:00+01:00`, works without",
            named.to_string_lossy().escape_debug()
        )),
    }
}

/// The name of a time zone.
fn name(zone: &TimeZone) -> String {
    zone.iana_name().map_or_else(|| "local time".into(), str::to_owned)
}

/// An instant in local time; if there is none, in UTC with a note.
fn shown(instant: Timestamp) -> Zoned {
    static SAID: Once = Once::new();
    instant.to_zoned(local_zone().unwrap_or_else(|problem| {
        SAID.call_once(|| crate::output::aside(format!("times are shown in UTC: {problem}")));
        TimeZone::UTC
    }))
}

/// A time of day in local time, with milliseconds.
pub fn clock(instant: Timestamp) -> String {
    shown(instant).strftime("%H:%M:%S%.3f").to_string()
}

/// The time zone that times are shown in.
pub fn zone() -> TimeZone {
    shown(Timestamp::now()).time_zone().clone()
}

/// An instant in full: `2026-12-24 18:00:00 +01:00 Europe/Berlin`.
pub fn date(instant: Timestamp) -> String {
    dated(&shown(instant))
}

fn dated(zoned: &Zoned) -> String {
    // A zone without a name, such as `TZ=EST5EDT,…`, has abbreviations.
    let zone = match zoned.time_zone().iana_name() {
        Some(name) => name.to_owned(),
        None => zoned.strftime("%Z").to_string(),
    };
    format!("{} {zone}", zoned.strftime("%Y-%m-%d %H:%M:%S %:z"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As if it were noon of 20 November 2026 in Berlin, or another time.
    fn read(text: &str, now: &str) -> Result<String, String> {
        let berlin = || TimeZone::get("Europe/Berlin").map_err(|error| error.to_string());
        at(text, now.parse().unwrap(), berlin).map(|instant| instant.to_string())
    }

    const NOON: &str = "2026-11-20T11:00:00Z";

    #[test]
    fn reads_what_people_write() {
        for (text, expected) in [
            ("2026-12-24T18:00:00Z", "2026-12-24T18:00:00Z"),
            ("2026-12-24T18:00:00+02:00", "2026-12-24T16:00:00Z"),
            ("2026-12-24T18:00[America/New_York]", "2026-12-24T23:00:00Z"),
            ("2026-12-24T18:00-05:00[America/New_York]", "2026-12-24T23:00:00Z"),
            ("2026-12-24 18:00", "2026-12-24T17:00:00Z"),
            // As it is printed.
            ("2026-12-24 18:00:00 +01:00 Europe/Berlin", "2026-12-24T17:00:00Z"),
            ("2026-12-24 18:00 -05:00", "2026-12-24T23:00:00Z"),
            ("2026-12-24", "2026-12-23T23:00:00Z"),
            ("2026-12-24T18:00:00.5", "2026-12-24T17:00:00.5Z"),
            ("18:30", "2026-11-20T17:30:00Z"),
            ("12:00", "2026-11-21T11:00:00Z"),
            ("06:00:30", "2026-11-21T05:00:30Z"),
        ] {
            assert_eq!(read(text, NOON), Ok(expected.into()), "{text}");
        }
        for text in [
            "",
            "soon",
            "25:00",
            "2026-13-01 10:00",
            "2026-02-30T10:00",
            "90s",
            "18:00+02:00",
            "2026-12-24+02:00",
        ] {
            let error = read(text, NOON).expect_err(text);
            assert!(error.contains("is not a time; write"), "{text}: {error}");
        }
    }

    #[test]
    fn a_time_that_clocks_skip_or_show_twice_is_asked_about() {
        let gap = "there is no 2027-03-28 02:30:00 in Europe/Berlin";
        let fold = "2026-10-25 02:30:00 occurs twice in Europe/Berlin";
        for (text, now, words) in [
            ("2027-03-28 02:30", NOON, [gap, "`2027-03-28T03:30:00+02:00`", ""]),
            ("2027-03-28T02:30[Europe/Berlin]", NOON, [gap, "", ""]),
            ("2026-10-25 02:30", NOON, [fold, "`2026-10-25T02:30:00+02:00`", "`2026-10-25T02:30:00+01:00`"]),
            ("02:30", "2027-03-27T20:00:00Z", [gap, "", ""]),
            ("02:30", "2026-10-24T20:00:00Z", [fold, "", ""]),
            // The first has passed, the second has not.
            ("02:30", "2026-10-25T00:45:00Z", [fold, "", ""]),
        ] {
            let error = read(text, now).expect_err(text);
            assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
        }
        // A time that has passed is not ambiguous.
        assert_eq!(read("02:30", "2027-03-28T10:00:00Z"), Ok("2027-03-29T00:30:00Z".into()));
        assert_eq!(read("02:30", "2026-10-25T10:00:00Z"), Ok("2026-10-26T01:30:00Z".into()));
        // The times that the error suggests can be parsed.
        assert_eq!(read("2027-03-28T03:30:00+02:00", NOON), Ok("2027-03-28T01:30:00Z".into()));
    }

    #[test]
    fn a_zone_that_does_not_exist_is_named() {
        let error = read("2026-12-24T18:00[Mars/Phobos]", NOON).unwrap_err();
        assert!(error.contains("time zone") && error.contains("tzdata"), "{error}");
        for text in ["2026-12-24T18:00+05:00[Europe/Berlin]", "2026-12-24 18:00:00 +05:00 Europe/Berlin"] {
            let error = read(text, NOON).unwrap_err();
            assert!(error.contains("offset") && error.contains("Europe/Berlin"), "{error}");
        }
        // Only local time needs a zone.
        let none = || Err("no zone".to_owned());
        assert_eq!(at("2026-12-24 18:00", Timestamp::UNIX_EPOCH, none), Err("no zone".into()));
        assert!(at("2026-12-24T18:00Z", Timestamp::UNIX_EPOCH, none).is_ok());
    }

    #[test]
    fn dates_can_be_read() {
        for (zoned, text) in [
            ("2026-12-24T18:00:00.9+01:00[Europe/Berlin]", "2026-12-24 18:00:00 +01:00 Europe/Berlin"),
            ("2026-12-24T18:00:00Z[UTC]", "2026-12-24 18:00:00 +00:00 UTC"),
        ] {
            assert_eq!(dated(&zoned.parse().unwrap()), text);
        }
        let unnamed = TimeZone::posix("EST5EDT,M3.2.0,M11.1.0").unwrap();
        let instant: Timestamp = "2026-12-24T18:00:00Z".parse().unwrap();
        assert_eq!(dated(&instant.to_zoned(unnamed)), "2026-12-24 13:00:00 -05:00 EST");
    }
}
