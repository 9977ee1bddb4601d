//! A private RabbitMQ node or cluster: started in a temporary directory on free
//! ports of the loopback interface, and gone without a trace afterwards.
//!
//! `delayline demo` runs on one, and so do all tests. It never touches a broker
//! that happens to run on the machine.

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

/// Why there is no node.
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
        /// What was tried.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The node did not come up.
    #[error("the private RabbitMQ node did not start: {reason}\n{log}")]
    Start {
        /// What is known about it.
        reason: String,
        /// The end of its output and log.
        log: String,
    },
    /// A command was refused.
    #[error("`rabbitmqctl {arguments}` ended with {status}: {said}")]
    Refused {
        /// The command's arguments.
        arguments: String,
        /// How it ended.
        status: ExitStatus,
        /// What it said.
        said: String,
    },
    /// Another program listens on one of the node's ports.
    #[error(
        "the private RabbitMQ node did not start, because another program took one of its ports: {reason}\n{log}"
    )]
    PortTaken {
        /// What is known about it.
        reason: String,
        /// The end of its output and log.
        log: String,
    },
    /// The network between the nodes could not be made.
    #[error("cannot make a network for the nodes, which needs root and iproute2: {reason}")]
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
