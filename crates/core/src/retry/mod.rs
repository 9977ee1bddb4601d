//! When a failed message is tried again, and when it is parked.
//!
//! A [`Policy`] says so; [`Policies`] hold one for each application and reason of failure. A
//! [`Failure`] is what is known about a failed message, and together with a policy it makes a
//! [`Decision`].

mod decision;
mod failure;
mod policies;
mod policy;

pub use decision::{Decision, ParkReason};
pub use failure::{Failure, History};
pub use policies::{Policies, SharedPolicies};
pub use policy::{Backoff, Jitter, Policy, Step};
