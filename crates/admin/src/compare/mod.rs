//! Comparing a broker with the wanted set.
//!
//! [`Observed`] is what a vhost holds; comparing it with a
//! [`Topology`](delayline::topology::Topology) gives [`Finding`]s, and [`causes`] groups
//! those that have one fault behind them.

mod cause;
mod earlier;
mod finding;
mod harm;
mod observed;
mod policy;
#[cfg(test)]
mod standing;
mod suitable;

pub use cause::{Cause, causes, named};
pub use finding::EARLIER_REMEDY;
pub use finding::Finding;
pub(crate) use harm::landing_policies;
pub use observed::Observed;
pub use suitable::{About, forgery, unsuitable};
