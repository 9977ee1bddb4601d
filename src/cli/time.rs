//! Times of day and dates, as typed and as shown.

use jiff::{
    Timestamp, ToSpan, Zoned,
    civil::{DateTime, Time},
    tz::TimeZone,
};

/// Reads an instant: `2026-12-24T18:00:00Z`, with any offset or zone, without
/// one in local time, or only a time of day, which is its next occurrence.
pub(crate) fn instant(text: &str) -> Result<Timestamp, String> {
    at(text, &Zoned::now())
}

fn at(text: &str, now: &Zoned) -> Result<Timestamp, String> {
    let text = text.trim();
    if let Ok(instant) = text.parse::<Timestamp>() {
        return Ok(instant);
    }
    if let Ok(zoned) = text.parse::<Zoned>() {
        return Ok(zoned.timestamp());
    }
    let local = |datetime: DateTime, zone: &TimeZone| {
        zone.to_timestamp(datetime).map_err(|error| format!("`{text}` is out of range: {error}"))
    };
    // A bare time of day has no `-` of a date.
    if !text.contains('-')
        && let Ok(time) = text.parse::<Time>()
    {
        let today = local(now.date().to_datetime(time), now.time_zone())?;
        if today > now.timestamp() {
            return Ok(today);
        }
        let tomorrow = now.date().saturating_add(1.day());
        return local(tomorrow.to_datetime(time), now.time_zone());
    }
    text.parse::<DateTime>()
        .map_err(|_| {
            format!(
                "`{text}` is not a time; write `2026-12-24T18:00:00Z`, `2026-12-24 18:00` (local) or `18:00`"
            )
        })
        .and_then(|datetime| local(datetime, now.time_zone()))
}

/// A time of day in local time, with milliseconds.
pub(super) fn clock(instant: Timestamp) -> String {
    instant.to_zoned(TimeZone::system()).strftime("%H:%M:%S%.3f").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        let now: Zoned = "2026-11-20T12:00:00+01:00[Europe/Berlin]".parse().unwrap();
        for (text, expected) in [
            ("2026-12-24T18:00:00Z", "2026-12-24T18:00:00Z"),
            ("2026-12-24T18:00:00+02:00", "2026-12-24T16:00:00Z"),
            ("2026-12-24T18:00[America/New_York]", "2026-12-24T23:00:00Z"),
            ("2026-12-24 18:00", "2026-12-24T17:00:00Z"),
            ("2026-12-24T18:00:00.5", "2026-12-24T17:00:00.5Z"),
            ("18:30", "2026-11-20T17:30:00Z"),
            ("12:00", "2026-11-21T11:00:00Z"),
            ("06:00:30", "2026-11-21T05:00:30Z"),
        ] {
            assert_eq!(at(text, &now).map(|instant| instant.to_string()), Ok(expected.into()), "{text}");
        }
        for text in ["", "soon", "25:00", "2026-13-01 10:00", "90s"] {
            assert!(at(text, &now).is_err(), "{text} gave {:?}", at(text, &now));
        }
    }
}
