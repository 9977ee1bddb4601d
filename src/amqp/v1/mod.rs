//! A receiver for AMQP 1.0.
//!
//! From RabbitMQ 4.0 on every broker speaks AMQP 1.0 beside 0-9-1. A message that was published over it may hold
//! what 0-9-1 has no form for: a char or a UUID in a header, a list with an unsigned number of 64
//! bits, a content type of 300 bytes.
//! The broker closes every 0-9-1 connection that it hands such a message to (541), puts the
//! message back to where it was, and hands it to the next. Nobody can reject or acknowledge
//! what never arrives, so that it is read over AMQP 1.0, which was its way in as well.
//!
//! This is as much of AMQP 1.0 as that takes: one connection, one session, one link that
//! receives. It is no client to build on.

mod foreign;
mod frames;
mod oddity;
mod receiver;
mod wire;

pub use foreign::Foreign;
pub use oddity::Oddity;
pub use receiver::{Outcome, Receiver};
