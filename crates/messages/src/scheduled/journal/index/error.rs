//! Why the index has no answer.

use crate::error::AdminError;

/// Why the index has no answer. The journal itself has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unindexed {
    /// The application has no journal, or a new one.
    #[error("the index has no journal of `{0}`; a new one is found within 10 s")]
    NoJournal(String),
    /// The journal is being read.
    #[error("the index is being built: {read} of {all} messages of the journal of `{app}` are read")]
    Building {
        /// The application.
        app: String,
        /// How many messages were read.
        read: u64,
        /// How many there are.
        all: u64,
    },
    /// Newer messages are missing.
    #[error("the index of `{app}` is {seconds} s behind its journal{reason}")]
    Behind {
        /// The application.
        app: String,
        /// By how many seconds.
        seconds: u64,
        /// The reason, after a colon.
        reason: String,
    },
    /// It is not indexed.
    #[error("`{app}` is not in the index: {reason}")]
    Failed {
        /// The application.
        app: String,
        /// The reason.
        reason: String,
    },
    /// Messages that were due are not in the index.
    #[error("the index has only messages that are due from now on")]
    Past,
    /// The header is not indexed.
    #[error("the index does not keep the header `{0}`, or no value that long; see the setting index_headers")]
    Header(String),
}

/// Why messages cannot be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShowError {
    /// The index has no answer.
    #[error(transparent)]
    Unindexed(#[from] Unindexed),
    /// The journal cannot be read.
    #[error(transparent)]
    Admin(#[from] AdminError),
}
