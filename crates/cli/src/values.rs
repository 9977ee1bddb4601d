//! Parsers of the values of arguments.

use std::{
    fmt::Display,
    ops::{Bound, RangeBounds},
    str::FromStr,
};

use delayline_admin::ByteSize;
use delayline_core::{
    codec::{AppKey, Delay, MessageId, Tolerance},
    message::{Handle, HandleError},
    topology::Rejected,
};

/// Reads an app key.
pub(crate) fn app(text: &str) -> Result<AppKey, String> {
    parsed(text)
}

/// Reads a delay.
///
/// # Errors
/// Not a delay, or not one from 0 s to the longest.
pub fn delay(text: &str) -> Result<Delay, String> {
    parsed(text)
}

/// Reads the pause between two looks, from 1 s to a day.
pub(crate) fn pause(text: &str) -> Result<Delay, String> {
    let pause = delay(text)?;
    match pause.seconds() {
        1..=86_400 => Ok(pause),
        _ => Err("use a duration from 1s to 1d".into()),
    }
}

/// Reads how long to wait, up to an hour.
pub(crate) fn wait(text: &str) -> Result<Delay, String> {
    let wait = delay(text)?;
    match wait.seconds() {
        0..=3_600 => Ok(wait),
        _ => Err("use a duration from 0s to 1h".into()),
    }
}

/// Reads who retries rejected messages.
pub(crate) fn retry(text: &str) -> Result<Rejected, String> {
    match text {
        "service" => Ok(Rejected::Retried),
        "none" => Ok(Rejected::Parked),
        _ => Err("leave the value out, or use `none`".into()),
    }
}

/// Reads an id.
pub(crate) fn id(text: &str) -> Result<MessageId, String> {
    parsed(text)
}

/// Reads a handle.
pub(crate) fn handle(text: &str) -> Result<Handle, String> {
    match text.parse() {
        Err(HandleError::RoutingKey(_)) if !text.contains(".~.") => Err(format!(
            "`{}` is not a handle. A handle is the whole routing key that the message was published with, its id \
             included; `delayline scheduled list --app APP --id ID` finds it in a journal",
            text.escape_debug()
        )),
        handle => handle.map_err(|error| error.to_string()),
    }
}

/// Reads a number of bytes.
pub(crate) fn bytes(text: &str) -> Result<ByteSize, String> {
    parsed(text)
}

/// Reads a tolerance.
///
/// # Errors
/// Neither a percentage nor a delay.
pub fn tolerance(text: &str) -> Result<Tolerance, String> {
    parsed(text)
}

/// Parses a type whose own error explains a bad text.
pub(crate) fn parsed<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}

/// Reads a whole number within a range.
pub fn whole<T: TryFrom<u64>>(
    range: impl RangeBounds<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    let (from, to) = (range.start_bound().cloned(), range.end_bound().cloned());
    move |text| {
        let number = text.parse().ok().filter(|number| (from, to).contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| {
            let from = match from {
                Bound::Included(from) | Bound::Excluded(from) => from,
                Bound::Unbounded => 0,
            };
            match to {
                Bound::Included(to) | Bound::Excluded(to) => {
                    format!("use a whole number from {from} to {to}")
                }
                Bound::Unbounded => {
                    // The digits that fit the type.
                    let digits = text.trim_start_matches('+');
                    let large = !digits.is_empty()
                        && digits.bytes().all(|byte| byte.is_ascii_digit())
                        && digits.parse::<u64>().map_or(true, |number| number >= from);
                    format!("use a {}whole number, {from} or more", if large { "smaller " } else { "" })
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_say_what_they_may_be() {
        let rounds = whole::<u16>(1..);
        assert_eq!((rounds("1"), rounds("65535")), (Ok(1), Ok(65_535)));
        for (text, word) in [
            ("-3", "1 or more"),
            ("0", "a whole number, 1 or more"),
            ("x", "1 or more"),
            ("65536", "smaller"),
            ("", "1 or more"),
        ] {
            assert!(rounds(text).unwrap_err().contains(word), "{text}: {:?}", rounds(text));
        }
        let level = whole::<u8>(0..=9);
        assert_eq!((level("0"), level("9")), (Ok(0), Ok(9)));
        assert_eq!(level("10").unwrap_err(), "use a whole number from 0 to 9");
    }
}
