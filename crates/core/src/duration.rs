//! Lengths of time as people write them: `90s`, `1h30m`. jiff can also read them, but neither
//! `8.5y` nor `1.5d`, and its error messages differ.

use std::time::Duration;

const SECOND: u128 = 1_000_000_000;
const DAY: u128 = 86_400 * SECOND;

/// From large to small, which is also the order in which they are written. A year has 365.25 days,
/// the mean of four years.
const UNITS: [(u128, &[&str]); 9] = [
    (1_461 * DAY / 4, &["y", "yr", "yrs", "year", "years"]),
    (7 * DAY, &["w", "wk", "wks", "week", "weeks"]),
    (DAY, &["d", "day", "days"]),
    (3_600 * SECOND, &["h", "hr", "hrs", "hour", "hours"]),
    (60 * SECOND, &["m", "min", "mins", "minute", "minutes"]),
    (SECOND, &["s", "sec", "secs", "second", "seconds"]),
    (SECOND / 1_000, &["ms", "millisecond", "milliseconds"]),
    (SECOND / 1_000_000, &["us", "µs", "μs", "microsecond", "microseconds"]),
    (1, &["ns", "nanosecond", "nanoseconds"]),
];

/// The names of months, which have no fixed length.
const MONTHS: [&str; 4] = ["mo", "mos", "month", "months"];

/// Why a text is not a length of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DurationError {
    /// It counts months.
    Months,
    /// Any other fault, in words.
    Unreadable(String),
}

fn wrong<T>(reason: impl Into<String>) -> Result<T, DurationError> {
    Err(DurationError::Unreadable(reason.into()))
}

/// Reads `90` (seconds), `1h30m` or `1.5 days`, without a sign. Fractions of a nanosecond round up.
/// A number too large for the type becomes its maximum.
///
/// # Errors
/// The fault in the text.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    if text.is_empty() {
        return wrong("it is empty");
    }
    let nanoseconds = match text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        true => number(text, SECOND)?,
        false => sum(text)?,
    };
    let fraction = u32::try_from(nanoseconds % SECOND).unwrap_or(0);
    Ok(u64::try_from(nanoseconds / SECOND).map_or(Duration::MAX, |seconds| Duration::new(seconds, fraction)))
}

/// The index of a unit, by its name.
fn unit(name: &str) -> Result<usize, DurationError> {
    if MONTHS.contains(&name) {
        return Err(DurationError::Months);
    }
    let known = |name: &str| UNITS.iter().position(|(_, names)| names.contains(&name));
    known(name).ok_or_else(|| {
        DurationError::Unreadable(match known(&name.to_lowercase()) {
            // `M` means months in other formats.
            Some(_) => format!("units are lower-case letters, so not `{name}`"),
            None => format!("`{name}` is not a unit"),
        })
    })
}

/// Adds up numbers with units, from the largest to the smallest.
fn sum(text: &str) -> Result<u128, DurationError> {
    let (mut rest, mut total, mut last) = (text, 0_u128, None);
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (digits, behind) = rest.split_at(end);
        if digits.is_empty() {
            return wrong(format!("there should be a number before `{rest}`"));
        }
        if behind.starts_with(',') {
            return wrong("fractions are written with a point: `1.5h`");
        }
        let behind = behind.trim_start();
        let end = behind.find(|c: char| !c.is_alphabetic()).unwrap_or(behind.len());
        let (name, behind) = behind.split_at(end);
        if name.is_empty() {
            return wrong(format!("`{digits}` has no unit"));
        }
        let index = unit(name)?;
        if last.replace(index).is_some_and(|last| last >= index) {
            return wrong("units go from large to small, each once");
        }
        total = total.saturating_add(number(digits, UNITS[index].0)?);
        rest = behind.trim_start();
        if let Some(more) = rest.strip_prefix(',') {
            rest = more.trim_start();
            if rest.is_empty() {
                return wrong("nothing follows the comma");
            }
        }
    }
    Ok(total)
}

/// This many units, in nanoseconds.
fn number(digits: &str, unit: u128) -> Result<u128, DurationError> {
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    if whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
        return wrong(format!("`{digits}` is not a number"));
    }
    // Only digits are left, so a number that cannot be parsed is too large.
    let whole = whole.parse::<u128>().unwrap_or(u128::MAX).saturating_mul(unit);
    // A year has 3.2e16 ns, so 18 decimal places are exact enough.
    let (near, far) = fraction.split_at(fraction.len().min(18));
    let scale = 10_u128.pow(u32::try_from(near.len()).unwrap_or(0));
    let near = near.parse::<u128>().unwrap_or(0) * unit;
    let far = u128::from(far.bytes().any(|digit| digit != b'0'));
    Ok(whole.saturating_add((near + far).div_ceil(scale)))
}
