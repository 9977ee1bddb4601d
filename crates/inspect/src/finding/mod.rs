//! Findings: the fault, its severity and its remedy. `verify`, `doctor`, the page and the metrics share
//! them.

mod cause;
mod code;
mod runbook;

use serde::Serialize;

pub use cause::findings;
pub use code::{FindingCode, Severity};

/// A problem, or a state that could become a problem. Findings sort by severity.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct Finding {
    /// Its severity.
    pub severity: Severity,
    /// What kind of finding it is; stable.
    #[schemars(with = "String")]
    pub code: FindingCode,
    /// Its subject: a queue, an exchange, a binding, a user, the broker.
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
    /// A finding with the severity of its code.
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
