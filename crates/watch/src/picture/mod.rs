//! The state of a set at a moment, and how it is observed.
//!
//! A [`Picture`] is plain data that serializes to JSON; the page and `delayline status --watch` show the
//! same one. A [`Collector`] takes it by asking the broker. A [`Watch`] repeats this, and
//! [`Live`] keeps the latest picture for many readers, however often they look.
//!
//! # What is counted and what is derived
//!
//! The broker counts the messages that wait in each queue, and those that were published. It
//! does not count dead-lettered messages, and does not know when a message in a level is due.
//! So [`Rates::dispatch_per_s`] is derived from the other counts. [`Forecast::at_least`] counts
//! the messages of levels n with 2^(n+1) − 1 seconds within the period: a message has at most
//! all lower levels before it. [`Forecast::estimate`] assumes that ages and delays are spread
//! evenly. Messages that are published later are not included.

mod canary;
mod collect;
mod compare;
mod flow;
mod forecast;
mod handing_on;
mod head;
mod kept;
mod layouts;
mod live;
mod minute;
mod model;
mod nothing;
mod peeking;
mod ready;
#[doc(hidden)]
pub mod sample;
mod services;
mod state;
mod verdict;

pub use collect::{Collector, Sources};
pub use forecast::forecast;
pub use kept::KeptView;
pub use layouts::{LayoutView, watch_layouts};
pub use live::{Live, Watch};
pub use model::{
    AppRetries, BrokerView, CanaryView, Checkup, Forecast, GatewayView, LandingView, Lateness, Level,
    Picture, ProbeView, Rates, RecallView, ScheduleView, SchedulesView, SetView,
};
pub use verdict::{Remark, Verdict};
