//! Asking a broker about itself.

use crate::{
    compare::About,
    management::{ManagementApi, ManagementError},
};
use delayline_amqp::Session;
use delayline_settings::{Management, NO_MANAGEMENT};

/// What the broker says about itself. What we lack the user tag for stays open; nothing here
/// is an error.
pub(super) fn about(session: &Session, management: Option<&Management>) -> (About, Vec<String>) {
    let mut about = About { version: session.server_version(), ..About::default() };
    let mut unchecked = Vec::new();
    let Some(api) = management.and_then(|settings| ManagementApi::new(settings).ok()) else {
        unchecked.push(format!("feature flags: {NO_MANAGEMENT}"));
        return (about, unchecked);
    };
    let mut keep = |what: &str, error: ManagementError| unchecked.push(format!("{what}: {error}"));
    match api.feature_flags() {
        Ok(flags) => about.flags = Some(flags),
        Err(error @ ManagementError::Unreachable { .. }) => {
            keep("feature flags and the number of nodes", error);
            return (about, unchecked);
        }
        Err(error) => keep("feature flags", error),
    }
    match api.nodes() {
        Ok(nodes) => about.nodes = Some(nodes.len()),
        Err(error) => keep("the number of nodes, and so of replicas", error),
    }
    (about, unchecked)
}
