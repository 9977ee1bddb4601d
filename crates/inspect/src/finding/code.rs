//! The kinds of findings, by their stable codes.

use std::fmt;

use serde::{Serialize, Serializer};

/// How bad a finding is, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Messages are being delayed, or go where they should not.
    Problem,
    /// A state that could lead to a problem, or could be better.
    Advice,
    /// Worth knowing; nothing is wrong.
    Info,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Problem => "problem",
            Self::Advice => "advice",
            Self::Info => "info",
        })
    }
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $severity:ident;)*) => {
        /// The kind of a finding. Its text is stable, and is the title of a section in the
        /// runbook (`docs/runbook`).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum FindingCode {
            $($(#[$doc])* $name,)*
        }

        impl FindingCode {
            /// All kinds, the problems first.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Its stable text.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// How bad it is.
            #[must_use]
            pub const fn severity(self) -> Severity {
                match self { $(Self::$name => Severity::$severity,)* }
            }
        }
    };
}

codes! {
    /// Stuck dead letters of a level or landing queue.
    StuckDeadLetters = "stuck-dead-letters", Problem;
    /// No due message leaves the levels of a node.
    DeadLetteringEnded = "dead-lettering-ended", Problem;
    /// An application's queue that is full and refuses messages.
    TargetRefuses = "target-refuses", Problem;
    /// An app key that leads to exchanges, but to no queue behind them.
    TargetDeadEnd = "target-dead-end", Problem;
    /// A stream that messages reach when they are due: one message can end all delays of a node.
    TargetStream = "target-stream", Problem;
    /// A registered application without any binding.
    AppUnbound = "app-unbound", Problem;
    /// An application that was paused long ago, and whose messages wait.
    AppPaused = "app-paused", Problem;
    /// An app key whose messages return to the levels when they are due.
    TargetLoop = "target-loop", Problem;
    /// A binding that also catches the messages of other bound apps.
    BindingCollision = "binding-collision", Problem;
    /// Messages for an app whose key no queue is bound for.
    NobodyBound = "nobody-bound", Problem;
    /// Messages with malformed keys.
    MalformedMessages = "malformed-messages", Problem;
    /// Other unroutable messages: most often an application has been bound since.
    UnroutableWaiting = "unroutable-waiting", Problem;
    /// The unroutable queue has grown recently.
    UnroutableGrowing = "unroutable-growing", Problem;
    /// More messages entered the levels than were published.
    MultipliedMessages = "multiplied-messages", Problem;
    /// The set is not as it should be.
    SetDiffers = "set-differs", Problem;
    /// A queue of the set that cannot be declared, because a queue of another vhost has its internal name.
    NameClash = "name-clash", Problem;
    /// A policy changes how a queue of the set works.
    PolicyOnSet = "policy-on-set", Problem;
    /// A queue that has no majority of its replicas online.
    NoMajority = "no-majority", Problem;
    /// A queue whose replicas run but that has no leader.
    NoLeader = "no-leader", Problem;
    /// A broker that cannot carry the set as it is.
    BrokerUnsuitable = "broker-unsuitable", Problem;
    /// A node that accepts no messages.
    BrokerAlarm = "broker-alarm", Problem;
    /// An application with more recalls pending than it may have.
    RecallsOverQuota = "recalls-over-quota", Problem;
    /// A journal whose contents the broker has lost.
    JournalLost = "journal-lost", Problem;
    /// Schedules, and no daemon that publishes them.
    SchedulesUnserved = "schedules-unserved", Problem;
    /// A schedule of which occurrences are not published.
    ScheduleStalled = "schedule-stalled", Problem;
    /// A schedule for an app key that no queue is bound for.
    ScheduleUnbound = "schedule-unbound", Problem;
    /// A gateway that lacks a part.
    GatewayBroken = "gateway-broken", Problem;
    /// A gateway whose entry leads past the delay.
    GatewayBypassed = "gateway-bypassed", Problem;
    /// A gateway with waiting messages and no daemon.
    GatewayUnserved = "gateway-unserved", Problem;
    /// An application's queue that will refuse once it is full.
    TargetCanRefuse = "target-can-refuse", Advice;
    /// A classic queue behind a set of quorum queues.
    TargetClassic = "target-classic", Advice;
    /// A queue that disappears with its connection, its consumer or the node.
    TargetTransient = "target-transient", Advice;
    /// A queue with waiting messages and no consumers.
    NobodyConsumes = "nobody-consumes", Advice;
    /// A queue whose messages come back to their consumers again and again.
    HotLoop = "hot-loop", Advice;
    /// A binding that can catch messages of other apps.
    WildcardBinding = "wildcard-binding", Advice;
    /// A queue of the set with replicas that do not run.
    ReplicaOffline = "replica-offline", Advice;
    /// A queue of the set with fewer replicas than it should have.
    TooFewReplicas = "too-few-replicas", Advice;
    /// A broker that keeps no statistics, so that many checks are not possible.
    StatisticsOff = "statistics-off", Advice;
    /// A connection whose frames are too small for messages with many hops.
    SmallFrames = "small-frames", Advice;
    /// A stable feature flag that is off.
    FeatureFlagOff = "feature-flag-off", Advice;
    /// A temporary policy of ours that was left behind.
    PolicyLeftBehind = "policy-left-behind", Advice;
    /// A deprecated feature that is in use.
    DeprecatedFeature = "deprecated-feature", Advice;
    /// The dead-letter prefetch may be too small for the message rate.
    DeadLetterPrefetch = "dead-letter-prefetch", Advice;
    /// A busy set whose messages would pass far fewer queues with shortcuts.
    ShortcutsSaveHops = "shortcuts-save-hops", Advice;
    /// Messages with a header for broker-side delays, which a coming version would act on.
    DeliveryTimeHeader = "delivery-time-header", Advice;
    /// An application that nears its limit of pending recalls.
    RecallsNearQuota = "recalls-near-quota", Advice;
    /// Recalls that expired long ago and were not removed.
    RecallsNotSwept = "recalls-not-swept", Advice;
    /// A queue of recalled messages that drops the oldest for each new one.
    RecalledFull = "recalled-full", Advice;
    /// Messages of an application with a journal that cannot be stored there.
    JournalRefuses = "journal-refuses", Advice;
    /// A journal that a user may read and that does not exist.
    JournalMissing = "journal-missing", Advice;
    /// A journal that cuts off messages before they are due.
    JournalTooShort = "journal-too-short", Advice;
    /// A journal that a policy makes keep less than it was declared with.
    JournalLimited = "journal-limited", Advice;
    /// A journal that is not in the index of a daemon, or in which newer messages are missing.
    JournalUnindexed = "journal-unindexed", Advice;
    /// A schedule without further occurrences.
    ScheduleEnded = "schedule-ended", Advice;
    /// A gateway that no queue is bound to.
    GatewayUnbound = "gateway-unbound", Advice;
    /// Users that may publish to the entry exchange with any key.
    EntryUnprotected = "entry-unprotected", Advice;
    /// Users that may bind any key to the dispatch exchange.
    DispatchUnprotected = "dispatch-unprotected", Advice;
    /// Users that may deliver to every app at once, bypassing the levels.
    DispatchWritable = "dispatch-writable", Advice;
    /// Users that may purge, consume, delete or divert the set's queues.
    SetUnprotected = "set-unprotected", Advice;
    /// Users that may publish on a broker where one message can end all delays.
    UntrustedTenants = "untrusted-tenants", Advice;
    /// Layouts whose levels can be stalled by unroutable messages.
    Unguarded = "unguarded", Advice;
    /// A guard that repeats an old version of a policy.
    GuardStale = "guard-stale", Advice;
}

impl fmt::Display for FindingCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for FindingCode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|code| code.as_str() == text);
        found.copied().ok_or_else(|| {
            let all: Vec<_> = Self::ALL.iter().map(|code| code.as_str()).collect();
            format!("`{text}` is not the code of a finding; the codes are {}", all.join(", "))
        })
    }
}

impl Serialize for FindingCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_differ_and_can_be_parsed() {
        for code in FindingCode::ALL {
            assert_eq!(code.as_str().parse(), Ok(*code));
        }
        assert!("x".parse::<FindingCode>().unwrap_err().contains("stuck-dead-letters"));
    }
}
