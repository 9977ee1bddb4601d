//! A receiver for AMQP 1.0.
//!
//! From RabbitMQ 4.0 on, every broker speaks AMQP 1.0 in addition to 0-9-1. A message that was
//! published over it may contain values that 0-9-1 cannot carry: a char or a UUID in a header, a
//! list with an unsigned number of 64 bits, a content type of 300 bytes. The broker closes every
//! 0-9-1 connection to which it delivers such a message (541), requeues the message, and delivers
//! it to the next. A consumer cannot reject or acknowledge a message that never arrives. So such
//! messages are read over AMQP 1.0, as they were published.
//!
//! This implements only the part of AMQP 1.0 that is needed: one connection, one session, one
//! receiving link. It is not a general client.

mod foreign;
mod frames;
mod oddity;
mod receiver;
mod wire;

pub use foreign::Foreign;
pub use oddity::Oddity;
pub use receiver::{Disposition, Receiver};
