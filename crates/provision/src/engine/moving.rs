//! Moving an application's messages to another queue while they flow: without a gap and without a copy.

use std::{fmt, thread};

use delayline_amqp::{HAND_OVER, Session};
use delayline_broker::Snapshot;
use delayline_core::{
    codec::AppKey,
    topology::{Binding, Endpoint, Exchange, Topology},
};

use delayline_messages::{error::AdminError, error::doing};

/// A binding that takes the place of another one.
#[derive(Debug, Clone)]
pub(crate) struct Move {
    /// The exchange that messages enter, and the exchange behind it, which leads to the present queue.
    by: [Exchange; 2],
    present: Binding,
    /// Where the second exchange leads besides, after another move was interrupted.
    stale: Vec<Binding>,
    from: Binding,
    to: Binding,
}

/// Where the messages of an application go now, if a move of it was interrupted.
pub(crate) fn interrupted(topology: &Topology, app: &AppKey, snapshot: &Snapshot) -> Option<Endpoint> {
    let by = topology.names().moving(app);
    let now = by.iter().find_map(|exchange| snapshot.bindings_from(exchange).first());
    now.map(|binding| binding.destination.clone())
}

impl Move {
    /// The binding `to` takes the place of the binding of `from`, which has the same source and key. If a move
    /// was [`interrupted`], `from` is where messages go now.
    pub(crate) fn new(
        topology: &Topology,
        app: &AppKey,
        snapshot: &Snapshot,
        from: Endpoint,
        to: Binding,
    ) -> Self {
        let (by, present) = topology.moving(app, &from);
        let stale = snapshot.bindings_from(&by[1].name).iter().filter(|it| **it != present).cloned();
        Self { by, stale: stale.collect(), present, from: Binding { destination: from, ..to.clone() }, to }
    }

    /// Makes it.
    ///
    /// A message goes to each queue once, however many ways lead there. So an exchange that leads to the
    /// present queue is bound first, and then the queue's own binding is removed. One new binding of that
    /// exchange then moves all messages at the same moment, since its alternate exchange gets only messages
    /// that have no other way. The exchange is removed in the same manner. Between these steps, messages whose
    /// way was determined before a step have time to take it.
    ///
    /// After an interruption, messages still have exactly one way, and making it again continues. So does
    /// another move: if messages already leave the first exchange for the present queue, the second exchange
    /// leads there, too, before they no longer do.
    pub(crate) fn make(&self, session: &mut Session) -> Result<(), AdminError> {
        let moved = self.changes().into_iter().try_for_each(|change| match change {
            Change::Declare(exchange) => session.declare_exchange(exchange),
            Change::Bind(binding) => session.bind(&binding),
            Change::Unbind(binding) => session.unbind(&binding),
            Change::Delete(exchange) => session.delete_exchange(exchange),
            Change::Wait => {
                thread::sleep(HAND_OVER);
                Ok(())
            }
        });
        moved.map_err(doing(format!("moving from {} to {}", self.from.destination, self.to.destination)))
    }

    fn changes(&self) -> Vec<Change<'_>> {
        let [entry, back] = &self.by;
        let over = Binding { destination: Endpoint::Exchange(entry.name.clone()), ..self.to.clone() };
        let destination = self.to.destination.clone();
        let switch = Binding { source: entry.name.clone(), destination, key: String::new() };
        // There is one only if another move was interrupted.
        let earlier = Binding { destination: self.from.destination.clone(), ..switch.clone() };
        let mut changes = vec![Change::Declare(back), Change::Bind(self.present.clone())];
        changes.extend(self.stale.iter().cloned().map(Change::Unbind));
        changes.extend([
            Change::Declare(entry),
            Change::Bind(over.clone()),
            Change::Unbind(self.from.clone()),
            Change::Unbind(earlier),
            Change::Wait,
            Change::Bind(switch),
            Change::Wait,
            Change::Bind(self.to.clone()),
            Change::Unbind(over),
            Change::Wait,
            Change::Delete(&entry.name),
            Change::Delete(&back.name),
        ]);
        changes
    }
}

