//! The journal of an application: its scheduled messages.
//!
//! A journal is a stream with a copy of each message that was published for it. Copies are never removed
//! one by one, so due and recalled messages are found by reading the whole journal. It is read once, as
//! fast as the broker delivers it, and only requested entries are kept.

mod beginning;
mod count;
mod entry;
mod filter;
mod index;
mod list;
pub mod lost;
mod reader;
mod timeline;

pub use beginning::{JournalBeginning, journal_beginning};
pub use count::{AppCounts, CountBy, ScheduleCount, ScheduleSlot, count_apps, count_scheduled};
pub use entry::{ScheduleState, ScheduledMessage};
pub use filter::{HeaderFilter, ScheduleFilter};
pub use index::{Index, IndexedJournal, ShowError, Unindexed};
pub use list::pending_copies;
pub use list::{
    Estimated, FoundMessage, PendingCopies, ScheduleList, find_scheduled, list_scheduled, read_scheduled,
};
pub use reader::JournalRead;
pub use reader::is_emptied;
