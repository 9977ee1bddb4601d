//! Problems in lines, and where they are.

use std::fmt;

use serde::Serialize;

use delayline_term::{failure::Line, output::aside};

/// How many bad lines are listed.
const SHOWN: usize = 20;

/// The most characters to show of an error, which can quote the line.
const WORDS: usize = 500;

/// A problem in a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// The column of the error, from 1; `None` if it is about the whole line.
    pub(crate) column: Option<usize>,
    pub(crate) reason: String,
}

impl From<String> for Problem {
    fn from(reason: String) -> Self {
        Self { column: None, reason }
    }
}

impl Problem {
    pub(crate) fn of_json(error: &serde_json::Error, line: &[u8]) -> Self {
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

/// A problem with a field, without the parser's jargon.
fn plain(said: &str) -> String {
    // The parser lists all fields that it takes, and most of them are not written by hand.
    if let Some(("unknown field", rest)) = said.split_once(" `")
        && let Some((name, _)) = rest.rsplit_once("`, expected one of ")
    {
        return format!("unknown field `{name}`; `delayline send --help` lists the fields of a line");
    }
    match said.strip_prefix("invalid type: ").and_then(|it| it.rsplit_once(", expected ")) {
        Some((found, wanted)) => format!("found {found}, expected {wanted}"),
        None => said.to_owned(),
    }
}

/// All lines that were not sent; the first of them in words.
#[derive(Debug, Default, Serialize, schemars::JsonSchema)]
pub(crate) struct Problems {
    #[serde(rename = "failed")]
    pub(crate) count: u64,
    #[serde(rename = "failures")]
    pub(crate) shown: Vec<Line>,
    /// How many of these were already printed.
    #[serde(skip)]
    said: usize,
}

impl Problems {
    pub(crate) fn add(&mut self, line: u64, problem: impl Into<Problem>) {
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

    /// Prints the listed problems that were not printed before.
    pub(crate) fn say_new(&mut self) {
        self.shown[self.said..].iter().for_each(aside);
        self.said = self.shown.len();
    }

    /// Prints the problems that were not printed before, and how many more there are.
    pub(crate) fn say(&self) {
        let text = self.to_string();
        if !text.is_empty() {
            aside(text);
        }
    }
}

impl fmt::Display for Problems {
    /// The problems that were not printed before.
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
