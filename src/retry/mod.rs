//! Retries with backoff.
//!
//! A [`Policy`] says when a failed message is tried again and when it is given
//! up; [`Policies`] hold one for each application and reason of failure.

mod policies;
mod policy;

pub use policies::{Policies, PoliciesError, SharedPolicies};
pub use policy::{Backoff, Jitter, Policy, Step};
