//! Comparing a broker with the wanted set.
//!
//! [`Observed`] is what a vhost holds; comparing it with a
//! [`Topology`](delayline_core::topology::Topology) gives [`Difference`]s, and [`findings`] makes
//! one finding of those that have one fault behind them.

mod cause;
mod difference;
mod earlier;
mod harm;
mod journals;
mod observed;
mod policy;
mod recalls;
#[cfg(test)]
mod standing;
mod suitable;

pub use cause::{findings, named};
pub use difference::{Difference, EARLIER_REMEDY};
pub(crate) use harm::landing_policies;
pub use observed::Observed;
pub use suitable::{About, forgery, retries_natively, series, unsuitable};
