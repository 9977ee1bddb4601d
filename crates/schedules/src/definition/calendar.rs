//! Cron expressions in a time zone. Pure.
//!
//! An expression names local times. Each local time is one instant: a time that the clocks skip is the end
//! of the gap, and a time that they show twice is the first of its two instants. So a daily job runs once
//! a day, whatever the clocks do.

use cronexpr::{Crontab, FallbackTimezoneOption, MakeTimestamp, ParseOptions, parse_crontab_with};
use jiff::{
    Timestamp,
    civil::DateTime,
    tz::{AmbiguousOffset, TimeZone},
};

/// The names of the five fields, in their order.
const FIELDS: [&str; 5] = ["minute", "hour", "day of month", "month", "day of week"];

/// Names for common expressions.
const NICKNAMES: [(&str, &str); 4] =
    [("@hourly", "0 * * * *"), ("@daily", "0 0 * * *"), ("@weekly", "0 0 * * 0"), ("@monthly", "0 0 1 * *")];

/// Local times of a zone.
#[derive(Debug, Clone)]
pub(crate) struct Calendar {
    crontab: Crontab,
    zone: TimeZone,
}

/// Why a cron expression or a time zone cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CalendarError {
    /// It has not five fields.
    #[error(
        "cron expression `{cron}`: it has {fields} fields instead of five (minute, hour, day of month, month, \
         day of week). For seconds, use `every`; a time zone goes into `zone`"
    )]
    Fields {
        /// The expression.
        cron: String,
        /// How many it has.
        fields: usize,
    },
    /// It begins with `@`.
    #[error("cron expression `{cron}`: the known names are @hourly, @daily, @weekly and @monthly")]
    Nickname {
        /// The expression.
        cron: String,
    },
    /// A field is wrong.
    #[error("cron expression `{cron}`: {field} `{text}`: {reason}")]
    Field {
        /// The expression.
        cron: String,
        /// The name of the field.
        field: &'static str,
        /// Its text.
        text: String,
        /// The fault.
        reason: String,
    },
    /// No such time zone.
    #[error("`{zone}` is not a time zone; write its IANA name, such as Europe/Berlin")]
    Zone {
        /// The given name.
        zone: String,
    },
    /// No time matches.
    #[error("cron expression `{cron}`: no date matches it")]
    Never {
        /// The expression.
        cron: String,
    },
}

impl Calendar {
    pub(crate) fn new(cron: &str, zone: &str) -> Result<Self, CalendarError> {
        let zone = TimeZone::get(zone).map_err(|_| CalendarError::Zone { zone: zone.into() })?;
        let written = cron.trim();
        let nickname = NICKNAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(written));
        let (cron, text) = (cron.to_owned(), nickname.map_or(written, |(_, meaning)| meaning));
        if text.starts_with('@') {
            return Err(CalendarError::Nickname { cron });
        }
        let fields: Vec<_> = text.split_whitespace().collect();
        if fields.len() != FIELDS.len() {
            return Err(CalendarError::Fields { cron, fields: fields.len() });
        }
        let mut options = ParseOptions::default();
        options.fallback_timezone_option = FallbackTimezoneOption::UTC;
        let text = fields.join(" ");
        let crontab = parse_crontab_with(&text, options).map_err(|error| {
            // Its last line is the reason, below the place of the fault.
            let shown = error.to_string();
            let (place, reason) =
                shown.lines().last().and_then(|line| line.split_once("^ ")).unwrap_or_default();
            let field = text.bytes().take(place.len()).filter(|byte| *byte == b' ').count();
            let field = field.min(FIELDS.len() - 1);
            let (name, text) = (FIELDS[field], fields[field].to_owned());
            CalendarError::Field { cron: cron.clone(), field: name, text, reason: reason.to_owned() }
        })?;
        let calendar = Self { crontab, zone };
        match calendar.next(Timestamp::now()) {
            Some(_) => Ok(calendar),
            None => Err(CalendarError::Never { cron }),
        }
    }

    pub(crate) fn zone(&self) -> &TimeZone {
        &self.zone
    }

    /// The first occurrence after an instant. An expression that matches nothing for four years has none.
    pub(crate) fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let mut local = self.zone.to_datetime(after);
        loop {
            // The library counts in UTC, where local times neither repeat nor are missing.
            let from = TimeZone::UTC.to_timestamp(local).ok()?;
            local = self.crontab.find_next(MakeTimestamp(from)).ok()?.datetime();
            let instant = instant(&self.zone, local)?;
            // Local times that repeat were over before.
            if instant > after {
                return Some(instant);
            }
        }
    }
}

