//! Errors between delayline and the broker.

use std::time::Duration;

use amiquip::Error;

use delayline_core::topology::if_missing;

/// The reply code of a connection that ended because the broker crashed.
pub const CRASH: u16 = 541;

/// An error on the AMQP side. None contains a URL or a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AmqpError {
    /// No connection could be made.
    #[error("cannot reach the broker at {address}: {reason}")]
    Unreachable {
        /// The address, without credentials.
        address: String,
        /// The reason.
        reason: String,
    },
    /// TLS failed: certificates, host name, or the other side does not speak TLS.
    #[error("cannot set up TLS with {address}: {reason}")]
    Tls {
        /// The address, without credentials.
        address: String,
        /// The reason.
        reason: String,
    },
    /// The broker refused the login.
    #[error("the broker at {address} refused the login: {reason}")]
    Refused {
        /// The address, without credentials.
        address: String,
        /// The reason.
        reason: String,
    },
    /// The broker closed the channel over a request: the object does not exist (404), permission is
    /// missing (403), or the object has other arguments (406).
    #[error("the broker refused the request with {code}: {text}")]
    Channel {
        /// The AMQP reply code.
        code: u16,
        /// The broker's own words.
        text: String,
    },
    /// The broker closed the connection.
    #[error("the broker closed the connection with {code}: {text}")]
    Closed {
        /// The AMQP reply code.
        code: u16,
        /// The broker's own words.
        text: String,
    },
    /// The broker did not answer a request in time, and the connection was given up. The broker may
    /// have carried out the request.
    #[error("the broker did not answer within {} s, so the connection was given up: {reason}", limit.as_secs_f64())]
    Silent {
        /// The time limit that passed.
        limit: Duration,
        /// The likely cause, and what to do.
        reason: String,
    },
    /// There is no such set.
    #[error("there is no set `{set}` in this vhost; {}", if_missing())]
    NoSet {
        /// Its name.
        set: String,
    },
    /// The set's unit differs from the router's.
    #[error(
        "the unit differs from the set's: {text}. Give the router the unit that the set was installed with \
         (`Target::with_unit`, or the setting `unit_ms`)"
    )]
    Unit {
        /// The broker's own words.
        text: String,
    },
    /// The connection is gone.
    #[error("the connection to the broker was lost: {reason}")]
    Lost {
        /// The cause, as far as the client library knows it.
        reason: String,
    },
}

impl AmqpError {
    /// The broker's error, if it ended a channel or connection: a message in flight may have caused
    /// it. The broker closes the channel over most messages. It closes the whole connection over a
    /// message that it cannot parse, or if another message arrives while the client library
    /// confirms the end of the channel. A shutdown (320) is no error.
    pub fn refusal(&self) -> Option<(u16, String)> {
        const CONNECTION_FORCED: u16 = 320;
        match self {
            Self::Channel { code, text } => Some((*code, text.clone())),
            Self::Closed { code, text } if *code != CONNECTION_FORCED => Some((*code, text.clone())),
            _ => None,
        }
    }

    /// Whether another attempt may succeed without a change: the connection failed, and not the
    /// request, the login, or TLS.
    #[must_use]
    pub fn is_connection(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Closed { .. } | Self::Silent { .. } | Self::Lost { .. } => true,
            Self::Tls { .. }
            | Self::Refused { .. }
            | Self::Channel { .. }
            | Self::NoSet { .. }
            | Self::Unit { .. } => false,
        }
    }

    /// Whether the broker could not start a quorum queue.
    ///
    /// Three causes are known. Its node is overloaded. Or a queue of another vhost has the same
    /// internal name, as `b_c` in vhost `a` has with `c` in vhost `a_b`. Or the node's dead-letter
    /// workers have given up.
    #[must_use]
    pub fn has_not_started(&self) -> bool {
        matches!(self, Self::Closed { code: CRASH, text } if text.contains("cluster_not_formed"))
    }

    /// The reply code of a refusal.
    #[must_use]
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Channel { code, .. } | Self::Closed { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// Translates an error on an open connection. It is not a `From` implementation, so that no public
/// interface contains the client library.
pub(super) fn explain(error: Error) -> AmqpError {
    match error {
        Error::ServerClosedChannel { code, message, .. } => AmqpError::Channel { code, text: message },
        Error::ServerClosedConnection { code, message } => AmqpError::Closed { code, text: message },
        // The other errors of an open connection hold no URL, and so no password. Errors that hold
        // one cannot occur, because the client library never gets a URL.
        other => AmqpError::Lost { reason: other.to_string() },
    }
}
