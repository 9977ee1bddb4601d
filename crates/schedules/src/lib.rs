//! Recurring schedules of a set: their definitions, their occurrences, and the service that publishes them.
//!
//! Everything is kept on the broker, in one stream of the set: what each schedule is, which messages are about
//! to be published for it, and how far it was published. A daemon publishes the occurrences of the next hours
//! ahead, as ordinary delayed messages, so that none is missed while no daemon runs.

mod book;
mod change;
mod definition;
mod due;
mod error;
mod follower;
mod line;
mod listing;
mod place;
mod plan;
mod scheduler;
mod stats;
mod store;
mod writer;

pub use book::{Book, Definition, Entry, State};
pub use change::{Change, Changed, ScheduleChange, added, change, change_all, run_now};
pub use definition::{
    DefinitionError, Missed, Spec, Times, Timing,
    calendar::CalendarError,
    name::{ScheduleName, ScheduleNameError},
};
pub use error::ScheduleError;
pub use listing::{AllSchedules, Occurrence, ScheduleDetails, ScheduleSummary, list, show, summaries};
pub use scheduler::Scheduler;
pub use stats::{ScheduleCounts, ScheduleLine, ScheduleStats};
pub use store::read;
