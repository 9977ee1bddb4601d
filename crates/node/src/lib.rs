//! A private RabbitMQ node or cluster: started in a temporary directory on free
//! ports of the loopback interface, and gone without a trace afterwards.
//!
//! `delayline demo` runs on one, and so do all tests. It never touches other brokers on the
//! machine.

mod claim;
mod cluster;
mod commands;
mod config;
mod error;
mod guard;
mod installation;
mod network;
mod options;
mod ports;
mod private;
mod ready;
mod spot;
pub mod usage;

pub use cluster::PrivateCluster;
pub use error::NodeError;
pub use installation::Installation;
pub use options::{ClusterOptions, NodeOptions, NodeTls};
pub use ports::FreePort;
pub use private::PrivateNode;
