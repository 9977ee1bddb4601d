//! Small messages of our own that tell whether delays are kept.
//!
//! A [`Canary`] keeps sending probes through the levels and measures how late each
//! comes back, which do not, and which come twice. What it sends is fixed by a
//! [`ProbePlan`], how often by a [`Pace`], and what it concludes by a [`Ledger`]: all three
//! are pure. Its messages have an app key and a queue of their own, so that no
//! application ever sees one.
//!
//! # The queue
//!
//! Each canary takes a *slot*: the queue `<set>.canary.<slot>`, which it alone may
//! consume, bound for the app key `delayline-canary.<slot>`. So several daemons do not
//! count each other's messages. The queue outlives a restart of the daemon by
//! [`QUEUE_LIFE`], so that what was on its way then ends there and not among the
//! unroutable messages. A canary that starts knows nothing of what an earlier one sent, expects
//! none of it, and leaves it out of its figures.

mod connection;
mod ledger;
mod plan;
mod runner;
mod watched;
mod way;

use std::time::Duration;

pub use connection::{CanaryConnection, CanaryError, Received};
pub use ledger::{Arrival, Figures, Ledger, ProbeFigures};
pub use plan::{HORIZON, Pace, Probe, ProbePlan};
pub use runner::{Canary, LayoutCanary};
pub use watched::{CanaryState, Watched};

/// How long after it was due a message counts as overdue.
pub const GRACE: Duration = Duration::from_secs(5);

/// How long after it was due a message counts as missing.
pub const MISSING_AFTER: Duration = Duration::from_secs(60);

/// How long a canary's queue outlives it.
pub const QUEUE_LIFE: Duration = Duration::from_secs(3_600);

/// The first word of every canary's app key.
pub const APP: &str = "delayline-canary";
