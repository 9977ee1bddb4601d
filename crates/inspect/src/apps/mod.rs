//! The applications of a set, as bindings, queues and permissions show them.

mod binding;
mod hold;
mod list;
mod unbound;

pub use binding::AppBinding;
pub use hold::Hold;
pub(crate) use hold::paused_since;
pub use list::{
    AppEntry, AppList, AppUserEntry, JournalEntry, LandingEntry, RecallEntry, apps_of_publisher, list_apps,
    queue_of_app,
};
pub use list::{apps_of, behind, landing};
pub(crate) use unbound::{Unbound, unbound};
