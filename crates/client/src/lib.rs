//! Publishing delayed messages, recalling and retrying them, through all failures of
//! connections and brokers.
//!
//! The [`router`] publishes with confirms; [`recall`] takes messages back; [`relay`] takes
//! messages from a queue and publishes their successors, which [`retry`] and [`gateway`] are
//! built on. The crate `delayline` offers applications what they need of it.

pub mod gateway;
pub mod recall;
pub mod relay;
pub mod retry;
pub mod router;

pub use router::Router;
