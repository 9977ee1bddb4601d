//! Why a message could not be recalled.

use delayline_amqp::AmqpError;
use delayline_core::{codec::AppKey, topology::if_missing};

/// Why a message could not be recalled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecallError {
    /// There is no set.
    #[error("{text}; {}", if_missing())]
    NoSet {
        /// The broker's own words.
        text: String,
    },
    /// The application has no objects for recalling.
    #[error(
        "messages of `{app}` cannot be recalled: it is not registered for recall ({text}). To allow \
         that, register it again with --recall (docs/how-to/recall.md). Until then, its messages with an id are \
         unroutable"
    )]
    NotOffered {
        /// The application.
        app: AppKey,
        /// The broker's own words.
        text: String,
    },
    /// The user lacks the permission.
    #[error("this user may not recall messages of `{app}`: {text}")]
    NotPermitted {
        /// The application.
        app: AppKey,
        /// The broker's own words.
        text: String,
    },
    /// The AMQP side failed. The recall may or may not have been done, and repeating it is safe.
    /// Repeat it with the same [`Recaller`](super::Recaller), which remembers that this attempt may
    /// have been in time.
    #[error(transparent)]
    Amqp(#[from] AmqpError),
}

impl RecallError {
    pub(super) fn new(app: &AppKey, error: AmqpError) -> Self {
        const ACCESS_REFUSED: u16 = 403;
        const NOT_FOUND: u16 = 404;
        let app = app.clone();
        match error {
            AmqpError::Channel { code: NOT_FOUND, text } => Self::NotOffered { app, text },
            AmqpError::Channel { code: ACCESS_REFUSED, text } => Self::NotPermitted { app, text },
            other => Self::Amqp(other),
        }
    }

    /// Whether the session cannot be used again.
    pub(super) fn is_connection(&self) -> bool {
        matches!(self, Self::Amqp(error) if error.is_connection())
    }

    /// Whether the broker may have carried out the request.
    pub(super) fn may_be_done(&self) -> bool {
        use AmqpError::{Closed, Lost, Silent};
        matches!(self, Self::Amqp(Closed { .. } | Lost { .. } | Silent { .. }))
    }
}
