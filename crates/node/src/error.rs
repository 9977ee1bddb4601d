//! Why a node could not be started or used.

use std::{io, process::ExitStatus};

/// Why a node could not be started or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// RabbitMQ is not on this machine.
    #[error(
        "RabbitMQ is not installed here, so there is no private node to start; \
         on Debian: apt-get install rabbitmq-server"
    )]
    NotInstalled,
    /// A problem with processes or files.
    #[error("cannot {what}: {source}")]
    Io {
        /// The action that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The node did not start.
    #[error("the private RabbitMQ node did not start: {reason}\n{log}")]
    Start {
        /// The details.
        reason: String,
        /// The end of its output and log.
        log: String,
    },
    /// A command failed.
    #[error("`rabbitmqctl {arguments}` ended with {status}: {said}")]
    Refused {
        /// The command's arguments.
        arguments: String,
        /// Its exit status.
        status: ExitStatus,
        /// Its output.
        said: String,
    },
    /// Another program listens on a port of the node.
    #[error("the private RabbitMQ node did not start: another program uses its port: {reason}\n{log}")]
    PortTaken {
        /// The details.
        reason: String,
        /// The end of its output and log.
        log: String,
    },
    /// The network between the nodes could not be created.
    #[error("cannot create a network for the nodes: {reason}. It needs root and iproute2")]
    Network {
        /// The system's error.
        reason: String,
    },
}

impl NodeError {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}
