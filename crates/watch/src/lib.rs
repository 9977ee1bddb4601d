//! What watches a set of delayline: the [`picture`] of all that can be seen of it at one moment,
//! the [`canary`] that sends messages through it, the [`metrics`] and the page ([`web`]).

pub mod canary;
pub mod metrics;
pub mod picture;
pub mod web;
