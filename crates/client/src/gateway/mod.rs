//! A gateway for messages with the header `x-delay`, as the delayed-message plugin takes them.
//!
//! Applications for the plugin publish to one exchange with any routing key and a delay in
//! milliseconds in the header `x-delay`. Their consumers are bound to the same exchange. A gateway
//! has two exchanges instead. Publishers use `<name>.in`, a fanout exchange in front of a queue.
//! Consumers stay bound to `<name>`, which now has a plain type. Between the two, the [`Gateway`]
//! service takes each message and lets it wait in the levels for its whole seconds. It holds the
//! message for the rest, and publishes it to `<name>` with its own routing key, properties and
//! headers.
//!
//! A message is acknowledged only after its successor is confirmed, so it arrives at least once. By
//! the clocks of the daemons, it is early by at most a millisecond.

mod parcel;
mod service;
mod set_aside;
mod stats;
mod x_delay;

pub use service::Gateway;
pub use set_aside::{Remains, SetAside};
pub use stats::{GatewayCounters, GatewayCounts, GatewayStats};
pub use x_delay::X_DELAY;
