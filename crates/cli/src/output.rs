//! Standard output: for people, or as JSON for scripts.

use std::{
    fmt,
    io::{self, IsTerminal, Write},
    time::Duration,
};

use anstream::AutoStream;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// Where results go. Colours are left out in pipes and with `NO_COLOR`.
pub(super) struct Output {
    stream: AutoStream<io::Stdout>,
    pub(super) json: bool,
    /// Whether every detail is wanted.
    pub(super) verbose: bool,
}

impl Output {
    pub(super) fn new(json: bool) -> Self {
        Self { stream: anstream::stdout(), json, verbose: false }
    }

    /// Prints one line for people.
    pub(super) fn line(&mut self, line: impl fmt::Display) -> io::Result<()> {
        writeln!(self.stream, "{line}")?;
        self.stream.flush()
    }

    /// Prints one JSON value on a line of its own.
    pub(super) fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        let line = serde_json::to_string(value).map_err(io::Error::other)?;
        writeln!(self.stream, "{line}")?;
        self.stream.flush()
    }

    /// Whether standard output is a terminal.
    pub(super) fn is_terminal(&self) -> bool {
        io::stdout().is_terminal()
    }

    /// A progress bar on standard error, hidden unless that is a terminal;
    /// without a length, a counter.
    pub(super) fn progress(&self, length: Option<u64>, what: &'static str) -> ProgressBar {
        let bar = match length {
            Some(length) => {
                ProgressBar::new(length).with_style(style("{msg} {wide_bar} {pos}/{len} {per_sec} {eta}"))
            }
            None => ProgressBar::new_spinner().with_style(style("{spinner} {msg} {pos} {per_sec}")),
        };
        bar.enable_steady_tick(Duration::from_millis(100));
        bar.with_message(what)
    }

    /// A sign of life on standard error for work whose length is unknown; hidden unless that
    /// is a terminal.
    pub(super) fn spinner(&self, what: &'static str) -> ProgressBar {
        let bar = ProgressBar::new_spinner().with_style(style("{spinner} {msg}")).with_message(what);
        bar.enable_steady_tick(Duration::from_millis(100));
        bar
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Prints a line on standard error, beside the results. A failure is ignored: the terminal
/// may be gone.
pub(super) fn aside(line: impl fmt::Display) {
    let _ = writeln!(anstream::stderr(), "{line}");
}

/// One line, without anything that could control the terminal: anybody can choose names and
/// keys.
pub(super) fn printable(text: &str) -> String {
    let shown = |character: char| match character {
        '\'' | '"' | '\\' => character.to_string(),
        other => other.escape_debug().to_string(),
    };
    text.chars().map(shown).collect()
}

/// A number with separated thousands: `12,345`.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 message`, `2 messages`.
pub(super) fn counted(number: u64, one: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{} {one}{s}", grouped(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separates_thousands() {
        let texts: Vec<_> = [0, 999, 1_000, 1_234_567].map(grouped).into();
        assert_eq!(texts, ["0", "999", "1,000", "1,234,567"]);
    }
}
