//! The broker's management HTTP API: the only module that speaks HTTP to it.
//!
//! AMQP cannot list bindings, arguments or stuck dead letters; this API can. It is a plugin, so every
//! caller must work without it, and must report that it is missing.

mod bindings;
mod client;
mod model;
mod objects;
mod policies;
#[cfg(test)]
pub(crate) mod pretend;
mod shovels;
mod silence;
mod users;

pub use client::{ManagementApi, ManagementError, http_failure};
pub use model::{
    Alarm, BindingInfo, ChannelInfo, ConnectionInfo, DeprecatedFeature, ExchangeInfo, FeatureFlag,
    MessageStats, NodeInfo, Overview, Permission, PlacedQueue, QueueInfo, Rate, TopicPermission, UserInfo,
};
pub use policies::{Policy, PolicyKind};
pub use shovels::{Address, Shovel, ShovelEnd};
