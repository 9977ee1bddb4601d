//! A vhost in version control: a file that says what it should have, and what is to be done
//! about the difference.

mod apply;
mod file;

pub use apply::{ApplyOptions, ApplyReport, PrunedApp, PrunedGateway, SetReport, apply};
pub use file::{Platform, PlatformError, PlatformSet};
