//! Lengths of time as people write them, in nanoseconds. A library reads them too, but
//! neither `8.5y` nor `1.5d`, and its error messages are its own.

const SECOND: u128 = 1_000_000_000;
const DAY: u128 = 86_400 * SECOND;

/// A unit, and its names.
struct Unit {
    nanoseconds: u128,
    names: &'static [&'static str],
    /// Its letter in ISO 8601: up to days before the `T`, from hours on behind it.
    letter: Option<char>,
}

const fn unit(nanoseconds: u128, letter: Option<char>, names: &'static [&'static str]) -> Unit {
    Unit { nanoseconds, names, letter }
}

/// From large to small, which is also the order in which they are written. A year has 365.25
/// days, the mean of four years.
const UNITS: [Unit; 9] = [
    unit(1_461 * DAY / 4, Some('Y'), &["y", "yr", "yrs", "year", "years"]),
    unit(7 * DAY, Some('W'), &["w", "wk", "wks", "week", "weeks"]),
    unit(DAY, Some('D'), &["d", "day", "days"]),
    unit(3_600 * SECOND, Some('H'), &["h", "hr", "hrs", "hour", "hours"]),
    unit(60 * SECOND, Some('M'), &["m", "min", "mins", "minute", "minutes"]),
    unit(SECOND, Some('S'), &["s", "sec", "secs", "second", "seconds"]),
    unit(SECOND / 1_000, None, &["ms", "millisecond", "milliseconds"]),
    unit(SECOND / 1_000_000, None, &["us", "µs", "μs", "microsecond", "microseconds"]),
    unit(1, None, &["ns", "nanosecond", "nanoseconds"]),
];

/// The first unit that ISO 8601 writes behind the `T`.
const HOUR: usize = 3;

/// The names of months, which have no fixed length.
const MONTHS: [&str; 4] = ["mo", "mos", "month", "months"];

/// Why a text is not a length of time.
pub(super) enum Wrong {
    /// It counts months.
    Months,
    /// Anything else, in words.
    Unreadable(String),
}

fn wrong<T>(reason: impl Into<String>) -> Result<T, Wrong> {
    Err(Wrong::Unreadable(reason.into()))
}

/// Reads `90` (seconds), `1h30m`, `1.5 days`, `PT90S`, without a sign. Parts of a nanosecond
/// round up, and a number too large for the type becomes its maximum.
pub(super) fn nanoseconds(text: &str) -> Result<u128, Wrong> {
    if text.is_empty() {
        return wrong("it is empty");
    }
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return number(text, SECOND);
    }
    let mut last = None;
    let Some(iso) = text.strip_prefix(['P', 'p']) else {
        return sum(text, &mut last, |name| {
            if MONTHS.contains(&name) {
                return Err(Wrong::Months);
            }
            let known = |name: &str| UNITS.iter().position(|unit| unit.names.contains(&name));
            known(name).ok_or_else(|| {
                Wrong::Unreadable(match known(&name.to_lowercase()) {
                    // `M` elsewhere means months.
                    Some(_) => format!("units are lower-case letters, so not `{name}`"),
                    None => format!("`{name}` is not a unit"),
                })
            })
        });
    };
    let (date, time) = match iso.split_once(['T', 't']) {
        Some((_, "")) => return wrong("nothing follows the `T`"),
        Some((date, time)) => (date, time),
        None if iso.is_empty() => return wrong("nothing follows the `P`"),
        None => (iso, ""),
    };
    let letter = |name: &str, from: usize, to: usize| {
        let found = (from..to).find(|&at| {
            UNITS[at].letter.is_some_and(|letter| name.eq_ignore_ascii_case(letter.encode_utf8(&mut [0; 4])))
        });
        found.ok_or_else(|| Wrong::Unreadable(format!("`{name}` is not a unit of ISO 8601 there")))
    };
    let date = sum(date, &mut last, |name| match name {
        "M" | "m" => Err(Wrong::Months),
        _ => letter(name, 0, HOUR),
    })?;
    let time = sum(time, &mut last, |name| letter(name, HOUR, UNITS.len()))?;
    Ok(date.saturating_add(time))
}

/// Adds up numbers with units, from the largest to the smallest.
fn sum(
    text: &str,
    last: &mut Option<usize>,
    unit: impl Fn(&str) -> Result<usize, Wrong>,
) -> Result<u128, Wrong> {
    let (mut rest, mut total) = (text, 0_u128);
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
        total = total.saturating_add(number(digits, UNITS[index].nanoseconds)?);
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
fn number(digits: &str, unit: u128) -> Result<u128, Wrong> {
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
