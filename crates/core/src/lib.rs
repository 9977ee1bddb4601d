//! The pure part of delayline: nothing here talks to a broker.
//!
//! [`codec`] turns delays into routing keys; [`topology`] is the wanted state of a vhost as
//! data; [`message`] is what a message contains and its form on the wire; [`retry`] decides
//! what becomes of a failed message.

pub mod backoff;
pub mod codec;
pub mod histogram;
pub mod message;
pub mod percent;
pub mod retry;
pub mod shell;
pub mod topology;

pub use message::Message;
