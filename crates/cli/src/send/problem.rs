//! What is wrong with lines, and where.

use std::fmt::{self, Write};

use serde::Serialize;

use crate::output::aside;

/// How many bad lines are listed.
const SHOWN: usize = 20;

/// The most characters to show of an error, which can quote the line.
const WORDS: usize = 500;

/// What is wrong with a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    /// The column of the error, from 1; `None` if it is about the whole line.
    pub(super) column: Option<usize>,
    pub(super) reason: String,
}

impl From<String> for Problem {
    fn from(reason: String) -> Self {
        Self { column: None, reason }
    }
}

impl Problem {
    pub(super) fn of_json(error: &serde_json::Error, line: &[u8]) -> Self {
        use serde_json::error::Category;

        let read = line.get(..error.column()).unwrap_or(line);
        let read = match error.classify() {
            // The parser has read on to the next field or to the end.
            Category::Data => {
                let read = read.trim_ascii_end();
                read.strip_suffix(b",").or_else(|| read.strip_suffix(b"}")).unwrap_or(read).trim_ascii_end()
            }
            _ => read,
        };
        // The parser counts bytes; editors show characters.
        let column = String::from_utf8_lossy(read).chars().count();
        let text = error.to_string();
        let place = format!(" at line {} column {}", error.line(), error.column());
        let said = text.strip_suffix(&place).unwrap_or(&text);
        let reason = match error.classify() {
            Category::Eof => "the line ends in the middle of the JSON".to_owned(),
            Category::Syntax => format!("this is not JSON: {said}"),
            _ => plain(said),
        };
        Self { column: Some(column), reason }
    }
}

/// What is wrong with a field, without the parser's own words for it.
fn plain(said: &str) -> String {
    // It lists all fields that it takes, and most of them are not for people to write.
    if let Some(("unknown field", rest)) = said.split_once(" `")
        && let Some((name, _)) = rest.rsplit_once("`, expected one of ")
    {
        return format!("unknown field `{name}`; `delayline send --help` says which fields a line can have");
    }
    match said.strip_prefix("invalid type: ").and_then(|it| it.rsplit_once(", expected ")) {
        Some((found, wanted)) => format!("here is {found}, and should be {wanted}"),
        None => said.to_owned(),
    }
}

/// A line that was not sent, by its number from 1.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    line: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    column: Option<usize>,
    error: String,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}", self.line)?;
        if let Some(column) = self.column {
            write!(f, ", column {column}")?;
        }
        // Nothing that could control the terminal.
        f.write_str(": ")?;
        self.error.chars().try_for_each(|c| match c.is_control() {
            true => write!(f, "{}", c.escape_debug()),
            false => f.write_char(c),
        })
    }
}

/// All lines that were not sent; the first of them in words.
#[derive(Debug, Default, Serialize)]
pub(super) struct Problems {
    #[serde(rename = "failed")]
    pub(super) count: u64,
    #[serde(rename = "failures")]
    pub(super) shown: Vec<Line>,
    /// How many of these were said already.
    #[serde(skip)]
    said: usize,
}

impl Problems {
    pub(super) fn add(&mut self, line: u64, problem: impl Into<Problem>) {
        self.count += 1;
        if self.shown.len() < SHOWN {
            let Problem { column, reason } = problem.into();
            let mut error: String = reason.chars().take(WORDS).collect();
            if error.len() < reason.len() {
                error.push('…');
            }
            self.shown.push(Line { line, column, error });
        }
    }

    /// Says what was not said yet of those that are listed.
    pub(super) fn say_new(&mut self) {
        self.shown[self.said..].iter().for_each(aside);
        self.said = self.shown.len();
    }

    /// Says all that was not said yet, and how many more there are.
    pub(super) fn say(&self) {
        let text = self.to_string();
        if !text.is_empty() {
            aside(text);
        }
    }
}

impl fmt::Display for Problems {
    /// What was not said yet.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut end = "";
        for line in &self.shown[self.said..] {
            write!(f, "{end}{line}")?;
            end = "\n";
        }
        match self.count - self.shown.len() as u64 {
            0 => Ok(()),
            more => write!(f, "{end}… and {more} more"),
        }
    }
}
