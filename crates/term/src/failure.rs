//! Why a command failed.

use std::{error::Error, fmt, io};

use delayline_admin::{AdminError, JournalUnread, drain::DrainError};
use delayline_amqp::AmqpError;
use delayline_client::recall::RecallError;
use delayline_node::NodeError;
use delayline_schedules::ScheduleError;
use delayline_settings::SettingsError;

use crate::{code::Code, ending, output::Marked, output::aside, text::readable};

/// A line that was not sent, by its number from 1.
#[derive(Debug, serde::Serialize, schemars::JsonSchema)]
pub struct Line {
    /// Its number.
    pub line: u64,
    /// The column of the fault, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<usize>,
    /// The fault.
    pub error: String,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}", self.line)?;
        if let Some(column) = self.column {
            write!(f, ", column {column}")?;
        }
        write!(f, ": {}", readable(&self.error))
    }
}

/// Why a command could not do its work.
#[derive(Debug)]
pub struct Failure {
    code: Code,
    reason: String,
    /// The bad lines of an input, for scripts.
    lines: Option<Vec<Line>>,
    /// The set is not installed. For a command that only reports, that is a problem; for others, it is
    /// a refusal of the broker.
    no_set: bool,
}

/// A failure as JSON.
#[derive(Debug, serde::Serialize, schemars::JsonSchema)]
pub struct Said<'a> {
    /// The reason, and what to do.
    error: &'a str,
    /// The exit code of the command; docs/reference/exit-codes.md.
    #[schemars(extend("enum" = [1, 2, 3, 130]))]
    exit_code: u8,
    /// The bad lines of the input of `send --jsonl --file`.
    #[serde(skip_serializing_if = "Option::is_none")]
    lines: Option<&'a [Line]>,
}

impl Failure {
    /// The command ends with this code, for this reason.
    pub fn new(code: Code, reason: impl ToString) -> Self {
        Self { code, reason: reason.to_string(), lines: None, no_set: false }
    }

    /// The arguments, the settings or a file are wrong.
    pub fn usage(reason: impl ToString) -> Self {
        Self::new(Code::Usage, reason)
    }

    /// Clap's error about wrong arguments, without the colours and the summary of the usage.
    pub fn of_usage(error: &clap::Error) -> Self {
        let text = error.render().to_string();
        let lines = text.lines().take_while(|line| !line.starts_with("Usage:")).map(str::trim);
        let joined = lines.filter(|line| !line.is_empty()).fold(String::new(), |text, line| match text {
            text if text.is_empty() => line.to_owned(),
            text if text.ends_with(':') => format!("{text} {line}"),
            text => format!("{text}; {line}"),
        });
        Self::usage(joined.trim_start_matches("error: "))
    }

    /// With the bad lines of an input, which are only printed as JSON.
    pub fn with_lines(self, lines: Vec<Line>) -> Self {
        Self { lines: Some(lines), ..self }
    }

    /// Whether another attempt cannot help.
    pub fn is_for_good(&self) -> bool {
        self.code == Code::Usage
    }

    /// Prints why, on standard error.
    pub fn say(&self, json: bool) {
        if json {
            let (error, exit_code, lines) = (self.reason.as_str(), self.code.number(), self.lines.as_deref());
            aside(serde_json::json!(Marked::new("error", &Said { error, exit_code, lines })));
        } else {
            use owo_colors::OwoColorize;
            aside(format!("{} {}", "error:".red().bold(), self.reason));
        }
    }

    /// Prints the reason, and returns the exit code. `looks` is whether the command looks at the
    /// set.
    pub fn report(mut self, json: bool, looks: bool) -> Code {
        if self.no_set && looks {
            self.code = Code::Problem;
        }
        // Whatever failed, it failed during an interrupt.
        if ending::happened() {
            self.code = Code::Interrupted;
        }
        self.say(json);
        self.code
    }
}

/// An error with all its causes, each once.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

impl From<AdminError> for Failure {
    fn from(error: AdminError) -> Self {
        let no_set = matches!(
            error,
            AdminError::Drain(DrainError::Missing { .. } | DrainError::NotOffered { .. })
                | AdminError::NoLayout { .. }
                | AdminError::NoDestination { .. }
                | AdminError::NoGuard { .. }
                | AdminError::Journal(JournalUnread::NoJournal { .. })
        );
        let code = match error {
            AdminError::NotConfigured { .. } => Code::Usage,
            _ => Code::Broker,
        };
        Self { no_set, ..Self::new(code, chain(&error)) }
    }
}

impl From<AmqpError> for Failure {
    fn from(error: AmqpError) -> Self {
        Self::new(Code::Broker, chain(&error))
    }
}

impl From<RecallError> for Failure {
    fn from(error: RecallError) -> Self {
        Self::new(Code::Broker, error)
    }
}

impl From<ScheduleError> for Failure {
    fn from(error: ScheduleError) -> Self {
        let code = match error {
            ScheduleError::Definition(_) => Code::Usage,
            ScheduleError::Unknown { .. }
            | ScheduleError::OtherApp { .. }
            | ScheduleError::ForOther { .. }
            | ScheduleError::NotOffered { .. }
            | ScheduleError::Full { .. } => Code::Problem,
            _ => Code::Broker,
        };
        let no_set = matches!(error, ScheduleError::NoSet { .. });
        Self { no_set, ..Self::new(code, chain(&error)) }
    }
}

impl From<NodeError> for Failure {
    fn from(error: NodeError) -> Self {
        Self::new(Code::Broker, chain(&error))
    }
}

impl From<SettingsError> for Failure {
    fn from(error: SettingsError) -> Self {
        Self::usage(chain(&error))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        // Not 1, which is an answer.
        Self::new(Code::Usage, &error)
    }
}
