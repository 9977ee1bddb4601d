//! Made-up pictures, for tests and for work on the page.

use jiff::Timestamp;

use delayline::topology::Topology;
use delayline_settings::Settings;

use super::{Level, Picture};

/// A picture of a set about which nothing is known yet.
///
/// # Panics
/// Never: the settings are good.
#[must_use]
pub fn nothing() -> Picture {
    let settings = Settings::from_url("amqp://localhost").expect("a good URL");
    let topology = Topology::new(settings.topology.clone());
    let mut picture = super::collect::nothing(&settings, &topology);
    picture.at = Timestamp::UNIX_EPOCH;
    picture
}

/// A level about which nothing is known yet, in a set with units of so many milliseconds.
#[must_use]
pub fn level(level: u8, unit_ms: u64) -> Level {
    let found = nothing().levels.into_iter().find(|found| found.level == level).expect("a level");
    Level { wait_ms: unit_ms << level, ..found }
}
