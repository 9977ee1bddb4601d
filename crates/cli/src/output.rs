//! Standard output: for people, or as JSON for scripts.

use std::{
    fmt,
    io::{self, IsTerminal, Write},
    time::Duration,
};

use anstream::AutoStream;
use indicatif::{ProgressBar, ProgressStyle};
use owo_colors::OwoColorize;
use serde::Serialize;

pub(super) use delayline_admin::{counted, grouped};
use delayline_core::topology::SetName;

use crate::{Failure, args::Shape};

/// The version of everything that is printed as JSON; docs/json.md says when it changes.
pub(super) const SCHEMA_VERSION: u32 = 1;

/// Where results go. Colours are left out in pipes and with `NO_COLOR`.
pub(super) struct Output {
    stream: AutoStream<io::Stdout>,
    pub(super) json: bool,
    /// The schema of what this command prints as JSON: its name with dashes, `app-list`.
    schema: String,
    /// What stands above the next thing that is printed, on a screen of its own.
    head: Option<String>,
    /// Whether every column of a table is wanted.
    pub(super) wide: bool,
    /// Whether every detail is wanted.
    pub(super) verbose: bool,
}

/// A value with the name of its schema.
#[derive(Serialize)]
pub(super) struct Marked<'a, T> {
    schema: &'a str,
    schema_version: u32,
    #[serde(flatten)]
    value: &'a T,
}

impl<'a, T> Marked<'a, T> {
    pub(super) fn new(schema: &'a str, value: &'a T) -> Self {
        Self { schema, schema_version: SCHEMA_VERSION, value }
    }
}

impl Output {
    /// For the command of these words.
    pub(super) fn new(shape: Shape, command: &[&str]) -> Self {
        let (json, wide) = (shape == Shape::Json, shape == Shape::Wide);
        Self { stream: anstream::stdout(), json, wide, schema: command.join("-"), head: None, verbose: false }
    }

    /// Prints one line for people.
    pub(super) fn line(&mut self, line: impl fmt::Display) -> io::Result<()> {
        if let Some(head) = self.head.take() {
            if self.is_terminal() {
                // Not through the stream, which leaves this out with NO_COLOR.
                io::stdout().write_all(b"\x1b[H\x1b[2J\x1b[3J")?;
            }
            writeln!(self.stream, "{head}")?;
        }
        writeln!(self.stream, "{line}")?;
        self.stream.flush()
    }

    /// Says why nothing was done: as a line, or as JSON.
    pub(super) fn problem(&mut self, reason: &str) -> io::Result<()> {
        match self.json {
            true => self.json(&serde_json::json!({ "problem": reason })),
            false => self.line(reason),
        }
    }

    /// Prints one JSON object on a line of its own, with the name of its schema. Each command
    /// has a schema in docs/schemas; a test compares all that is printed with it.
    pub(super) fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        // By way of a value, in which each name stands once: parts that are flattened into one
        // object may share some.
        let line = serde_json::to_value(Marked::new(&self.schema, value)).map_err(io::Error::other)?;
        writeln!(self.stream, "{line}")?;
        self.stream.flush()
    }

    /// Begins a new screen with the next line, if this is a terminal, and puts a line above it:
    /// until there is something new to see, the old one stays.
    pub(super) fn next_screen(&mut self, head: impl fmt::Display) {
        self.head = Some(head.to_string());
    }

    /// Whether standard output is a terminal.
    pub(super) fn is_terminal(&self) -> bool {
        io::stdout().is_terminal()
    }

    /// A progress bar on standard error, hidden unless that is a terminal;
    /// without a length, a counter.
    pub(super) fn progress(&self, length: Option<u64>, what: &'static str) -> ProgressBar {
        let bar = match length {
            Some(length) => ProgressBar::new(length)
                .with_style(style("{msg} {wide_bar} {human_pos}/{human_len} {per_sec} {eta}")),
            None => ProgressBar::new_spinner().with_style(style("{spinner} {msg} {human_pos} {per_sec}")),
        };
        bar.enable_steady_tick(Duration::from_millis(100));
        bar.with_message(what)
    }

    /// Does something with a progress bar whose length is not known before, and takes the bar
    /// away afterwards.
    pub(super) fn following<T>(&self, what: &'static str, work: impl FnOnce(&ProgressBar) -> T) -> T {
        let bar = self.progress(Some(0), what);
        let result = work(&bar);
        bar.finish_and_clear();
        result
    }

    /// Does something that takes nobody knows how long, with a sign of life on standard error
    /// if that is a terminal.
    pub(super) fn spinning<T>(&self, what: &'static str, work: impl FnOnce() -> T) -> T {
        let bar = ProgressBar::new_spinner().with_style(style("{spinner} {msg}")).with_message(what);
        bar.enable_steady_tick(Duration::from_millis(100));
        let result = work();
        bar.finish_and_clear();
        result
    }

    /// Prints a report, as JSON or as `show` does it.
    pub(super) fn report<T: Serialize>(
        &mut self,
        report: &T,
        show: impl FnOnce(&T, &mut Self) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if self.json { Ok(self.json(report)?) } else { show(report, self) }
    }
}

/// Says how far something is, of as much as is known by now.
pub(super) fn at(bar: &ProgressBar, done: u64, all: u64) {
    bar.set_length(all.max(done));
    bar.set_position(done);
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Prints a line on standard error, beside the results. A failure is ignored: the terminal
/// may be gone.
pub(super) fn aside(line: impl fmt::Display) {
    let _ = writeln!(anstream::stderr(), "{line}");
}

/// What a command says that looks at a set that is not there.
pub(super) fn not_installed(set: &SetName) -> String {
    format!("set `{set}` is not installed here; run `{}`", set.command("install"))
}

/// What stands first where a command had nothing to do.
pub(super) fn unchanged() -> String {
    "unchanged".green().bold().to_string()
}

/// What stands first where a command only says what it would do.
pub(super) fn dry_run() -> String {
    "dry run".yellow().bold().to_string()
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
