//! Names only, for callers that offer a choice.

use crate::management::{BindingInfo, ManagementApi, ManagementError};
use delayline_core::{
    codec::{Level, RoutingKey},
    topology::{Endpoint, Names, SetName, Topology},
};

/// The app keys of canaries begin with this word, and end with the number of the canary.
pub const CANARY_APP: &str = "delayline-canary";

/// Whether test messages of a canary have this app key.
#[must_use]
pub fn is_canary_app(app: &str) -> bool {
    app.strip_prefix(CANARY_APP).is_some_and(|rest| rest.starts_with('.'))
}

/// Whether this is the queue of a program of delayline, and not of an application: of a canary or a gateway.
#[must_use]
pub fn is_of_program(names: &Names, bound: &Endpoint) -> bool {
    matches!(bound, Endpoint::Queue(queue) if names.is_canary(queue) || names.gateway_of(queue).is_some())
}

/// The keys of the applications of a set, in order; those of canaries and gateways, which are
/// the set's own, are not among them.
///
/// # Errors
/// If the management API cannot be asked.
pub fn app_names(
    api: &ManagementApi,
    vhost: &str,
    topology: &Topology,
) -> Result<Vec<String>, ManagementError> {
    let names = topology.names();
    Ok(apps_among(names, &api.bindings_from(vhost, &names.dispatch())?))
}

/// The names of the sets of a vhost, in order.
///
/// # Errors
/// If the management API cannot be asked.
pub fn set_names(api: &ManagementApi, vhost: &str) -> Result<Vec<String>, ManagementError> {
    let exchanges: Vec<_> =
        api.exchange_definitions(vhost)?.into_iter().map(|exchange| exchange.name).collect();
    Ok(sets_among(&exchanges))
}

fn apps_among(names: &Names, bindings: &[BindingInfo]) -> Vec<String> {
    let of_program = |it: &&BindingInfo| is_of_program(names, &Endpoint::Queue(it.destination.clone()));
    let apps = bindings.iter().filter(|it| !of_program(it));
    let apps = apps.filter_map(|it| RoutingKey::app_of_pattern(&it.routing_key).ok());
    sorted(apps.map(|app| app.to_string()).collect())
}

/// A set has an exchange for dispatch, and one for each level.
fn sets_among(exchanges: &[String]) -> Vec<String> {
    let is_set = |set: &&str| {
        let Ok(name) = set.parse::<SetName>() else { return false };
        exchanges.contains(&Names::new(name).level_exchange(Level::TOP))
    };
    let sets = exchanges.iter().filter_map(|name| name.strip_suffix(".dispatch")).filter(is_set);
    sorted(sets.map(str::to_owned).collect())
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use delayline_core::topology::TopologySettings;

    #[test]
    fn applications_are_those_that_are_bound() {
        let topology = Topology::new(TopologySettings::default());
        let names = topology.names();
        let bound = |key: &str, destination: &str| BindingInfo {
            destination: destination.into(),
            routing_key: key.into(),
            ..BindingInfo::default()
        };
        let pattern = |app: &str| RoutingKey::binding_pattern(&app.parse().unwrap());
        let bindings = [
            bound(&pattern("shop"), "shop"),
            bound(&pattern("billing"), "billing"),
            bound(&pattern("billing"), "also"),
            bound(&RoutingKey::recall_pattern(&"billing".parse().unwrap()), "delay.recall.billing"),
            bound(&pattern("delayline-canary.0"), &names.canary(0)),
            bound(&pattern("gateway.orders"), &names.gateway_due("orders")),
            bound("#", "tap"),
        ];
        assert_eq!(apps_among(names, &bindings), ["billing", "shop"]);
    }

    #[test]
    fn sets_have_levels() {
        let names =
            ["delay", "delay.dispatch", "delay.level.27", "mail.dispatch", "later.level.27", ".dispatch"];
        assert_eq!(sets_among(&names.map(str::to_owned)), ["delay"]);
    }
}
