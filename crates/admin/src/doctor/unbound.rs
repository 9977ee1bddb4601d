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
use delayline_core::{shell::quoted, topology::Topology};

/// Without the dispatch exchange nobody is bound, and that is the finding.
pub(super) fn check(topology: &Topology, facts: &Facts, targets: &[Route<'_>]) -> Option<Finding> {
    let dispatch = topology.names().dispatch();
    let (grants, observed) = (facts.grants.as_ref()?, &facts.observed);
    observed.exchanges.iter().find(|exchange| exchange.name == dispatch)?;
    let reached: BTreeSet<_> = targets
        .iter()
        .filter_map(|target| match &target.end {
            End::Queue(queue) => Some(queue.name.as_str()),
            End::Nowhere(_) | End::Back(_) => None,
        })
        .collect();
    let found = unbound(topology, observed, grants, &reached);
    let (first, others) = found.split_first()?;
    let what = match others.is_empty() {
        true => format!("{}; what is due for it ends up in the unroutable queue", state(first)),
        false => {
            "nothing is bound for them any more; what is due for them ends up in the unroutable queue".into()
        }
    };
    let set = &topology.settings().set;
    let only = Some(first).filter(|_| others.is_empty());
    let app = only.and_then(|it| it.app.as_ref()).map_or("APP".into(), |app| quoted(app.as_str()));
    let user = only.map_or("USER".into(), |it| quoted(&it.user));
    let advice = format!(
        "run `{}` again with the flags that it was registered with; if the application is no longer used, take its \
         user's permissions away: `{}`",
        set.command(&format!("app add {app}")),
        set.command(&format!("app remove {app} --user {user}"))
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
