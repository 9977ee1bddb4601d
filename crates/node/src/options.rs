//! What to start.

use std::path::PathBuf;

/// What a node is started with.
#[derive(Debug, Clone, Default)]
pub struct NodeOptions {
    /// Whether to start without the management plugin.
    pub without_management: bool,
    /// Lines to add to `rabbitmq.conf`.
    pub config: String,
    /// Settings of the `rabbit` application that have no line in `rabbitmq.conf`, as
    /// Erlang terms: `{dead_letter_worker_consumer_prefetch, 512}`.
    pub rabbit: Vec<String>,
    /// Files to serve TLS with, on a port of its own.
    pub tls: Option<NodeTls>,
    /// The feature flags that are on from the start, if not all. Versions from 4.0 on have
    /// most of them on in any case.
    pub feature_flags: Option<Vec<String>>,
    /// Further plugins.
    pub plugins: Vec<String>,
    /// Where to make its directory, if not among the temporary files. In `/dev/shm`, what
    /// it stores stays in memory.
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

/// What a cluster is started with.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// How many nodes.
    pub size: usize,
    /// Whether each node gets a network namespace of its own, so that it can be cut
    /// off from the others. Needs root.
    pub separable: bool,
    /// What each node is started with.
    pub node: NodeOptions,
}

impl Default for ClusterOptions {
    /// Three nodes on the loopback interface.
    fn default() -> Self {
        Self { size: 3, separable: false, node: NodeOptions::default() }
    }
}