/// A part of a move.
#[derive(Debug)]
enum Change<'a> {
    Declare(&'a Exchange),
    Bind(Binding),
    Unbind(Binding),
    Delete(&'a str),
    /// Messages whose way is determined take it.
    Wait,
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "binding of {} to exchange `{}`", self.to.destination, self.to.source)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use delayline_core::topology::{Object, TopologySettings};

    /// The exchanges with their alternates, and the bindings.
    #[derive(Clone, Default)]
    struct State {
        exchanges: BTreeMap<String, String>,
        bindings: BTreeSet<Binding>,
    }

    impl State {
        fn apply(&mut self, change: &Change<'_>) {
            match change {
                Change::Declare(exchange) => {
                    let alternate = exchange.arguments["alternate-exchange"].to_string();
                    self.exchanges.insert(exchange.name.clone(), alternate);
                }
                Change::Bind(binding) => drop(self.bindings.insert(binding.clone())),
                Change::Unbind(binding) => drop(self.bindings.remove(binding)),
                Change::Delete(name) => {
                    self.exchanges.remove(*name);
                    let end = Endpoint::Exchange((*name).to_owned());
                    self.bindings.retain(|it| it.source != *name && it.destination != end);
                }
                Change::Wait => {}
            }
        }

        /// The queues that get a message from an exchange.
        fn routed(&self, exchange: &str) -> BTreeSet<String> {
            let bound = || self.bindings.iter().filter(|it| it.source == exchange);
            let alternate = self.exchanges.get(exchange).filter(|_| bound().next().is_none());
            let through = bound().flat_map(|it| match &it.destination {
                Endpoint::Queue(queue) => BTreeSet::from([queue.clone()]),
                Endpoint::Exchange(next) => self.routed(next),
            });
            through.chain(alternate.into_iter().flat_map(|next| self.routed(next))).collect()
        }

        fn snapshot(&self) -> Snapshot {
            let objects: Vec<_> = self.bindings.iter().cloned().map(Object::Binding).collect();
            Snapshot::default().with(&objects)
        }
    }

    #[test]
    fn an_interrupted_move_is_continued_or_replaced_without_a_gap_and_without_a_copy() {
        let topology = Topology::new(TopologySettings::default());
        let app = AppKey::new("billing").unwrap();
        let dispatch = topology.names().dispatch();
        let [entry, _] = topology.names().moving(&app).map(Endpoint::Exchange);
        // The move that brings messages to a queue, from where they go now.
        let to = |state: &State, queue: &str| {
            let snapshot = state.snapshot();
            let mut bound: Vec<_> =
                snapshot.bindings_from(&dispatch).iter().map(|it| it.destination.clone()).collect();
            if bound.contains(&entry) {
                bound = vec![interrupted(&topology, &app, &snapshot).unwrap()];
            }
            let [from] = bound.try_into().unwrap();
            Move::new(&topology, &app, &snapshot, from, topology.app_binding(&app, queue))
        };
        let mut begin = State::default();
        begin.bindings.insert(topology.app_binding(&app, "a"));
        let first = to(&begin, "b");
        for interrupted_at in 0..=first.changes().len() {
            for target in ["a", "b", "c"] {
                let mut state = begin.clone();
                first.changes()[..interrupted_at].iter().for_each(|change| state.apply(change));
                let (before, after) = (state.routed(&dispatch), BTreeSet::from([target.to_owned()]));
                assert_eq!(before.len(), 1, "{interrupted_at}");
                for change in to(&state.clone(), target).changes() {
                    state.apply(&change);
                    let now = state.routed(&dispatch);
                    let at = format!("{interrupted_at}, to {target}, after {change:?}");
                    assert!(now == before || now == after, "{at}: {now:?}");
                }
                let bound = BTreeSet::from([topology.app_binding(&app, target)]);
                assert_eq!(
                    (state.bindings, state.exchanges.len()),
                    (bound, 0),
                    "{interrupted_at}, to {target}"
                );
            }
        }
    }
}
