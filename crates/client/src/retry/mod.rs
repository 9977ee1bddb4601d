//! Retries with backoff.
//!
//! A [`Policy`] says when a failed message is tried again and when it is parked; [`Policies`]
//! hold one for each application and reason of failure. A [`Failure`] is what is known about
//! a failed message, and together with a policy it makes a [`Decision`]: all of that is pure.
//! The [`Service`] carries out decisions for applications in any language, which only reject
//! what they could not process; a [`Worker`] does the same inside a consumer written in Rust.

mod service;
mod stats;
mod worker;

pub use delayline_core::retry::*;
pub use service::Service;
pub use stats::{AppStats, RetryStats};
pub use worker::{Handled, Job, Worker, WorkerFull};
