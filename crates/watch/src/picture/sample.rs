//! Made-up pictures, for tests and for work on the page.

use jiff::Timestamp;

use delayline_core::topology::Topology;
use delayline_settings::{Layout, Settings};

use super::{LayoutView, Level, Picture, Verdict};

/// A picture of a set about which nothing is known yet.
///
/// # Panics
/// Never: the settings are good.
#[must_use]
pub fn nothing() -> Picture {
    let settings = Settings::from_url("amqp://localhost").expect("a good URL");
    let topology = Topology::new(settings.topology.clone());
    let mut picture = super::nothing::nothing(&settings, &topology);
    picture.at = Timestamp::UNIX_EPOCH;
    picture
}

/// A level about which nothing is known yet, in a set with units of so many milliseconds.
#[must_use]
pub fn level(level: u8, unit_ms: u64) -> Level {
    let found = nothing().levels.into_iter().find(|found| found.level == level).expect("a level");
    Level { wait_ms: unit_ms << level, ..found }
}

/// The layout of NServiceBus, without messages, and a guard that keeps none.
#[must_use]
pub fn layout() -> LayoutView {
    let mut view = LayoutView::unseen(Layout::nservicebus(), "/");
    view.counted = Some(Timestamp::UNIX_EPOCH);
    view.levels = nothing().levels;
    for level in &mut view.levels {
        (level.ready, level.handing_on, level.open, level.stuck) = (Some(0), Some(0), Some(0), Some(0));
    }
    (view.waiting, view.handing_on, view.open, view.stuck) = (Some(0), Some(0), Some(0), Some(0));
    (view.missing, view.keeps) = (Some(0), Some(true));
    (view.exchanges, view.guarded, view.unroutable) = (Some(29), Some(29), Some(0));
    view.verdict = Verdict::of_layout(&view);
    view
}
