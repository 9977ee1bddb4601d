//! The state of a set, as metrics in the OpenMetrics text format.
//!
//! [`Exposition`] holds the data of a scrape: the latest [`Picture`](crate::picture::Picture), and
//! the counters of this process. Making the text makes no request and holds no lock for long.
//!
//! # Names
//!
//! They begin with `delayline_`; counters end in `_total`; a name with a unit ends in it:
//! `_seconds`, `_bytes`, `_messages`. Unknown values are left out: a gauge that kept its last
//! value would lie. [`NAMES`] lists them all, with their meaning.
//!
//! # Cardinality
//!
//! Labels have few values: 28 levels, ten canary routes through them (up to 36 with shortcuts), two routers, the reasons
//! for parking, and the layouts in the settings. Only applications can be many: 100 of them have
//! their own series, and all others share the app `other`. Of schedules, the first 1,000 by name have series.

mod exposition;
mod families;
mod process;

pub use exposition::{Exposition, Inside};
pub use families::{Family, Kind, NAMES};
