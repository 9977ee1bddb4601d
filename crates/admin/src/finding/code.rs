//! The kinds of findings, by their stable codes.

use std::fmt;

use serde::{Serialize, Serializer};

/// How bad something is, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Messages are being delayed, or go where they should not.
    Problem,
    /// Something that could lead to that, or could be better.
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
        /// The kind of a finding. Its text is stable, and is the title of a section in
        /// `docs/doctor.md`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum FindingCode {
            $($(#[$doc])* $name,)*
        }

        impl FindingCode {
            /// All kinds, in the order of the document.
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
    /// Dead letters of a level or landing queue that do not move.
    StuckDeadLetters = "stuck-dead-letters", Problem;
    /// Nothing that is due leaves the levels of a node.
    DeadLetteringEnded = "dead-lettering-ended", Problem;
    /// An application's queue that is full and refuses messages.
    TargetRefuses = "target-refuses", Problem;
    /// An app key that leads to exchanges, but to no queue behind them.
    TargetDeadEnd = "target-dead-end", Problem;
    /// A stream that messages reach when they are due: one message can end all delays of a node.
    TargetStream = "target-stream", Problem;
    /// An application that was registered and that nothing is bound for any more.
    AppUnbound = "app-unbound", Problem;
    /// An app key whose messages return to the levels when they are due.
    TargetLoop = "target-loop", Problem;
    /// A binding that also catches the messages of other bound apps.
    BindingCollision = "binding-collision", Problem;
    /// Messages for an app that nobody is bound for.
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
    /// A journal that the broker knows by name and nothing else.
    JournalLost = "journal-lost", Problem;
    /// A gateway that lacks a part.
    GatewayBroken = "gateway-broken", Problem;
    /// A gateway whose entry leads past the delay.
    GatewayBypassed = "gateway-bypassed", Problem;
    /// A gateway in which messages wait, and no daemon takes them.
    GatewayUnserved = "gateway-unserved", Problem;
    /// An application's queue that will refuse once it is full.
    TargetCanRefuse = "target-can-refuse", Advice;
    /// A classic queue behind a set of quorum queues.
    TargetClassic = "target-classic", Advice;
    /// A queue that disappears with its connection, its consumer or the node.
    TargetTransient = "target-transient", Advice;
    /// A queue in which messages wait and which nobody consumes.
    NobodyConsumes = "nobody-consumes", Advice;
    /// A queue whose messages come back to their consumers over and over.
    HotLoop = "hot-loop", Advice;
    /// A binding that can catch messages of other apps.
    WildcardBinding = "wildcard-binding", Advice;
    /// A queue of the set with replicas that do not run.
    ReplicaOffline = "replica-offline", Advice;
    /// A queue of the set with fewer replicas than it should have.
    TooFewReplicas = "too-few-replicas", Advice;
    /// A stable feature flag that is off.
    FeatureFlagOff = "feature-flag-off", Advice;
    /// A temporary policy of ours that was left behind.
    PolicyLeftBehind = "policy-left-behind", Advice;
    /// A deprecated feature that is in use.
    DeprecatedFeature = "deprecated-feature", Advice;
    /// The dead-letter prefetch may be too small for the message rate.
    DeadLetterPrefetch = "dead-letter-prefetch", Advice;
    /// Messages with a header for broker-side delays, which a coming version would act on.
    DeliveryTimeHeader = "delivery-time-header", Advice;
    /// An application that nears the number of recalls that it may have pending.
    RecallsNearQuota = "recalls-near-quota", Advice;
    /// Recalls that are over for long and were not swept up.
    RecallsNotSwept = "recalls-not-swept", Advice;
    /// A queue of recalled messages that drops the oldest for each new one.
    RecalledFull = "recalled-full", Advice;
    /// A journal that somebody may read and that is not there.
    JournalMissing = "journal-missing", Advice;
    /// A journal that cuts off messages that still wait.
    JournalTooShort = "journal-too-short", Advice;
    /// A journal that keeps less than it was made with, by a policy.
    JournalLimited = "journal-limited", Advice;
    /// A gateway that nobody is bound to.
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
    /// Delays of others that messages which nobody is bound for can stall.
    Unguarded = "unguarded", Advice;
    /// A guard that repeats a policy as it was, and not as it is.
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
    fn every_code_has_a_section_in_the_document_and_every_section_a_code() {
        let document = include_str!("../../../../docs/doctor.md");
        let sections: Vec<_> = document.lines().filter_map(|line| line.strip_prefix("### ")).collect();
        let codes: Vec<_> =
            FindingCode::ALL.iter().map(|code| format!("{code} ({})", code.severity())).collect();
        assert_eq!(sections, codes);
        for section in document.split("\n### ").skip(1) {
            let title = section.lines().next().unwrap_or_default();
            assert!(section.contains("**To do:**"), "`{title}` does not say what to do");
        }
    }

    #[test]
    fn codes_are_told_apart_and_read_back() {
        for code in FindingCode::ALL {
            assert_eq!(code.as_str().parse(), Ok(*code));
        }
        assert!("x".parse::<FindingCode>().unwrap_err().contains("stuck-dead-letters"));
    }
}
