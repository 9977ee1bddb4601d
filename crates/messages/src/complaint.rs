//! Logs a repeated warning once instead of at every turn.

use log::{Level, log};

/// The last warning of a task that works in turns.
#[derive(Debug)]
pub struct Complaint {
    /// The log target of the warning.
    target: &'static str,
    last: Option<String>,
}

impl Complaint {
    /// No warning yet, for this module.
    pub const fn of(target: &'static str) -> Self {
        Self { target, last: None }
    }

    /// Logs the warning unless the last one was the same. `None` means that the cause is gone.
    pub fn tell(&mut self, level: Level, text: Option<String>) {
        if let Some(text) = text.as_ref().filter(|text| self.last.as_ref() != Some(text)) {
            log!(target: self.target, level, "{text}");
        }
        self.last = text;
    }
}
