//! All that can be seen of a set at one moment, and how it is seen.
//!
//! A [`Picture`] is plain data that serializes to JSON; the page and `delayline top` show the
//! same one. A [`Collector`] takes it: it asks the broker, remembers the depths of the levels
//! for half an hour, and derives from them what nobody counts. A [`Watch`] repeats this, and
//! [`Live`] keeps the latest picture for many readers, however often they look.
//!
//! # What is counted and what is derived
//!
//! The broker counts the messages that wait in each queue, and those that were published. It
//! neither counts what its dead-lettering moves, nor knows when a message in a level is due:
//! the level is known, the bits still to come are not. But every message of level n stays for
//! exactly 2^n seconds, and much follows from that:
//!
//! - What came into a level during the last 2^n seconds is what is in it now. So its [rate
//!   in](Level::in_per_s) is its depth divided by 2^n seconds, and its [rate
//!   out](Level::out_per_s) is its depth 2^n seconds ago divided by the same: true means,
//!   though over the level's own time.
//! - What was in the level at a moment within the last 2^n − h seconds is the most that can
//!   leave it within h seconds. [`Forecast::at_most`] is the sum of that.
//! - A message of level n is due within 2^(n+1) − 1 seconds at the latest, for it has at most
//!   all lower levels before it. [`Forecast::at_least`] is the sum of that.
//!
//! [`Forecast::estimate`] lies between and assumes that ages and delays are spread
//! evenly. All of it is about what waits now; what is published later comes on top.

mod canary;
mod collect;
mod compare;
mod forecast;
mod handing_on;
mod head;
mod history;
mod kept;
mod layouts;
mod live;
mod minute;
mod model;
mod nothing;
mod peeking;
#[doc(hidden)]
pub mod sample;
mod services;
mod state;
mod verdict;

pub use collect::{Collector, Sources};
pub use forecast::forecast;
pub use history::{Depths, History};
pub use kept::KeptView;
pub use layouts::{LayoutView, watch_layouts};
pub use live::{Live, Watch};
pub use model::{
    AppRetries, BrokerView, CanaryView, Checkup, Forecast, GatewayView, JournalView, Lateness, Level,
    Picture, ProbeView, Rates, RecallView, SetView,
};
pub use verdict::{Remark, Verdict};
