//! The kinds of findings, by their stable codes.

use std::fmt;

use serde::{Serialize, Serializer};

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Messages are held up, or go where they should not, now.
    Error,
    /// That can come of it.
    Warning,
    /// Something could be better.
    Info,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
        })
    }
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $severity:ident;)*) => {
        /// What kind of finding it is. Its text is stable, and the title of a section
        /// in `docs/doctor.md`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum FindingCode {
            $($(#[$doc])* $name,)*
        }

        impl FindingCode {
            /// All of them, in the order of the document.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Its text.
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
    /// Dead letters of a level or landing queue that the next queue does not take.
    StuckDeadLetters = "stuck-dead-letters", Error;
    /// An application's queue that is full and refuses.
    TargetRefuses = "target-refuses", Error;
    /// An application's queue that will refuse once it is full.
    TargetCanRefuse = "target-can-refuse", Warning;
    /// An app key that leads to exchanges, and from there to no queue.
    TargetDeadEnd = "target-dead-end", Error;
    /// A classic queue behind a set of quorum queues.
    TargetClassic = "target-classic", Warning;
    /// A queue that goes with its connection, its consumer or the node.
    TargetTransient = "target-transient", Warning;
    /// A queue that messages wait in and nobody consumes.
    NobodyConsumes = "nobody-consumes", Warning;
    /// A binding that also catches the messages of other bound apps.
    BindingCollision = "binding-collision", Error;
    /// A binding that can catch messages of other apps.
    WildcardBinding = "wildcard-binding", Warning;
    /// Messages for an app that nobody is bound for.
    NobodyBound = "nobody-bound", Warning;
    /// Messages with malformed keys.
    MalformedMessages = "malformed-messages", Warning;
    /// The unroutable queue has grown lately.
    UnroutableGrowing = "unroutable-growing", Warning;
    /// The set is not as it should be.
    SetDiffers = "set-differs", Error;
    /// A policy changes how a queue of the set works.
    PolicyOnSet = "policy-on-set", Error;
    /// A queue without an online majority of its replicas.
    NoMajority = "no-majority", Error;
    /// A queue of the set with replicas that do not run.
    ReplicaOffline = "replica-offline", Warning;
    /// A queue of the set with fewer replicas than it should have.
    TooFewReplicas = "too-few-replicas", Warning;
    /// A broker that cannot carry the set as it is.
    BrokerUnsuitable = "broker-unsuitable", Error;
    /// A node that takes no messages.
    BrokerAlarm = "broker-alarm", Error;
    /// A stable feature flag that is off.
    FeatureFlagOff = "feature-flag-off", Warning;
    /// A deprecated feature that is in use.
    DeprecatedFeature = "deprecated-feature", Warning;
    /// The dead-letter prefetch may be too small for what goes through.
    DeadLetterPrefetch = "dead-letter-prefetch", Info;
    /// Users that may publish to the entry exchange with any key.
    EntryUnprotected = "entry-unprotected", Warning;
    /// Users that may bind any key to the dispatch exchange.
    DispatchUnprotected = "dispatch-unprotected", Warning;
    /// Users that may deliver to every app at once, past the levels.
    DispatchWritable = "dispatch-writable", Warning;
    /// Users that may purge, consume, delete or divert the set's queues.
    SetUnprotected = "set-unprotected", Warning;
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
            format!("`{text}` is not the code of a finding; there are {}", all.join(", "))
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
        let document = include_str!("../../../docs/doctor.md");
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
