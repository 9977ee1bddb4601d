//! Exit codes, and why a command failed. docs/exit-codes.md lists the exit codes of each
//! command, and why.

use std::{error::Error, io, process::ExitCode};

use rustix::io::Errno;

use delayline_admin::{AdminError, JournalUnread, drain::DrainError};
use delayline_amqp::AmqpError;
use delayline_node::NodeError;
use delayline_settings::SettingsError;

use crate::{
    ending::{self, nobody_reads},
    output::{Marked, aside},
};

/// What the exit code means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    /// 0: done.
    Done,
    /// 1: looked, and found a problem.
    Problem,
    /// 2: wrong usage.
    Usage,
    /// 3: the broker cannot be reached or refuses.
    Broker,
    /// 130: interrupted, as shells count it.
    Interrupted,
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code.number())
    }
}

impl Code {
    pub(super) fn number(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Problem => 1,
            Self::Usage => 2,
            Self::Broker => 3,
            Self::Interrupted => 130,
        }
    }
}

/// Why a command could not do its work.
#[derive(Debug)]
pub(super) struct Failure {
    code: Code,
    reason: String,
    /// Further details for scripts, by name.
    details: serde_json::Map<String, serde_json::Value>,
    /// Nobody reads our output any more, as with `| head`, or the terminal was closed. That
    /// is no error.
    unread: bool,
    /// The set is not installed. For a command that looks, that is a problem found; for one
    /// that needs the set, the broker refuses.
    no_set: bool,
}

impl Failure {
    pub(super) fn new(code: Code, reason: impl ToString) -> Self {
        let details = serde_json::Map::new();
        Self { code, reason: reason.to_string(), details, unread: false, no_set: false }
    }

    pub(super) fn usage(reason: impl ToString) -> Self {
        Self::new(Code::Usage, reason)
    }

    /// What clap says of wrong arguments, without the colours and the summary of the usage.
    pub(super) fn of_usage(error: &clap::Error) -> Self {
        let text = error.render().to_string();
        let lines = text.lines().take_while(|line| !line.starts_with("Usage:")).map(str::trim);
        let joined = lines.filter(|line| !line.is_empty()).fold(String::new(), |text, line| match text {
            text if text.is_empty() => line.to_owned(),
            text if text.ends_with(':') => format!("{text} {line}"),
            text => format!("{text}; {line}"),
        });
        Self::usage(joined.trim_start_matches("error: "))
    }

    /// With something more that is only printed as JSON.
    pub(super) fn with(mut self, name: &str, value: impl serde::Serialize) -> Self {
        self.details.insert(name.into(), serde_json::json!(value));
        self
    }

    /// Whether trying again cannot help: the arguments are wrong, or nobody reads the output.
    pub(super) fn is_for_good(&self) -> bool {
        self.unread || self.code == Code::Usage
    }

    /// What a command ends with that has done its work, if this is only that nobody reads what it
    /// says about it.
    pub(super) fn unless_unread(self, code: Code) -> Result<Code, Self> {
        if self.unread { Ok(code) } else { Err(self) }
    }

    /// Prints why, on standard error.
    pub(super) fn say(&self, json: bool) {
        if json {
            let mut line = serde_json::json!({ "error": self.reason, "exit_code": self.code.number() });
            for (name, value) in &self.details {
                line[name] = value.clone();
            }
            aside(serde_json::json!(Marked::new("error", &line)));
        } else {
            use owo_colors::OwoColorize;
            aside(format!("{} {}", "error:".red().bold(), self.reason));
        }
    }

    /// Prints why, and returns the exit code. `looks` is whether the command is one that
    /// looks at the set.
    pub(super) fn report(mut self, json: bool, looks: bool) -> Code {
        if self.unread {
            return Code::Done;
        }
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
        Self {
            // A terminal that is gone reports an input/output error, as a disk does.
            unread: error.kind() == io::ErrorKind::BrokenPipe
                || (error.raw_os_error() == Some(Errno::IO.raw_os_error()) && nobody_reads()),
            // Not 1, which is an answer.
            ..Self::new(Code::Usage, &error)
        }
    }
}