/// The instant of a local time.
fn instant(zone: &TimeZone, local: DateTime) -> Option<Timestamp> {
    match zone.to_ambiguous_timestamp(local).offset() {
        AmbiguousOffset::Unambiguous { offset } | AmbiguousOffset::Fold { before: offset, .. } => {
            offset.to_timestamp(local).ok()
        }
        AmbiguousOffset::Gap { after, .. } => {
            let before_the_gap = after.to_timestamp(local).ok()?;
            zone.following(before_the_gap).next().map(|transition| transition.timestamp())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::{SignedDuration, ToSpan};
    use proptest::prelude::*;

    use super::*;

    fn occurrences(cron: &str, zone: &str, after: &str, number: usize) -> Vec<String> {
        let calendar = Calendar::new(cron, zone).unwrap();
        let mut at: Timestamp = after.parse().unwrap();
        let mut next = || {
            at = calendar.next(at)?;
            Some(at.to_zoned(calendar.zone.clone()).strftime("%m-%d %H:%M%:z").to_string())
        };
        (0..number).map_while(|_| next()).collect()
    }

    #[test]
    fn a_time_that_the_clocks_skip_is_right_after_the_gap() {
        // In Berlin, 2026-03-29 has no time from 02:00 to 03:00.
        let found = occurrences("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00Z", 3);
        assert_eq!(found, ["03-28 02:30+01:00", "03-29 03:00+02:00", "03-30 02:30+02:00"]);
        // Several skipped times are one occurrence.
        let found = occurrences("*/20 2,3 * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", 3);
        assert_eq!(found, ["03-29 03:00+02:00", "03-29 03:20+02:00", "03-29 03:40+02:00"]);
    }

    #[test]
    fn a_time_that_the_clocks_show_twice_is_the_first_of_the_two() {
        let found = occurrences("30 2 * * *", "Europe/Berlin", "2026-10-24T22:00:00Z", 2);
        assert_eq!(found, ["10-25 02:30+02:00", "10-26 02:30+01:00"]);
        // Asked between the two.
        let found = occurrences("30 2 * * *", "Europe/Berlin", "2026-10-25T01:00:00Z", 1);
        assert_eq!(found, ["10-26 02:30+01:00"]);
    }

    #[test]
    fn two_fields_for_days_are_as_in_vixie_cron() {
        let days = |cron| occurrences(cron, "UTC", "2026-12-01T00:00:00Z", 4);
        // Either, unless a field begins with an asterisk. 2026-12-04 is a Friday.
        assert_eq!(
            days("0 0 13 * FRI"),
            ["12-04 00:00+00:00", "12-11 00:00+00:00", "12-13 00:00+00:00", "12-18 00:00+00:00"]
        );
        assert_eq!(days("0 0 */2 * FRI")[..2], ["12-11 00:00+00:00", "12-25 00:00+00:00"]);
    }

    #[test]
    fn nicknames_are_expressions() {
        let first = |cron| occurrences(cron, "UTC", "2026-12-02T00:30:00Z", 1).remove(0);
        assert_eq!(first("@hourly"), "12-02 01:00+00:00");
        assert_eq!(first("@Daily"), "12-03 00:00+00:00");
        assert_eq!(first("@weekly"), "12-06 00:00+00:00");
        assert_eq!(first("@monthly"), "01-01 00:00+00:00");
    }

    #[test]
    fn an_error_names_the_field() {
        let error = |cron, zone| Calendar::new(cron, zone).unwrap_err().to_string();
        for (cron, part) in [
            ("61 8 * * *", "minute `61`: "),
            ("0 24 * * *", "hour `24`: "),
            ("0 8 32 * *", "day of month `32`: "),
            ("0 8 * 13 *", "month `13`: "),
            ("0 8 * * MON-FOO", "day of week `MON-FOO`: "),
            ("0 5-3 * * *", "hour `5-3`: range must be in ascending order"),
            ("0  8 * *", "it has 4 fields instead of five"),
            ("0 0 8 * * *", "it has 6 fields instead of five"),
            ("0 8 * * * Europe/Berlin", "a time zone goes into `zone`"),
            ("@reboot", "the known names are"),
            ("0 0 30 2 *", "no date matches"),
            ("", "it has 0 fields"),
        ] {
            let found = error(cron, "UTC");
            assert!(found.contains(part) && found.contains(&format!("`{cron}`")), "{found}");
        }
        assert!(error("0 8 * * *", "Europe/Berlni").contains("is not a time zone"));
    }

    const ZONES: [&str; 10] = [
        "Europe/Berlin",
        "America/New_York",
        "America/Sao_Paulo",
        "Australia/Lord_Howe", // by half an hour
        "Africa/Casablanca",   // several times a year, around Ramadan
        "Asia/Tehran",
        "Pacific/Apia", // skipped a day in 2011
        "Europe/Dublin",
        "America/St_Johns", // changed at 00:01
        "Asia/Kolkata",
    ];

    /// The first instant of each local minute around an instant. A skipped minute has the end of the gap.
    fn minutes_around(zone: &TimeZone, change: Timestamp) -> BTreeMap<DateTime, Timestamp> {
        let mut first = BTreeMap::new();
        let (mut at, end) = (change - 26.hours(), change + 26.hours());
        let mut before: Option<DateTime> = None;
        while at < end {
            let local = zone.to_datetime(at);
            if let Some(mut skipped) = before.map(|before| before + 1.minute()) {
                while skipped < local {
                    first.entry(skipped).or_insert(at);
                    skipped += 1.minute();
                }
            }
            first.entry(local).or_insert(at);
            before = before.max(Some(local));
            at += 1.minute();
        }
        first
    }

    /// All changes of the clocks of a zone in 20 years. A zone without any is tested at other times.
    fn changes(zone: &TimeZone) -> Vec<Timestamp> {
        let (from, to): (Timestamp, Timestamp) =
            ("2007-01-01T00:00:00Z".parse().unwrap(), "2027-01-01T00:00:00Z".parse().unwrap());
        let all = zone.following(from).map(|it| it.timestamp()).take_while(|it| *it < to);
        let all: Vec<_> = all.collect();
        let quarters = (0..80).map(|it| from + SignedDuration::from_hours(24 * 90 * it));
        if all.is_empty() { quarters.collect() } else { all }
    }

    /// The instants of an expression around a change of the clocks, and those that counting every minute finds.
    fn both(zone: &TimeZone, change: Timestamp, cron: &str) -> [Vec<Timestamp>; 2] {
        let crontab = parse_crontab_with(&format!("{cron} UTC"), ParseOptions::default()).unwrap();
        let minutes = minutes_around(zone, change);
        let matches = |local: &DateTime| {
            crontab.matches(MakeTimestamp(TimeZone::UTC.to_timestamp(*local).unwrap())).unwrap()
        };
        let (begin, end) = (change - 25.hours(), change + 25.hours());
        let mut wanted: Vec<_> =
            minutes.iter().filter(|(local, _)| matches(local)).map(|(_, at)| *at).collect();
        wanted.retain(|at| *at > begin && *at < end);
        wanted.sort();
        wanted.dedup();
        let calendar = Calendar { crontab, zone: zone.clone() };
        let mut found = Vec::new();
        let mut at = begin;
        while let Some(next) = calendar.next(at).filter(|next| *next < end) {
            found.push(next);
            at = next;
        }
        [found, wanted]
    }

    #[test]
    fn every_change_of_the_clocks_in_20_years_is_met() {
        let mut met = 0;
        for name in ZONES {
            let zone = TimeZone::get(name).unwrap();
            for change in changes(&zone) {
                for cron in ["30 2 * * *", "*/20 0-4 * * *", "0 0 * * *"] {
                    let [found, wanted] = both(&zone, change, cron);
                    assert_eq!(found, wanted, "{cron} {name} {change}");
                    met += 1;
                }
            }
        }
        assert!(met > 3 * 250, "{met}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn occurs_when_counting_minutes_finds_it(
            zone in 0..ZONES.len(),
            change in 0_usize..80,
            minute in prop_oneof![Just("*".to_owned()), Just("*/7".to_owned()), (0..60_u8).prop_map(|it| it.to_string())],
            hour in prop_oneof![Just("*".to_owned()), Just("0-4".to_owned()), (0..24_u8).prop_map(|it| it.to_string())],
        ) {
            let zone = TimeZone::get(ZONES[zone]).unwrap();
            let changes = changes(&zone);
            let change = changes[change % changes.len()];
            let cron = format!("{minute} {hour} * * *");
            let [found, wanted] = both(&zone, change, &cron);
            prop_assert_eq!(found, wanted, "{} {:?} {}", cron, zone, change);
        }
    }
}
