//! The broker's management HTTP API: the only place that speaks HTTP to it.
//!
//! AMQP cannot list bindings, arguments or stuck dead letters; this API can. It is a plugin,
//! so everything that uses it has to cope without it, and to say so.

mod client;
mod model;
mod objects;
mod policies;
mod silence;
mod users;

pub use client::{ManagementApi, ManagementError, http_failure};
pub use model::{
    BindingInfo, ChannelInfo, DeprecatedFeature, ExchangeInfo, FeatureFlag, MessageStats, NodeInfo, Overview,
    Permission, QueueInfo, Rate, TopicPermission, UserInfo,
};
pub use policies::{Policy, PolicyKind};
