//! Adding a gateway.

use serde::Serialize;

use crate::{
    AddedStep, AdminError, Applied, ObjectState,
    compare::Observed,
    connect, doing, examine,
    gateway::{api, list::names_among, stands},
    install::{declare, describe},
    observe_with,
};
use delayline_core::{
    codec::AppKeyError,
    topology::{ExchangeKind, Names, Object, Topology},
};
use delayline_settings::Settings;

/// What was done, or would be.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct GatewayAdded {
    /// Whether anything may have changed.
    pub outcome: Applied,
    /// The exchange that consumers are bound to.
    pub gateway: String,
    /// The exchange that publishers use.
    pub entry: String,
    /// What the gateway consists of now, in the order in which it was made.
    pub steps: Vec<AddedStep>,
    /// What is in the way. If there is anything, nothing was changed.
    pub conflicts: Vec<String>,
    /// Whether the obstacle is that the set is not installed.
    pub no_set: bool,
}

/// Adds a gateway whose consumers are bound to an exchange of this kind. What is there
/// already stays as it is, so adding again changes nothing, and repairs what is missing.
///
/// # Errors
/// If no gateway can have this name, the broker refuses or is lost, or there is no management
/// API; adding again continues from there.
pub fn add_gateway(
    settings: &Settings,
    topology: &Topology,
    name: &str,
    kind: ExchangeKind,
    dry_run: bool,
) -> Result<Result<GatewayAdded, AppKeyError>, AdminError> {
    add(settings, topology, (name, kind), dry_run, false)
}

/// The same; with `set_follows`, the set need not be there yet.
pub(crate) fn add(
    settings: &Settings,
    topology: &Topology,
    (name, kind): (&str, ExchangeKind),
    dry_run: bool,
    set_follows: bool,
) -> Result<Result<GatewayAdded, AppKeyError>, AdminError> {
    let objects = match topology.gateway(name, kind) {
        Ok(objects) => objects,
        Err(error) => return Ok(Err(error)),
    };
    let api = api(settings)?;
    let mut session = connect(&settings.broker)?;
    let observed = observe_with(&api, &settings.broker.vhost)?;
    let mut added = GatewayAdded {
        outcome: Applied::Installed,
        gateway: name.to_owned(),
        entry: Names::gateway_entry(name),
        steps: Vec::new(),
        conflicts: Vec::new(),
        no_set: false,
    };
    let standing: Vec<_> = observed.exchanges.iter().map(|exchange| exchange.name.as_str()).collect();
    for exchange in [topology.names().entry(), topology.names().dispatch()] {
        if !set_follows && !standing.contains(&exchange.as_str()) {
            added.no_set = true;
            let set = &topology.settings().set;
            added.conflicts.push(format!(
                "exchange `{exchange}` is missing: set `{set}` is not installed in this vhost ({})",
                set.command("install")
            ));
        }
    }
    added.conflicts.extend(not_a_name(topology, &observed, name));
    if !added.conflicts.is_empty() {
        added.outcome = Applied::Conflict;
        return Ok(Ok(added));
    }
    let mut missing = Vec::new();
    for object in &objects {
        let what = describe(object);
        let state = match observed.has(object) {
            true => examine::object(&mut session, object).map_err(doing(format!("looking at {what}")))?,
            // Asking for something that is missing writes an error into the broker's log.
            false => examine::missing(object),
        };
        let stood = match state {
            Some(ObjectState::Same) => true,
            Some(ObjectState::Different(conflict)) => {
                added.conflicts.push(in_the_way(object, conflict.to_string(), &conflict.found));
                true
            }
            Some(ObjectState::Missing) => false,
            None => stands(&observed, object),
        };
        if !stood {
            missing.push(object);
        }
        added.steps.push(AddedStep { what, stood, replaces: None });
    }
    if !added.conflicts.is_empty() {
        added.outcome = Applied::Conflict;
    } else if missing.is_empty() {
        added.outcome = Applied::Unchanged;
    } else if dry_run {
        added.outcome = Applied::DryRun;
    } else {
        for object in missing {
            declare(&mut session, object)?;
        }
    }
    Ok(Ok(added))
}

/// Why this cannot be the name of a gateway here.
fn not_a_name(topology: &Topology, observed: &Observed, name: &str) -> Option<String> {
    if name.starts_with("amq.") {
        return Some(format!(
            "names that begin with `amq.` are the broker's own, and nobody can declare `{}`: choose another \
             name",
            Names::gateway_entry(name)
        ));
    }
    let clash = |other: &String| {
        let entry = Names::gateway_entry(other);
        let exchange = if Names::gateway_entry(name) == *other { other } else { &entry };
        (exchange == other || entry == name).then(|| {
            format!(
                "exchange `{exchange}` would be the entry of one gateway and the exchange of another's \
                 consumers, since there is a gateway `{other}`: choose another name"
            )
        })
    };
    names_among(topology.names(), &observed.queues).iter().find_map(clash)
}

/// What is in the way, and what to do about it.
fn in_the_way(object: &Object, conflict: String, found: &str) -> String {
    match object {
        Object::Exchange(_) if found == "x-delayed-message" => format!(
            "{conflict}: it is an exchange of the delayed-message plugin. Add the gateway under another name, \
             or delete this exchange once it holds no messages (docs/migrate/plugin.md)"
        ),
        _ => conflict,
    }
}
