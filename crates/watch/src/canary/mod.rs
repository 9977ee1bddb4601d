//! Small messages of our own that show whether delays are kept.
//!
//! A [`Canary`] keeps sending probes through the levels and measures how late each
//! comes back, which do not, and which come twice. What it sends is fixed by a
//! [`ProbePlan`], how often by an [`Interval`], and what it concludes by a [`Ledger`]: all three
//! are pure. Its messages have an app key and a queue of their own, so that no
//! application ever sees one.
//!
//! # The queue
//!
//! Each canary takes a *slot*: the queue `<set>.canary.<slot>`, bound for the app key
//! `delayline-canary.<slot>`. So several daemons do not count each other's messages. A second,
//! exclusive queue, `<set>.canary.<slot>.taken`, is bound to nothing and shows that the slot is
//! taken. The queue outlives a restart of the daemon by [`QUEUE_LIFE`], so that messages on their way
//! then end there and not among the unroutable messages. A canary that starts knows nothing of the
//! messages of an earlier one, expects none of them, and leaves them out of its figures.
//!
//! # Not in the way of others
//!
//! The queue is a quorum queue with a replica on each of up to nine nodes, so it answers as long as
//! most nodes run. If it does not answer, few messages are on their way to it, over all slots:
//! not enough to stop a level. After a start, a probe is sent only after its own delay, when the
//! messages of an earlier canary in this slot are due.

mod connection;
mod flights;
mod ledger;
mod plan;
mod runner;
mod watched;

use std::time::Duration;

pub use connection::{CanaryConnection, CanaryError, Received};
pub use ledger::{Arrival, Figures, Ledger, ProbeFigures};
pub use plan::{HORIZON, Interval, Probe, ProbePlan};
pub use runner::Canary;
pub use watched::{CanaryState, Watched};

/// How long after it was due a message counts as overdue.
pub const GRACE: Duration = Duration::from_secs(5);

/// How long after it was due a message counts as missing.
pub const MISSING_AFTER: Duration = Duration::from_secs(60);

/// How long a canary's queue outlives it.
pub const QUEUE_LIFE: Duration = Duration::from_secs(3_600);

/// How many canaries can run on one set at the same time.
pub const SLOTS: u8 = 6;

/// The first word of every canary's app key.
pub const APP: &str = delayline_broker::CANARY_APP;
