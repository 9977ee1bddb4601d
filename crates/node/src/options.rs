//! Options for nodes and clusters.

use std::path::PathBuf;

/// The options of a node.
#[derive(Debug, Clone, Default)]
pub struct NodeOptions {
    /// Whether to start without the management plugin.
    pub without_management: bool,
    /// Lines to add to `rabbitmq.conf`.
    pub config: String,
    /// Settings of the `rabbit` application without a line in `rabbitmq.conf`, as Erlang terms:
    /// `{dead_letter_worker_consumer_prefetch, 512}`.
    pub rabbit: Vec<String>,
    /// Files to serve TLS with, on a separate port.
    pub tls: Option<NodeTls>,
    /// The feature flags that are enabled from the start, if not all. From 4.0 on, most are always
    /// enabled.
    pub feature_flags: Option<Vec<String>>,
    /// Further plugins.
    pub plugins: Vec<String>,
    /// The parent of its directory, if not the directory for temporary files. In `/dev/shm`, its
    /// data stays in memory.
    pub place: Option<PathBuf>,
}

/// PEM files of a node that serves TLS.
#[derive(Debug, Clone)]
pub struct NodeTls {
    /// The authority that client certificates are checked against.
    pub ca_file: PathBuf,
    /// The node's certificate.
    pub cert_file: PathBuf,
    /// Its key.
    pub key_file: PathBuf,
    /// Whether clients must have a certificate.
    pub require_client_cert: bool,
}

/// The options of a cluster.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// The number of nodes.
    pub size: usize,
    /// Whether each node gets its own network namespace, so that it can be cut off from the others.
    /// Needs root.
    pub separable: bool,
    /// The options of each node.
    pub node: NodeOptions,
}

impl Default for ClusterOptions {
    /// Three nodes on the loopback interface.
    fn default() -> Self {
        Self { size: 3, separable: false, node: NodeOptions::default() }
    }
}
