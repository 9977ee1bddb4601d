//! Adding a gateway.

use serde::Serialize;

use crate::{
    AddedStep, AdminError, Applied, ObjectState, doing, examine,
    gateway::{api, stands},
    install::{declare, describe},
    observe_with,
};
use delayline::{
    amqp::Session,
    codec::AppKeyError,
    topology::{ExchangeKind, Object, Topology},
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
    let mut session = Session::open(&settings.broker).map_err(doing("connecting"))?;
    let observed = observe_with(&api, &settings.broker.vhost)?;
    let mut added = GatewayAdded {
        outcome: Applied::Installed,
        gateway: name.to_owned(),
        entry: delayline::topology::Names::gateway_entry(name),
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

/// What is in the way, and what to do about it.
fn in_the_way(object: &Object, conflict: String, found: &str) -> String {
    match object {
        Object::Exchange(_) if found == "x-delayed-message" => format!(
            "{conflict}: it is an exchange of the delayed-message plugin. Add the gateway under another name, \
             or delete this exchange once it holds no messages"
        ),
        _ => conflict,
    }
}
