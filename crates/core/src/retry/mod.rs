//! When a failed message is tried again, and when it is parked.
//!
//! A [`Policy`] decides this. [`Policies`] hold a policy for each application and reason of
//! failure. A [`Failure`] describes a failed message. A failure and a policy make a [`Decision`].

mod decision;
mod failure;
mod policies;
mod policy;

pub use decision::{Decision, ParkReason};
pub use failure::{Failure, History};
pub use policies::{Policies, SharedPolicies};
pub use policy::{Backoff, Jitter, Policy, Step};
