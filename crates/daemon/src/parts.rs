//! The parts of a daemon.

use delayline_core::retry::SharedPolicies;

/// The parts of a daemon. The settings say whether it has a canary and a page.
#[derive(Debug, Clone)]
pub struct Parts {
    /// The retry service, with these policies, and the number of messages to hold at a time.
    pub retries: Option<(SharedPolicies, u16)>,
    /// Gateways.
    pub gateways: bool,
    /// Publishing schedules.
    pub schedules: bool,
    /// Sweeping up expired recalls.
    pub sweeping: bool,
    /// An index of scheduled messages; only the page and its API answer from it.
    pub index: bool,
    /// Unsticking queues, and how many applications that block a level may be paused at a time.
    pub unsticking: Option<usize>,
}
