//! A vhost in version control: a file with the wanted contents of a vhost, and its comparison with the
//! vhost.

mod apply;
mod file;
mod schedules;
mod surplus;

pub use apply::{ApplyOptions, ApplyReport, PrunedApp, PrunedGateway, SetReport, apply};
pub use file::{Platform, PlatformError, PlatformSet};
