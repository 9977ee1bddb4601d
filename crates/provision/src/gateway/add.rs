//! Adding a gateway.

use delayline_amqp::Session;
use delayline_broker::{Scope, Snapshot};
use delayline_core::{
    codec::AppKeyError,
    topology::{Endpoint, ExchangeKind, Names, Object, Topology},
};
use delayline_settings::Settings;
use serde::Serialize;

use super::api;
use crate::{engine::AddedStep, engine::Applied, engine::Found, engine::Hands, engine::Plan, engine::Step};
use delayline_inspect::names_among;
use delayline_messages::{error::AdminError, error::connect, examine::Conflict};

/// The result, or the planned result.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct GatewayAdded {
    /// Whether anything may have changed.
    pub outcome: Applied,
    /// The exchange that consumers are bound to.
    pub gateway: String,
    /// The exchange that publishers use.
    pub entry: String,
    /// The parts of the gateway, in the order in which they were made.
    pub steps: Vec<AddedStep>,
    /// The conflicts. If there are any, nothing was changed.
    pub conflicts: Vec<String>,
    /// Whether the obstacle is that the set is not installed.
    pub no_set: bool,
}

/// Adds a gateway whose consumers are bound to an exchange of this kind. Existing objects stay unchanged,
/// so adding again changes nothing, and makes missing objects.
///
/// # Errors If no gateway can have this name, the broker refuses or is lost, or there is no management API;
/// adding again continues from there.
pub fn add_gateway(
    settings: &Settings,
    topology: &Topology,
    name: &str,
    kind: ExchangeKind,
    dry_run: bool,
) -> Result<Result<GatewayAdded, AppKeyError>, AdminError> {
    let api = api(settings)?;
    let mut session = connect(&settings.broker)?;
    let entry = [Endpoint::Exchange(Names::gateway_entry(name))];
    let snapshot = Snapshot::fetch(&api, &settings.broker.vhost, Scope::Set(topology, &entry))?;
    let (mut added, steps) = match plan(topology, (name, kind), &snapshot, &mut session, false)? {
        Ok(planned) => planned,
        Err(error) => return Ok(Err(error)),
    };
    added.outcome = match added.outcome {
        Applied::Installed if dry_run => Applied::DryRun,
        outcome => outcome,
    };
    if added.outcome == Applied::Installed {
        let set = &topology.settings().set;
        let next = format!(
            "`{}` continues, and `{}` removes them",
            set.command(&["gateway", "add", name, "--type", kind.as_str()]),
            set.command(&["gateway", "remove", name])
        );
        let mut hands = Hands { session: &mut session, api: Some(&api), vhost: &snapshot.vhost };
        steps.apply(&mut hands, &next, |_| {})?;
    }
    Ok(Ok(added))
}

/// What adding would do, and the steps; nothing is changed. With `set_follows`, the set need not exist yet. The
/// snapshot has the bindings of the gateway's entry.
pub(crate) fn plan(
    topology: &Topology,
    (name, kind): (&str, ExchangeKind),
    snapshot: &Snapshot,
    session: &mut Session,
    set_follows: bool,
) -> Result<Result<(GatewayAdded, Plan), AppKeyError>, AdminError> {
    let objects = match topology.gateway(name, kind) {
        Ok(objects) => objects,
        Err(error) => return Ok(Err(error)),
    };
    let mut added = GatewayAdded {
        outcome: Applied::Installed,
        gateway: name.to_owned(),
        entry: Names::gateway_entry(name),
        steps: Vec::new(),
        conflicts: Vec::new(),
        no_set: false,
    };
    for exchange in [topology.names().entry(), topology.names().dispatch()] {
        if !set_follows && !snapshot.exchanges.contains_key(&exchange) {
            added.no_set = true;
            let set = &topology.settings().set;
            added.conflicts.push(format!(
                "exchange `{exchange}` is missing: set `{set}` is not installed in this vhost ({})",
                set.command(&["install"])
            ));
        }
    }
    added.conflicts.extend(not_a_name(topology, snapshot, name));
    if !added.conflicts.is_empty() {
        added.outcome = Applied::Conflict;
        return Ok(Ok((added, Plan::default())));
    }
    let judge = |step: &Step, found| {
        Ok(match (step, found) {
            (Step::Object(object), Found::Conflict(conflict)) => {
                Found::Blocked(in_the_way(object, &conflict))
            }
            (_, found) => found,
        })
    };
    let steps = objects.into_iter().map(Step::Object);
    let plan = Plan::examine(steps, Some(snapshot), session, |_| true, judge)?;
    added.steps.extend(plan.steps());
    added.conflicts.extend(plan.conflicts());
    added.outcome = plan.outcome(false);
    Ok(Ok((added, plan)))
}

/// Why this cannot be the name of a gateway here.
fn not_a_name(topology: &Topology, snapshot: &Snapshot, name: &str) -> Option<String> {
    if name.starts_with("amq.") {
        return Some(format!(
            "names that begin with `amq.` are reserved for the broker, so `{}` cannot be declared: choose \
             another name",
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
    names_among(topology.names(), snapshot.queues.keys()).iter().find_map(clash)
}

/// The conflict, and the remedy.
fn in_the_way(object: &Object, conflict: &Conflict) -> String {
    match object {
        Object::Exchange(_) if conflict.found == "x-delayed-message" => format!(
            "{conflict}: it is an exchange of the delayed-message plugin. Add the gateway under another name, \
             or delete this exchange once it holds no messages (docs/how-to/come-from/plugin.md)"
        ),
        _ => conflict.to_string(),
    }
}
