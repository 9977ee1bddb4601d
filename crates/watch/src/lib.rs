//! Watches a set of delayline: the [`picture`] of its state at a moment, the [`canary`] that sends
//! messages through it, the [`metrics`] and the page ([`web`]).

pub mod canary;
pub mod metrics;
pub mod picture;
pub mod web;
