//! The journal of an application: what is scheduled.
//!
//! A journal is a stream with a copy of each message that was published for it. Nothing is ever
//! taken out of it, so what is due, and what was recalled, is found by reading all of it: once
//! through, as fast as the broker hands it out, and keeping no more than what is asked for.

mod count;
mod entry;
mod glance;
mod list;
pub(crate) mod lost;
mod reader;

pub use count::{CountBy, ScheduleCount, ScheduleSlot, count_scheduled};
pub use entry::{ScheduleState, ScheduledMessage};
pub(crate) use glance::{JournalBeginning, glance_at_journal, journal_beginning};
pub use glance::{JournalGlance, JournalSchedule};
pub(crate) use list::pending_copies;
pub use list::{FoundMessage, PendingCopies, ScheduleFilter, ScheduleList, find_scheduled, list_scheduled};
pub(crate) use reader::is_emptied;
pub use reader::{JournalRead, JournalUnread};
