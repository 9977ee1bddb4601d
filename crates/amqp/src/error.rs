//! Errors between us and the broker.

use std::time::Duration;

use amiquip::Error;

/// The code with which the broker closes a connection that it crashed over.
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
    #[error("the broker at {address} refused us: {reason}")]
    Refused {
        /// The address, without credentials.
        address: String,
        /// The reason.
        reason: String,
    },
    /// The broker closed the channel because of the request: a missing object (404), no
    /// permission (403), other arguments than the object has (406).
    #[error("the broker refused with {code}: {text}")]
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
    /// The broker did not answer a request in time. The connection was given up; it is not
    /// known whether the request was carried out.
    #[error("the broker did not answer within {} s, so the connection was given up: {reason}", limit.as_secs_f64())]
    Silent {
        /// How long we waited.
        limit: Duration,
        /// What is known about it, and what to do.
        reason: String,
    },
    /// The set holds messages for another time than a router was told.
    #[error(
        "the set has another unit: {text}. Give the router the unit that the set was installed with \
         (`RouterBuilder::unit`, or the setting `unit_ms`)"
    )]
    Unit {
        /// The broker's own words.
        text: String,
    },
    /// The connection is gone.
    #[error("the connection to the broker was lost: {reason}")]
    Lost {
        /// What the client library knows about the cause.
        reason: String,
    },
}

impl AmqpError {
    /// The broker's error, if that is why a channel or connection ended: some message in flight
    /// may have caused it. The broker closes the channel over most, and the whole connection over
    /// a message that it cannot parse, or if the next message is on its way while the client
    /// library agrees to the end of the channel. A shutdown (320) is no error.
    pub fn refusal(&self) -> Option<(u16, String)> {
        const CONNECTION_FORCED: u16 = 320;
        match self {
            Self::Channel { code, text } => Some((*code, text.clone())),
            Self::Closed { code, text } if *code != CONNECTION_FORCED => Some((*code, text.clone())),
            _ => None,
        }
    }

    /// Whether another attempt may succeed without anybody's help: the connection failed, and
    /// not the request, the login, or TLS.
    #[must_use]
    pub fn is_connection(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Closed { .. } | Self::Silent { .. } | Self::Lost { .. } => true,
            Self::Tls { .. } | Self::Refused { .. } | Self::Channel { .. } | Self::Unit { .. } => false,
        }
    }

    /// Whether the broker could not start a quorum queue.
    ///
    /// Three causes are known: its node is overloaded; a queue of another vhost has the same
    /// internal name, as `b_c` in vhost `a` has with `c` in vhost `a_b`; or the node's dead-letter
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

/// Translates an error on an open connection.
// Nothing is promised about the client library, so it is not in the documentation.
#[doc(hidden)]
impl From<Error> for AmqpError {
    fn from(error: Error) -> Self {
        match error {
            Error::ServerClosedChannel { code, message, .. } => Self::Channel { code, text: message },
            Error::ServerClosedConnection { code, message } => Self::Closed { code, text: message },
            // The other errors of an open connection hold no URL, and so no
            // password; those that do cannot occur, as we never hand it one.
            other => Self::Lost { reason: other.to_string() },
        }
    }
}
