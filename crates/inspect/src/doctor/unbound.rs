//! Registered applications without a binding.

use std::collections::BTreeSet;

use crate::{
    apps::Unbound, apps::unbound, doctor::evidence::Evidence, finding::Finding, finding::FindingCode,
};
use delayline_broker::{End, Route};
use delayline_core::topology::Topology;
use delayline_messages::number::named;

/// Without the dispatch exchange no application is bound, and only that is the finding.
pub(super) fn check(topology: &Topology, evidence: &Evidence, targets: &[Route<'_>]) -> Option<Finding> {
    let dispatch = topology.names().dispatch();
    let (grants, snapshot) = (evidence.snapshot.grants.as_ref()?, &evidence.snapshot);
    snapshot.exchanges.get(&dispatch)?;
    let reached: BTreeSet<_> = targets
        .iter()
        .filter_map(|target| match &target.end {
            End::Queue(queue) => Some(queue.name.as_str()),
            End::Nowhere(_) | End::Back(_) => None,
        })
        .collect();
    let found = unbound(topology, snapshot, grants, &reached);
    let (first, others) = found.split_first()?;
    let what = match others.is_empty() {
        true => format!("{}; its due messages end up in the unroutable queue", state(first)),
        false => "they have no binding; their due messages end up in the unroutable queue".into(),
    };
    let set = &topology.settings().set;
    let only = Some(first).filter(|_| others.is_empty());
    let app = only.and_then(|it| it.app.as_ref()).map_or("APP", |app| app.as_str());
    let user = only.map_or("USER", |it| it.user.as_str());
    let advice = format!(
        "run `{}` again with the flags that it was registered with, or apply the platform file that contains \
         it. If the application is no longer used, remove its user's permissions: `{}`",
        set.command(&["app", "add", app]),
        set.command(&["app", "remove", app, "--user", user])
    );
    let mut finding = Finding::new(FindingCode::AppUnbound, named(found.iter().map(subject)), what, advice);
    if !others.is_empty() {
        finding.details = found.iter().map(|it| format!("{}: {}", subject(it), state(it))).collect();
    }
    Some(finding.about(found.iter().filter_map(|it| it.app.as_ref())))
}

fn subject(unbound: &Unbound) -> String {
    match &unbound.app {
        Some(app) => format!("application `{app}`"),
        None => format!("application of user `{}`", unbound.user),
    }
}

fn state(unbound: &Unbound) -> String {
    let Unbound { user, queue, queue_stands, .. } = unbound;
    let missing = if *queue_stands { "not bound" } else { "missing" };
    format!("queue `{queue}`, which its user `{user}` may consume, is {missing}")
}
