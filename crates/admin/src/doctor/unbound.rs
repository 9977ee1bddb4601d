//! Applications that were registered and that nothing is bound for any more.

use std::collections::BTreeSet;

use crate::{
    apps::{Unbound, unbound},
    compare::named,
    doctor::{
        facts::Facts,
        walk::{End, Route},
    },
    finding::{Finding, FindingCode},
};
use delayline::topology::Topology;

/// Without the dispatch exchange nobody is bound, and that is the finding.
pub(super) fn check(topology: &Topology, facts: &Facts, targets: &[Route<'_>], vhost: &str) -> Vec<Finding> {
    let Some(grants) = &facts.grants else { return Vec::new() };
    let dispatch = topology.names().dispatch();
    if !facts.observed.exchanges.iter().any(|exchange| exchange.name == dispatch) {
        return Vec::new();
    }
    let reached: BTreeSet<_> = targets
        .iter()
        .filter_map(|target| match &target.end {
            End::Queue(queue) => Some(queue.name.as_str()),
            End::Nowhere(_) | End::Back(_) => None,
        })
        .collect();
    let found = unbound(topology, &facts.observed, (grants, vhost), &reached);
    let (unbound, missing): (Vec<_>, Vec<_>) = found.into_iter().partition(|it| it.queue_stands);
    let group = |group: Vec<Unbound>, [one, many]: [&str; 2], then: &str| {
        let queue = |it: &Unbound| format!("queue `{}`", it.queue);
        let (what, them) = if group.len() == 1 { (one, "it") } else { (many, "them") };
        let users = named(group.iter().map(|it| format!("user `{}`", it.user)));
        let detail = |it: &Unbound| format!("{}, which user `{}` may consume", queue(it), it.user);
        let mut finding = Finding::new(
            FindingCode::AppUnbound,
            named(group.iter().map(queue)),
            format!("{what}, although {users} may consume {them}: what is due for {them} {then}"),
            "run `delayline app add` again with the flags that the application was registered with; if it is no \
             longer used, `delayline app remove` takes its user's permissions away",
        );
        if group.len() > 1 {
            finding.details = group.iter().map(detail).collect();
        }
        (!group.is_empty()).then(|| finding.about(group.iter().filter_map(|it| it.app.as_ref())))
    };
    let missing = group(missing, ["it is missing", "they are missing"], "does not arrive");
    let unbound =
        group(unbound, ["it is not bound", "they are not bound"], "ends up in the unroutable queue");
    missing.into_iter().chain(unbound).collect()
}
