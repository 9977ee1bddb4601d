//! Quorum queues of different vhosts with the same internal name: pure, apart from asking.
//!
//! A node registers a quorum queue under its vhost and its name, joined by `_`, with `%2F` for the vhost `/`.
//! So `b_c` in vhost `a` and `c` in vhost `a_b` cannot both exist on a node, nor can queues of one name in the
//! vhosts `/` and `%2F`. The broker answers the second declaration with `cluster_not_formed` and nothing else
//! (measured on 3.10.8, 4.0.5 and 4.3.6).

use std::{collections::BTreeMap, fmt};

use crate::management::{ManagementApi, ManagementError, PlacedQueue};

/// A queue that cannot exist beside another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clash {
    /// The queue that cannot be declared.
    pub queue: PlacedQueue,
    /// The queue that has its internal name.
    pub taken_by: PlacedQueue,
}

/// The name under which a node registers a quorum queue.
fn internal_name(queue: &PlacedQueue) -> String {
    let vhost = if queue.vhost == "/" { "%2F" } else { &queue.vhost };
    format!("{vhost}_{}", queue.name)
}

impl Clash {
    /// The clashes of queues that a vhost should have with the queues of other vhosts.
    pub fn of<'a>(vhost: &str, wanted: impl IntoIterator<Item = &'a str>, all: &[PlacedQueue]) -> Vec<Self> {
        let others = all.iter().filter(|queue| queue.vhost != vhost);
        let others: BTreeMap<_, _> = others.map(|queue| (internal_name(queue), queue)).collect();
        let clash = |name: &str| {
            let queue = PlacedQueue { vhost: vhost.into(), name: name.into() };
            let taken_by = (*others.get(&internal_name(&queue))?).clone();
            Some(Self { queue, taken_by })
        };
        wanted.into_iter().filter_map(clash).collect()
    }

    /// The same, asked of the broker. Needs the tag `monitoring`, or access to the other vhosts.
    ///
    /// # Errors
    /// See [`ManagementError`].
    pub fn find<'a>(
        api: &ManagementApi,
        vhost: &str,
        wanted: impl IntoIterator<Item = &'a str>,
    ) -> Result<Vec<Self>, ManagementError> {
        Ok(Self::of(vhost, wanted, &api.quorum_queues()?))
    }
}

impl fmt::Display for Clash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue, taken_by } = self;
        write!(
            f,
            "queue `{}` in vhost `{}` has the same internal name as queue `{}` in vhost `{}` (`{}`), and a node \
             can have only one of them",
            queue.name,
            queue.vhost,
            taken_by.name,
            taken_by.vhost,
            internal_name(queue)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vhost_and_name_are_joined_before_they_are_compared() {
        let placed = |(vhost, name): (&str, &str)| PlacedQueue { vhost: vhost.into(), name: name.into() };
        let all = [("prod", "eu_billing"), ("%2F", "a_b"), ("prod_eu", "mine"), ("x", "billing")].map(placed);
        let found = |vhost: &str, wanted: &[&str]| {
            let clashes = Clash::of(vhost, wanted.iter().copied(), &all).into_iter();
            clashes.map(|it| (it.queue.name, it.taken_by.vhost)).collect::<Vec<_>>()
        };
        let pair = |queue: &str, vhost: &str| (queue.to_owned(), vhost.to_owned());
        assert_eq!(found("prod_eu", &["billing", "mine", "other"]), [pair("billing", "prod")]);
        assert_eq!(found("/", &["a_b"]), [pair("a_b", "%2F")]);
        assert_eq!(found("prod", &["eu_billing", "eu_mine"]), [pair("eu_mine", "prod_eu")]);
        let clash = &Clash::of("/", ["a_b"], &all)[0];
        assert!(clash.to_string().contains("queue `a_b` in vhost `%2F` (`%2F_a_b`)"), "{clash}");
    }
}
