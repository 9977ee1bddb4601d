//! A private RabbitMQ node or cluster: started in a temporary directory on free
//! ports of the loopback interface, and gone without a trace afterwards.
//!
//! `delayline demo` runs on one, and so do all tests. It never touches other brokers on the
//! machine.

mod claim;
mod cluster;
mod commands;
mod config;
mod guard;
mod installation;
mod network;
mod options;
mod ports;
mod private;
mod spot;
pub mod usage;

use std::{io, process::ExitStatus};

pub use cluster::PrivateCluster;
pub use installation::Installation;
pub use options::{ClusterOptions, NodeOptions, NodeTls};
pub use ports::FreePort;
pub use private::PrivateNode;

use private::where_nobody_is;

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
    fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}
