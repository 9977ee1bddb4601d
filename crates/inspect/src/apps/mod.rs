//! The applications of a set, as bindings, queues and permissions show them.

mod binding;
mod list;
mod unbound;

pub use binding::AppBinding;
pub use list::landing;
pub use list::{
    AppEntry, AppList, AppUserEntry, JournalEntry, LandingEntry, RecallEntry, apps_of_publisher, list_apps,
    queue_of_app,
};
pub(crate) use unbound::{Unbound, unbound};
