//! The oldest copies of a journal.

use std::{sync::atomic::AtomicBool, time::Duration};

use jiff::{SignedDuration, Timestamp};

use delayline_amqp::Delivery;
use delayline_core::{codec::AppKey, topology::Topology};
use delayline_settings::Settings;

use crate::error::AdminError;

use super::{entry::Entry, reader::Reading};

/// The evidence from the oldest copies of a journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct JournalBeginning {
    /// How many older ones were cut off; `None` if the broker delivered none.
    pub(crate) cut_off: Option<u64>,
    /// When the oldest was published, if that is known.
    pub(crate) oldest: Option<Timestamp>,
    /// The longest delay among them.
    pub(crate) longest: Option<Duration>,
}

/// Reads the oldest copies of an application's journal, `limit` at most.
pub(crate) fn journal_beginning(
    settings: &Settings,
    topology: &Topology,
    app: &AppKey,
    most: u64,
) -> Result<JournalBeginning, AdminError> {
    let stop = AtomicBool::new(false);
    let unit = topology.settings().unit.duration();
    let mut beginning = JournalBeginning::default();
    let cut_off = Reading { settings, topology, app, stop: &stop }.beginning(most, |delivery| {
        let delay = Entry::of(delivery, app).map(|entry| entry.key.delay.duration(unit));
        beginning.longest = beginning.longest.max(delay);
        beginning.oldest = beginning.oldest.or_else(|| published(delivery, topology, app));
    })?;
    Ok(JournalBeginning { cut_off, ..beginning })
}

/// When a message was published: its delay before it is due.
fn published(delivery: &Delivery, topology: &Topology, app: &AppKey) -> Option<Timestamp> {
    let entry = Entry::of(delivery, app)?;
    let delay = entry.key.delay.duration(topology.settings().unit.duration());
    entry.due?.checked_sub(SignedDuration::try_from(delay).ok()?).ok()
}
