//! What can be wrong with a set, and how it is said.

use std::fmt;

use serde::Serialize;

use delayline::topology::Binding;

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "finding", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Finding {
    /// An exchange or queue is not there.
    Missing {
        /// What.
        object: String,
    },
    /// A property or argument differs.
    Different {
        /// Of what.
        object: String,
        /// Which property or argument.
        argument: String,
        /// What the topology says.
        wanted: String,
        /// What stands.
        found: String,
    },
    /// The set is of an earlier version, with keys of 28 words of one bit.
    EarlierVersion {
        /// How many of its bindings are.
        bindings: usize,
    },
    /// A binding is not there.
    MissingBinding {
        /// Which.
        binding: Binding,
    },
    /// A binding too many, on or to one of our exchanges and queues.
    ExtraBinding {
        /// Which.
        binding: Binding,
        /// What it does.
        effect: &'static str,
    },
    /// The broker cannot carry the set as it is.
    Unsuitable {
        /// Why not.
        reason: String,
        /// What to do.
        remedy: String,
    },
    /// A queue has fewer replicas than it should.
    MissingReplicas {
        /// Which queue.
        queue: String,
        /// The nodes that hold one.
        members: Vec<String>,
        /// How many there should be.
        wanted: usize,
    },
    /// Some of a queue's replicas are on nodes that are down, or do not run there.
    ReplicasOffline {
        /// Which queue.
        queue: String,
        /// Those nodes.
        offline: Vec<String>,
        /// Whether the others are too few for the queue to work.
        stalled: bool,
    },
    /// A queue's replicas run, and none of them leads: it neither takes nor hands on
    /// messages, and does not come back by itself.
    NoLeader {
        /// Which queue.
        queue: String,
    },
    /// A policy changes how one of our queues works.
    Policy {
        /// Which queue.
        queue: String,
        /// The policy, and what it sets.
        policy: String,
        /// The policies that set it: `policy `x``, `operator policy `x``.
        origins: Vec<String>,
        /// What they set.
        key: String,
        /// To what.
        value: String,
        /// What that does.
        effect: &'static str,
    },
}

/// How to replace it without losing what waits in it.
pub const EARLIER_REMEDY: &str = "stop its publishers, wait until its levels are empty (`delayline \
     status`), then run `delayline uninstall`, `delayline install`, and `delayline app add` for each \
     application; until then it delivers what it holds. Or install another set beside it, with --set";

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { object } => write!(f, "{object} is missing"),
            Self::Different { object, argument, wanted, found } => {
                write!(f, "{object}: `{argument}` should be {wanted}, but is {found}")
            }
            Self::EarlierVersion { bindings } => write!(
                f,
                "a set of an earlier version stands here: {bindings} of its bindings expect one bit to a word"
            ),
            Self::MissingBinding { binding } => write!(f, "{binding} is missing"),
            Self::ExtraBinding { binding, effect } => write!(f, "{binding} is not ours: {effect}"),
            Self::Unsuitable { reason, remedy } => write!(f, "{reason}; to do: {remedy}"),
            Self::MissingReplicas { queue, members, wanted } => write!(
                f,
                "queue `{queue}` has {} of {wanted} replicas, on {}; \
                 to do: rabbitmq-queues grow NODE all, for a node without one",
                members.len(),
                members.join(", ")
            ),
            Self::ReplicasOffline { queue, offline, stalled } => write!(
                f,
                "queue `{queue}` has no running replica on {}{}",
                offline.join(", "),
                if *stalled { "; it has no majority, and everything in it waits" } else { "" }
            ),
            Self::NoLeader { queue } => write!(
                f,
                "queue `{queue}` has no leader although its replicas run: nothing gets in or out, and \
                 restarting does not help; to do: docs/doctor.md, no-leader"
            ),
            Self::Policy { queue, policy, effect, .. } => write!(f, "queue `{queue}`: {policy}: {effect}"),
        }
    }
}
