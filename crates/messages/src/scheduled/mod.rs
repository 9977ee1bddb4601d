//! Scheduled messages: the journals of applications, and recalls.

mod journal;
mod recalls;
mod sweeper;

pub use journal::{
    AppCounts, CountBy, Estimated, FoundMessage, HeaderFilter, Index, IndexedJournal, JournalRead,
    PendingCopies, ScheduleCount, ScheduleFilter, ScheduleList, ScheduleSlot, ScheduleState,
    ScheduledMessage, ShowError, Unindexed, count_apps, count_scheduled, find_scheduled, list_scheduled,
    read_scheduled,
};
pub use journal::{JournalBeginning, is_emptied, journal_beginning, lost, pending_copies};
pub use recalls::{
    AppRecalls, PendingRecall, PendingRecalls, SweepOptions, SweepReport, SweptApp, is_recall_bound,
    pending_recalls, recallable_apps, sweep_recalls,
};
pub use recalls::{count_recalls, count_recalls_of, recalled_keys};
pub use sweeper::{RecallCounts, RecallStats, Sweeper};
