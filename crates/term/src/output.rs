//! Standard output: for people, or as JSON for scripts.

use std::{
    fmt,
    io::{self, IsTerminal, Write},
    time::Duration,
};

use anstream::AutoStream;
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use owo_colors::OwoColorize;
use rustix::io::Errno;
use serde::Serialize;

pub use delayline_admin::{counted, grouped};
pub use delayline_admin::{counted_if_known, known};
use delayline_settings::Settings;

use crate::{ending::nobody_reads, text::terminal};

/// The version of everything that is printed as JSON; see docs/reference/json.md for when it changes.
pub const SCHEMA_VERSION: u32 = 1;

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shape {
    /// For people
    Table,
    /// For scripts
    Json,
    /// For people, with every column
    Wide,
}

/// Where results go. Colours are left out in pipes and with `NO_COLOR`.
#[derive(Debug)]
pub struct Output {
    stream: AutoStream<io::Stdout>,
    /// Whether results are JSON.
    pub json: bool,
    /// The schema of what this command prints as JSON: its name with dashes, `app-list`.
    schema: String,
    /// The line above the next output, on a screen of its own.
    head: Option<String>,
    /// Whether every column of a table is wanted.
    pub wide: bool,
    /// Whether every detail is wanted.
    pub details: bool,
    /// Whether the reader of the output has ended, as with `| head`, or the terminal was closed. The
    /// command then goes on, and ends with its usual code.
    unread: bool,
}

/// A value with the name of its schema.
#[derive(Debug, Serialize)]
pub struct Marked<'a, T> {
    schema: &'a str,
    schema_version: u32,
    #[serde(flatten)]
    value: &'a T,
}

/// Why a command did nothing.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct Problem<'a> {
    /// The reason why nothing was changed.
    problem: &'a str,
}

impl<'a, T> Marked<'a, T> {
    /// With the version of all schemas.
    pub fn new(schema: &'a str, value: &'a T) -> Self {
        Self { schema, schema_version: SCHEMA_VERSION, value }
    }
}

impl Output {
    /// For the command of these words.
    pub fn new(shape: Shape, details: bool, command: &[&str]) -> Self {
        Self {
            stream: anstream::stdout(),
            json: shape == Shape::Json,
            wide: shape == Shape::Wide,
            schema: command.join("-"),
            head: None,
            details,
            unread: false,
        }
    }

    /// Whether the output has no reader.
    pub fn is_unread(&self) -> bool {
        self.unread
    }

    /// Writes to standard output, unless it has no reader.
    fn write(&mut self, text: &str) -> io::Result<()> {
        if self.unread {
            return Ok(());
        }
        match writeln!(self.stream, "{text}").and_then(|()| self.stream.flush()) {
            Err(error) if is_unread(&error) => {
                self.unread = true;
                Ok(())
            }
            written => {
                written.map_err(|error| io::Error::new(error.kind(), format!("standard output: {error}")))
            }
        }
    }

    /// Prints one line for people.
    pub fn line(&mut self, line: impl fmt::Display) -> io::Result<()> {
        if let Some(head) = self.head.take() {
            if self.is_terminal() {
                // Not through the stream, which leaves this out with NO_COLOR.
                io::stdout().write_all(b"\x1b[H\x1b[2J\x1b[3J")?;
            }
            self.write(&head)?;
        }
        self.write(&terminal(&line.to_string()))
    }

    /// Prints why nothing was done: as a line, or as JSON.
    pub fn problem(&mut self, reason: &str) -> io::Result<()> {
        match self.json {
            true => self.json(&Problem { problem: reason }),
            false => self.line(reason),
        }
    }

    /// Prints a JSON object on a line of its own, with the name of its schema. Each command has a
    /// schema in docs/schemas; a test compares all output with it.
    pub fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        // Converts to a value, so that each name occurs once: flattened parts may share names.
        let line = serde_json::to_value(Marked::new(&self.schema, value)).map_err(io::Error::other)?;
        self.write(&line.to_string())
    }

    /// Begins a new screen with the next line, if this is a terminal, and puts a line above it:
    /// until there is something new to see, the old one stays.
    pub fn next_screen(&mut self, head: impl fmt::Display) {
        self.head = Some(head.to_string());
    }

    /// Whether standard output is a terminal.
    pub fn is_terminal(&self) -> bool {
        io::stdout().is_terminal()
    }

    /// A progress bar on standard error, hidden unless that is a terminal;
    /// without a length, a counter.
    pub fn progress(&self, length: Option<u64>, what: &'static str) -> ProgressBar {
        let bar = match length {
            Some(length) => ProgressBar::new(length)
                .with_style(style("{msg} {wide_bar} {human_pos}/{human_len} {per_sec} {eta}")),
            None => ProgressBar::new_spinner().with_style(style("{spinner} {msg} {human_pos} {per_sec}")),
        };
        bar.enable_steady_tick(Duration::from_millis(100));
        bar.with_message(what)
    }

    /// Does work with a progress bar of unknown length, and removes the bar afterwards.
    pub fn following<T>(&self, what: &'static str, work: impl FnOnce(&ProgressBar) -> T) -> T {
        let bar = self.progress(Some(0), what);
        let result = work(&bar);
        bar.finish_and_clear();
        result
    }

    /// Does work of unknown duration, with a spinner on standard error if that is a terminal.
    pub fn spinning<T>(&self, what: &'static str, work: impl FnOnce() -> T) -> T {
        let bar = ProgressBar::new_spinner().with_style(style("{spinner} {msg}")).with_message(what);
        bar.enable_steady_tick(Duration::from_millis(100));
        let result = work();
        bar.finish_and_clear();
        result
    }

    /// Prints a report, as JSON or as `show` does it.
    pub fn report<T: Serialize, E: From<io::Error>>(
        &mut self,
        report: &T,
        show: impl FnOnce(&T, &mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.json { Ok(self.json(report)?) } else { show(report, self) }
    }
}

/// Shows the progress, relative to the total that is known so far.
pub fn at(bar: &ProgressBar, done: u64, all: u64) {
    bar.set_length(all.max(done));
    bar.set_position(done);
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Prints a line on standard error, beside the results. A failure is ignored: the terminal
/// may be gone.
pub fn aside(line: impl fmt::Display) {
    let _ = writeln!(anstream::stderr(), "{}", terminal(&line.to_string()));
}

/// Whether an error means that the output has no reader. A closed terminal reports an input/output
/// error, as a disk does.
fn is_unread(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
        || (error.raw_os_error() == Some(Errno::IO.raw_os_error()) && nobody_reads())
}

/// The report of a command about a set that is not installed.
pub fn not_installed(settings: &Settings) -> String {
    format!("set `{}` is not installed here; run `{}`", settings.topology.set, settings.command(&["install"]))
}

/// The first word of a line about a command that had nothing to do.
pub fn unchanged() -> String {
    "unchanged".green().bold().to_string()
}

/// The first words of a line about a dry run.
pub fn dry_run() -> String {
    "dry run".yellow().bold().to_string()
}
