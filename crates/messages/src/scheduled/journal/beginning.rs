//! The oldest copies of a journal.

use std::{sync::atomic::AtomicBool, time::Duration};

use jiff::{SignedDuration, Timestamp};

use delayline_core::{codec::AppKey, topology::Topology};
use delayline_settings::Settings;

use crate::error::AdminError;

use super::reader::Reading;

/// The evidence from the oldest copies of a journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JournalBeginning {
    /// How many older ones were cut off; `None` if the broker delivered none.
    pub cut_off: Option<u64>,
    /// When the oldest was published, at the earliest.
    pub oldest: Option<Timestamp>,
    /// The longest delay among them.
    pub longest: Option<Duration>,
}

/// Reads the oldest copies of an application's journal, `limit` at most.
pub fn journal_beginning(
    settings: &Settings,
    topology: &Topology,
    app: &AppKey,
    most: u64,
) -> Result<JournalBeginning, AdminError> {
    let stop = AtomicBool::new(false);
    let unit = topology.settings().unit.duration();
    let mut beginning = JournalBeginning::default();
    let cut_off = Reading { settings, topology, app, stop: &stop }.beginning(most, |entry| {
        let delay = entry.key.delay.duration(unit);
        let published =
            SignedDuration::try_from(delay).ok().and_then(|delay| entry.due.checked_sub(delay).ok());
        beginning.longest = beginning.longest.max(Some(delay));
        beginning.oldest = beginning.oldest.or(published);
    })?;
    Ok(JournalBeginning { cut_off, ..beginning })
}
