//! The possible differences of a set, and their texts.

use delayline_core::topology::SetName;
use std::fmt;

use serde::Serialize;

use delayline_core::topology::Binding;

/// A difference between the existing set and the wanted one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(tag = "difference", rename_all = "kebab-case")]
pub enum Difference {
    /// An exchange or queue does not exist.
    Missing {
        /// The exchange or queue.
        object: String,
    },
    /// A property or argument differs.
    Different {
        /// The exchange or queue.
        object: String,
        /// The property or argument.
        argument: String,
        /// The value it should have.
        wanted: String,
        /// The value it has.
        found: String,
    },
    /// The set is of an earlier version, with keys of 28 words of one bit.
    EarlierVersion {
        /// How many of its bindings are of that version.
        bindings: usize,
    },
    /// A binding does not exist.
    MissingBinding {
        /// The binding.
        binding: Binding,
    },
    /// A binding that should not be there, on or to an exchange or queue of ours.
    ExtraBinding {
        /// The binding.
        binding: Binding,
        /// Its effect.
        effect: &'static str,
    },
    /// An object for recalling an application's messages differs.
    Recall {
        /// The application.
        app: String,
        /// The difference.
        of: Box<Difference>,
    },
    /// The journal of an application's scheduled messages differs.
    Journal {
        /// The application.
        app: String,
        /// The difference.
        of: Box<Difference>,
    },
    /// The broker cannot run the set with these settings.
    Unsuitable {
        /// The reason.
        reason: String,
        /// The remedy.
        remedy: String,
    },
    /// A queue has fewer replicas than it should.
    MissingReplicas {
        /// The queue.
        queue: String,
        /// The nodes that hold one.
        members: Vec<String>,
        /// How many replicas it should have.
        wanted: usize,
    },
    /// Some replicas of a queue are on nodes that are down, or do not run.
    ReplicasOffline {
        /// The queue.
        queue: String,
        /// The nodes without a running replica.
        offline: Vec<String>,
        /// Whether the remaining replicas are too few for the queue to work.
        stalled: bool,
    },
    /// The replicas of a queue run but none of them leads. The queue neither accepts nor passes on
    /// messages, and does not recover without help.
    NoLeader {
        /// The queue.
        queue: String,
    },
    /// A shovel takes messages out of the set, or publishes into it past the entry exchange.
    Shovel {
        /// Its name.
        name: String,
        /// The exchange or queue.
        object: String,
        /// The effect.
        effect: &'static str,
    },
    /// A policy changes how an exchange or queue of ours works.
    Policy {
        /// The exchange or queue.
        object: String,
        /// The policy, and what it sets.
        policy: String,
        /// The policies that set it: `policy `x``, `operator policy `x``.
        origins: Vec<String>,
        /// The key that they set.
        key: String,
        /// The value.
        value: String,
        /// The effect.
        effect: &'static str,
    },
}

/// How to replace such a set without losing the messages that wait in it.
pub fn earlier_remedy(set: &SetName) -> String {
    format!(
        "stop its publishers, wait until its levels are empty (`{}`), then run `{}`, `{}`, and `{}` for \
         each application; until then it delivers the messages it has. Or install another set beside it \
         with --set",
        set.command(&["status"]),
        set.command(&["uninstall"]),
        set.command(&["install"]),
        set.command(&["app", "add", "APP"])
    )
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { object } => write!(f, "{object} is missing"),
            Self::Different { object, argument, wanted, found } => {
                write!(f, "{object}: `{argument}` should be {wanted}, but is {found}")
            }
            Self::EarlierVersion { bindings } => write!(
                f,
                "this is a set of an earlier version: {bindings} of its bindings expect one bit per word"
            ),
            Self::MissingBinding { binding } => write!(f, "{binding} is missing"),
            Self::ExtraBinding { binding, effect } => {
                write!(f, "{binding} does not belong to the set: {effect}")
            }
            Self::Recall { of, .. } | Self::Journal { of, .. } => of.fmt(f),
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
                if *stalled { "; it has no majority, so all its messages wait" } else { "" }
            ),
            Self::NoLeader { queue } => write!(
                f,
                "queue `{queue}` has no leader although its replicas run: no message gets in or out, and a \
                 restart does not help; to do: docs/runbook/broker.md, no-leader"
            ),
            Self::Shovel { name, object, effect } => write!(f, "shovel `{name}` on {object}: {effect}"),
            Self::Policy { object, policy, effect, .. } => write!(f, "{object}: {policy}: {effect}"),
        }
    }
}
