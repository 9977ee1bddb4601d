//! The broker's AMQP side. No other module names the client library.
//!
//! `amiquip` is the only synchronous AMQP 0-9-1 client for Rust that still builds, and it has
//! traps, which this module works around:
//!
//! - it resolves and connects without `TCP_NODELAY` and without time limits, so
//!   `connection` makes the socket itself;
//! - its helper that puts confirms in order reports some nacks as acks, so `publisher` passes on
//!   raw confirms;
//! - publishing blocks without a limit once 16 MiB wait to be written, so that limit is off;
//! - closing a connection or channel can block for ever while the broker is in
//!   alarm, so both happen on a helper thread with a deadline;
//! - it waits for answers without a limit, so `session` cuts the socket of a
//!   connection that does not answer in time (`connection::line`);
//! - it logs the password, so it gets asterisks, and `connection::login` replaces them on the way into
//!   the socket;
//! - it reads until no bytes are left and sends no heartbeat meanwhile, so `connection::turns` limits how long
//!   it reads at a time;
//! - after the connection is lost, channels report only that it is gone; the cause is fetched from
//!   the connection.

mod arrivals;
pub mod broker;
mod connection;
mod consumer;
mod convert;
mod error;
mod outstanding;
mod publisher;
mod session;
pub mod tls;
pub mod v1;

pub use connection::{Line, frames};
pub use consumer::{Consumer, Delivery, Next, settle};
pub use error::{AmqpError, CRASH};
pub use outstanding::Outstanding;
pub use publisher::{Event, Publisher, Returned, Woken};
pub use session::{
    Browser, HAND_OVER, Page, Place, ProbeAnswer, QueueDepth, STREAM_OFFSET, Session, StreamStart, Turned,
};
