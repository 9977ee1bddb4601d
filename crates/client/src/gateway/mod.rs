//! A gateway for messages with the header `x-delay`, as the delayed-message plugin takes them.
//!
//! Applications that were written for the plugin publish to one exchange with any routing key
//! and a delay in milliseconds in the header `x-delay`; their consumers are bound to the same
//! exchange. A gateway gives them two: publishers use `<name>.in`, a fanout exchange in front
//! of a queue, and consumers stay bound to `<name>`, now of a plain type. In between, the
//! [`Gateway`] service takes each message, lets it wait in the levels for its whole seconds,
//! holds it for the rest, and publishes it to `<name>` with its own routing key, properties
//! and headers.
//!
//! A message is acknowledged only after its successor is confirmed, so it arrives at least
//! once. It is never early by more than a millisecond, by the clocks of the daemons.

mod parcel;
mod service;
mod set_aside;
mod stats;
mod x_delay;

pub use service::Gateway;
pub use set_aside::{Remains, SetAside};
pub use stats::{GatewayCounters, GatewayCounts, GatewayStats};
pub use x_delay::X_DELAY;
