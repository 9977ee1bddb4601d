//! Delays, app keys and routing keys: the wire contract as pure functions.
//!
//! Nothing here talks to a broker. A delay is a number of whole seconds that fits 28 bits;
//! written as seven words of four bits in a topic routing key, it steers a message through
//! the level queues, one queue for each set bit.

mod app_key;
mod delay;
mod level;
mod message_id;
mod rounding;
mod routing_key;

pub use app_key::{AppKey, AppKeyError};
pub use delay::{Delay, DelayError};
pub use level::{Level, LevelError};
pub use message_id::{MessageId, MessageIdError};
pub use rounding::{Tolerance, ToleranceError};
pub use routing_key::{RoutingKey, RoutingKeyError};

// For the other crates of this workspace; not part of the stable API.
#[doc(hidden)]
pub use routing_key::{FOUR_BITS, encode};

pub(crate) use routing_key::check_room;

/// Number of delay levels, and so of bits in a routing key.
pub const LEVELS: u8 = 28;

/// Bits in each word of a routing key. A broker's topic match does three look-ups for each
/// word, so fewer words are cheaper; more bits in a word need more bindings.
pub const WORD_BITS: u8 = 4;

/// Words of a routing key that spell the delay.
pub const WORDS: u8 = LEVELS / WORD_BITS;
