//! The pure part of delayline: nothing here connects to a broker.
//!
//! [`codec`] turns delays into routing keys. [`topology`] is the wanted state of a vhost as data.
//! [`message`] defines the contents of a message and its form on the wire. [`retry`] decides
//! whether a failed message is retried or parked.

pub mod backoff;
pub mod codec;
pub mod duration;
pub mod histogram;
pub mod ledger;
pub mod message;
pub mod percent;
pub mod retry;
pub mod shell;
pub mod supervise;
pub mod topology;

pub use message::Message;
