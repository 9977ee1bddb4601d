//! Delays, app keys and routing keys: the wire contract as pure functions.
//!
//! Nothing here connects to a broker. A delay is a number of whole seconds that fits in 28 bits.
//! Written as seven words of four bits in a topic routing key, it steers a message through the
//! level queues, one queue for each set bit.

mod app_key;
mod delay;
mod level;
mod message_id;
mod rounding;
mod routing_key;
mod shortcut;

pub use app_key::{AppKey, AppKeyError};
pub use delay::{Delay, DelayError};
pub use level::{Level, LevelError};
pub use message_id::{MessageId, MessageIdError};
pub use rounding::{Tolerance, ToleranceError};
pub use routing_key::{FOUR_BITS, RoutingKey, RoutingKeyError, encode};
pub use shortcut::{Hop, Shortcut};

pub(crate) use routing_key::check_room;
pub(crate) use shortcut::highest;

/// Number of delay levels, and so of bits in a routing key.
pub const LEVELS: u8 = 28;

/// Bits in each word of a routing key. A broker's topic match does three look-ups for each word, so
/// fewer words are cheaper. More bits in a word need more bindings.
pub const WORD_BITS: u8 = 4;

/// Words of a routing key that spell the delay.
pub const WORDS: u8 = LEVELS / WORD_BITS;
