//! What can be wrong with a set, and the words for it.

use std::fmt;

use serde::Serialize;

use delayline_core::topology::Binding;

/// A difference between the set and what it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "difference", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Difference {
    /// An exchange or queue is not there.
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
    /// A binding is not there.
    MissingBinding {
        /// The binding.
        binding: Binding,
    },
    /// A binding that should not be there, on or to one of our exchanges and queues.
    ExtraBinding {
        /// The binding.
        binding: Binding,
        /// What it does.
        effect: &'static str,
    },
    /// Something that lets an application's messages be recalled is not as it should be.
    Recall {
        /// The application.
        app: String,
        /// What differs.
        of: Box<Difference>,
    },
    /// The journal of what is scheduled for an application is not as it should be.
    Journal {
        /// The application.
        app: String,
        /// What differs.
        of: Box<Difference>,
    },
    /// The broker cannot carry the set as it is.
    Unsuitable {
        /// The reason.
        reason: String,
        /// What to do.
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
    /// The replicas of a queue run but none of them leads: it neither accepts nor passes on
    /// messages, and does not recover by itself.
    NoLeader {
        /// The queue.
        queue: String,
    },
    /// A policy changes how one of our queues works.
    Policy {
        /// The queue.
        queue: String,
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
pub const EARLIER_REMEDY: &str = "stop its publishers, wait until its levels are empty (`delayline status`), \
     then run `delayline uninstall`, `delayline install`, and `delayline app add` for each application; \
     until then it delivers what it holds. Or install another set beside it with --set";

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
                if *stalled { "; it has no majority, and everything in it waits" } else { "" }
            ),
            Self::NoLeader { queue } => write!(
                f,
                "queue `{queue}` has no leader although its replicas run: nothing gets in or out, and a \
                 restart does not help; to do: docs/doctor.md, no-leader"
            ),
            Self::Policy { queue, policy, effect, .. } => write!(f, "queue `{queue}`: {policy}: {effect}"),
        }
    }
}
