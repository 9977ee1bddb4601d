//! A complaint that is logged once, and not again at every turn.

use log::{Level, log};

/// The last complaint of something that works in turns.
#[derive(Debug, Default)]
pub(crate) struct Complaint(Option<String>);

impl Complaint {
    /// Logs it unless the last one was the same. `None` means that there is nothing to complain
    /// about any more.
    pub(crate) fn tell(&mut self, level: Level, text: Option<String>) {
        if let Some(text) = text.as_ref().filter(|text| self.0.as_ref() != Some(text)) {
            log!(level, "{text}");
        }
        self.0 = text;
    }
}
