//! The reports of a broker's management API, and conclusions from them.
//!
//! [`ManagementApi`] is the only client of that API. A [`Snapshot`] is its report of one vhost, fetched
//! once and indexed. Everything else is pure: the policies that apply to a queue, the rights of a user, the
//! routes of messages, and the differences of a set.

mod about;
mod clash;
mod compare;
mod daemon;
mod exact;
mod fetch;
mod grants;
mod leader;
mod limit;
mod management;
mod names;
mod pattern;
mod policy;
mod retention;
mod route;
mod snapshot;
mod stall;
mod survey;

pub use about::{About, NO_STATISTICS, forgery, retries_natively, series};
pub use clash::Clash;
pub use compare::{Difference, REPLACED, earlier_remedy, is_federated, is_judged, only_replicas, unsuitable};
pub use daemon::{Duties, daemon_rights, is_of_daemon, may_pause};
pub use exact::{
    NOTHING, RECALL_ID, alternatives, any_of, apps_in, delays_pattern, exactly, names_in, names_pattern,
};
pub use fetch::Scope;
pub use grants::{ANY_APP, Grants, permits};
pub use leader::{IfNew, Leaders, mark_leaderless};
pub use limit::{Limit, limit};
pub use management::{
    Address, Alarm, BindingInfo, ChannelInfo, ConnectionInfo, DeprecatedFeature, ExchangeInfo, FeatureFlag,
    ManagementApi, ManagementError, MessageStats, NodeInfo, Overview, Permission, PlacedQueue, Policy,
    PolicyKind, QueueInfo, Rate, Shovel, ShovelEnd, TopicPermission, UserInfo, http_failure,
};
pub use names::{CANARY_APP, app_names, is_canary_app, is_of_program, set_names};
pub use pattern::{Pattern, Unreadable, escape};
pub use policy::Policies;
pub use retention::Retention;
pub use route::{End, Route, layout_routes, refuses, routes, streams_behind};
pub use snapshot::Snapshot;
pub use stall::{APART, Look, PREFETCH, RECENT, Stall, begin, is_open, moves, remembered, stands_still};
pub use survey::{OLD, QueueCounts, Reading, SeenSet, Survey};
