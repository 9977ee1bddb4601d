//! Retries with backoff.
//!
//! A [`Policy`] determines when a failed message is tried again and when it is parked. [`Policies`]
//! hold a policy for each application and reason of failure. A [`Failure`] describes a failed
//! message. A failure and a policy make a [`Decision`]. All of that is pure. The [`Service`]
//! carries out decisions for applications in any language, which only reject messages that they
//! could not process. A [`Worker`] does the same inside a consumer written in Rust.

mod service;
mod stats;
mod tasks;
mod worker;

pub use delayline_core::retry::*;
pub use service::Service;
pub use stats::{AppStats, RetryStats};
pub use worker::{Ended, Handled, Job, StopHandle, Worker};
