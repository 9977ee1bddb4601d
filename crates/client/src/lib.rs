//! Publishing delayed messages, recalling and retrying them. Failed connections and brokers are
//! handled.
//!
//! The [`router`] publishes with confirms. [`recall`] takes messages back. [`relay`] takes messages
//! from a queue and publishes their successors; [`retry`] and [`gateway`] are built on it. The
//! crate `delayline` re-exports the parts for applications.

pub mod gateway;
pub mod recall;
pub mod relay;
pub mod retry;
pub mod router;
mod target;

pub use router::Router;
pub use target::Target;
