//! The first and the last copies of a journal, without those in between.

use std::{sync::atomic::AtomicBool, time::Duration};

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use delayline::{amqp::Delivery, codec::AppKey, topology::Topology};
use delayline_settings::Settings;

use crate::AdminError;

use super::{entry::Entry, reader::Reading};

/// What the ends of a journal say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct JournalGlance {
    /// How many older copies were cut off.
    pub cut_off: u64,
    /// When the oldest copy was published, as far as it says.
    pub oldest: Option<Timestamp>,
    /// When the last one was published, likewise. RabbitMQ 3.10 does not find it for a moment
    /// each time a file of the stream is full.
    pub newest: Option<Timestamp>,
}

/// What the oldest copies of a journal say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct JournalBeginning {
    /// How many older ones were cut off.
    pub(crate) cut_off: u64,
    /// When the oldest was published, as far as it says.
    pub(crate) oldest: Option<Timestamp>,
    /// The longest delay among them.
    pub(crate) longest: Option<Duration>,
}

/// Looks at both ends of an application's journal, unless it is stopped before.
///
/// # Errors
/// If there is no journal, or the broker refuses or is lost.
pub(crate) fn glance_at_journal(
    settings: &Settings,
    topology: &Topology,
    app: &AppKey,
    stop: &AtomicBool,
) -> Result<JournalGlance, AdminError> {
    let reading = Reading { settings, topology, app, stop };
    let JournalBeginning { cut_off, oldest, .. } = beginning(&reading, 1)?;
    let mut newest = None;
    reading.last(|delivery| newest = published(delivery, topology, app).or(newest))?;
    Ok(JournalGlance { cut_off, oldest, newest })
}

/// Reads the oldest copies of an application's journal, so many at most.
pub(crate) fn journal_beginning(
    settings: &Settings,
    topology: &Topology,
    app: &AppKey,
    most: u64,
) -> Result<JournalBeginning, AdminError> {
    let stop = AtomicBool::new(false);
    beginning(&Reading { settings, topology, app, stop: &stop }, most)
}

fn beginning(reading: &Reading<'_>, most: u64) -> Result<JournalBeginning, AdminError> {
    let (topology, app) = (reading.topology, reading.app);
    let unit = topology.settings().unit.duration();
    let mut beginning = JournalBeginning::default();
    let cut_off = reading.beginning(most, |delivery| {
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
