//! What is wrong, how bad it is and what to do about it: one form for `verify`, `doctor`, the
//! page and the metrics.

mod code;

use serde::Serialize;

pub use code::{FindingCode, Severity};

/// A problem, or something that could become one. Findings sort by how bad they are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What kind of finding it is; stable.
    pub code: FindingCode,
    /// What it is about: a queue, an exchange, a binding, a user, the broker.
    pub subject: String,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub advice: String,
    /// The applications that are affected, as far as they are known.
    pub apps: Vec<String>,
    /// All the places where it shows, if there are several.
    pub details: Vec<String>,
}

impl Finding {
    /// A finding that is as bad as its code says.
    pub fn new(
        code: FindingCode,
        subject: impl Into<String>,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            severity: code.severity(),
            code,
            subject: subject.into(),
            what: what.into(),
            advice: advice.into(),
            apps: Vec::new(),
            details: Vec::new(),
        }
    }

    /// The same, with the applications that it affects.
    #[must_use]
    pub fn about<T: ToString>(mut self, apps: impl IntoIterator<Item = T>) -> Self {
        self.apps = apps.into_iter().map(|app| app.to_string()).collect();
        self.apps.sort();
        self.apps.dedup();
        self
    }
}
