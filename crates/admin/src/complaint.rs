//! A complaint that is logged once, and not again at every turn.

use log::{Level, log};

/// The last complaint of something that works in turns.
#[derive(Debug)]
pub(crate) struct Complaint {
    /// Whose complaint it is in the log.
    target: &'static str,
    last: Option<String>,
}

impl Complaint {
    /// None yet, of this module.
    pub(crate) const fn of(target: &'static str) -> Self {
        Self { target, last: None }
    }

    /// Logs it unless the last one was the same. `None` means that there is nothing to complain
    /// about any more.
    pub(crate) fn tell(&mut self, level: Level, text: Option<String>) {
        if let Some(text) = text.as_ref().filter(|text| self.last.as_ref() != Some(text)) {
            log!(target: self.target, level, "{text}");
        }
        self.last = text;
    }
}
