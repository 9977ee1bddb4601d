//! Reading a journal from its beginning into a store.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use jiff::Timestamp;

use delayline_amqp::Delivery;

use crate::{
    error::AdminError,
    scheduled::journal::{JournalRead, entry::Entry, filter::text, reader::Reading},
};

use super::{
    Index, Journal,
    store::{MAX_VALUE, Row, Store},
};

/// How many messages are stored at once.
const BATCH: usize = 1_000;

/// How soon a journal is tried again: if it could not be read, and if it is too large.
pub(super) const AGAIN: Duration = Duration::from_secs(10);
pub(super) const LATER: Duration = Duration::from_secs(3_600);

/// A message by which a stream is recognised: another stream of the same name has another message there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Last {
    pub(super) place: u64,
    contents: u64,
}

impl Last {
    pub(super) fn of(place: u64, delivery: &Delivery) -> Self {
        let mut hasher = DefaultHasher::new();
        (&delivery.routing_key, delivery.body.len(), delivery.properties.timestamp).hash(&mut hasher);
        delivery.body.iter().take(64).for_each(|byte| byte.hash(&mut hasher));
        Self { place, contents: hasher.finish() }
    }
}

/// A journal that was read.
pub(super) struct Built {
    pub(super) store: Store,
    pub(super) read: JournalRead,
    pub(super) width: i64,
    pub(super) last: Option<Last>,
    /// When it began. Later messages may be missing.
    pub(super) began: Timestamp,
}

/// Why a journal is not indexed, and when to try again.
pub(super) struct Unbuilt {
    pub(super) reason: String,
    pub(super) again: Duration,
}

impl From<rusqlite::Error> for Unbuilt {
    fn from(error: rusqlite::Error) -> Self {
        let reason = format!(
            "its temporary file cannot be used: {error}; set SQLITE_TMPDIR to a directory on a disk with room, or \
             pass --no-index; it is tried again within an hour"
        );
        Self { reason, again: LATER }
    }
}

impl From<AdminError> for Unbuilt {
    fn from(error: AdminError) -> Self {
        let reason = match &error {
            AdminError::Amqp { source, .. } if source.code() == Some(403) => {
                format!(
                    "{error}. `delayline serve user NAME` gives the daemon's user the right to read journals"
                )
            }
            _ => error.to_string(),
        };
        Self { reason, again: AGAIN }
    }
}

/// Reads a journal. `stop` is set here if the store gets larger than `most` bytes.
pub(super) fn build(
    index: &Index,
    journal: &Journal,
    most: u64,
    stop: &AtomicBool,
) -> Result<Built, Unbuilt> {
    let headers = &index.settings.index.headers;
    let store = Store::open(&journal.app, headers.len())?;
    let began = Timestamp::now();
    let mut built = Built { store, read: JournalRead::default(), width: 0, last: None, began };
    let (mut rows, mut stored) = (Vec::new(), Ok(()));
    let reading = Reading { settings: &index.settings, topology: &index.topology, app: &journal.app, stop };
    let read = reading.run(
        |entry, delivery| {
            built.last = Some(Last::of(entry.place, delivery));
            if let Some(row) = row(entry, delivery, headers, Timestamp::now()) {
                built.width = built.width.max(row.width());
                rows.push(row);
            }
            if rows.len() >= BATCH {
                let added = built.store.add(&mut rows).and_then(|()| built.store.bytes());
                match added {
                    Ok(bytes) if bytes <= most => return,
                    Ok(bytes) => stored = Err(Unbuilt { reason: too_large(bytes), again: LATER }),
                    Err(error) => stored = Err(error.into()),
                }
                stop.store(true, Ordering::Relaxed);
            }
        },
        |read, all| journal.lock().progress = (read, all),
    );
    stored?;
    built.read = read?;
    if built.read.interrupted {
        return Err(Unbuilt { reason: "reading it was interrupted".into(), again: AGAIN });
    }
    built.store.add(&mut rows)?;
    Ok(built)
}

/// Why a journal is not indexed that would take too many bytes.
pub(super) fn too_large(bytes: u64) -> String {
    format!(
        "it would take more than its share of `index_bytes` ({} MB); it is tried again within an hour",
        bytes / 1_000_000
    )
}

/// A message for the store; `None` if it was due.
pub(super) fn row(entry: Entry, delivery: &Delivery, headers: &[String], now: Timestamp) -> Option<Row> {
    if entry.latest() <= now {
        return None;
    }
    let value = |name: &String| {
        let text = delivery.headers.get(name).and_then(text)?;
        (text.len() <= MAX_VALUE).then(|| text.into_owned())
    };
    Some(Row { entry, damaged: delivery.damaged, headers: headers.iter().map(value).collect() })
}

impl Row {
    /// How much later than its earliest due time it is due at most, in ms.
    pub(super) fn width(&self) -> i64 {
        self.entry.latest().as_millisecond().saturating_sub(self.entry.due.as_millisecond())
    }
}
