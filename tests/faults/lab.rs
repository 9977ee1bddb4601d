//! The brokers that faults happen to.

use std::{collections::BTreeSet, thread, time::Duration};

use delayline_admin::{self as admin, UnstickOptions, management::ManagementApi};
use delayline_amqp::{Session, broker::Broker};
use delayline_core::topology::Topology;
use delayline_node::{ClusterOptions, NodeError, NodeOptions, PrivateCluster, PrivateNode};
use delayline_settings::{Layers, Settings};

/// One node, or a cluster of three.
pub enum Lab {
    Single(Box<PrivateNode>),
    Cluster { cluster: PrivateCluster, separable: bool },
}

/// Installs the set, and connects for what else has to be there.
///
/// During a run, a broker that is silent for two seconds is given up. Before it, on a busy
/// machine, it may well be.
pub fn install(settings: &Settings) -> Session {
    let mut settings = settings.clone();
    settings.broker.heartbeat = Broker::HEARTBEAT;
    let topology = Topology::new(settings.topology.clone());
    admin::install(&settings, &topology, false, || {}).expect("the set is installed");
    Session::open(&settings.broker).expect("a session")
}

impl Lab {
    /// With this limit for a hand-over between queues, or with all settings that matter as
    /// the broker is shipped.
    pub fn start(cluster: bool, confirm_timeout_ms: Option<u64>) -> Result<Self, NodeError> {
        let node = NodeOptions {
            // What a cluster should have, so that the smaller part of a divided one
            // waits until it is whole again. Versions without Mnesia ignore it.
            config: if cluster {
                "cluster_partition_handling = pause_minority\n".into()
            } else {
                String::new()
            },
            rabbit: vec![match confirm_timeout_ms {
                Some(limit) => format!("{{dead_letter_worker_publisher_confirm_timeout, {limit}}}"),
                // Private nodes count more often.
                None => "{collect_statistics_interval, 5000}".into(),
            }],
            ..NodeOptions::default()
        };
        if !cluster {
            return Ok(Self::Single(Box::new(PrivateNode::start(node)?)));
        }
        let mut options = ClusterOptions { separable: true, node, size: 3 };
        let started = PrivateCluster::start(&options);
        if let Err(error @ NodeError::Network { .. }) = &started {
            eprintln!("== {error}");
            options.separable = false;
        }
        let separable = options.separable;
        let cluster = if separable { started? } else { PrivateCluster::start(&options)? };
        Ok(Self::Cluster { cluster, separable })
    }

    pub fn layers(&self) -> Layers {
        match self {
            Self::Single(node) => node.settings(),
            Self::Cluster { cluster, .. } => cluster.settings(0),
        }
    }

    pub fn size(&self) -> usize {
        match self {
            Self::Single(_) => 1,
            Self::Cluster { cluster, .. } => cluster.nodes().len(),
        }
    }

    /// Whether its nodes can be cut off from each other.
    pub fn is_separable(&self) -> bool {
        matches!(self, Self::Cluster { separable: true, .. })
    }

    pub fn node(&mut self, index: usize) -> &mut PrivateNode {
        match self {
            Self::Single(node) => node,
            Self::Cluster { cluster, .. } => cluster.node(index),
        }
    }

    pub fn cluster(&self) -> &PrivateCluster {
        match self {
            Self::Single(_) => panic!("this scenario needs a cluster"),
            Self::Cluster { cluster, .. } => cluster,
        }
    }

    fn position(&self, name: &str) -> Option<usize> {
        match self {
            Self::Single(_) => Some(0),
            Self::Cluster { cluster, .. } => cluster.position(name),
        }
    }

    /// Runs an Erlang expression on every node.
    pub fn eval(&mut self, expression: &str) {
        for index in 0..self.size() {
            self.node(index).tell(&["eval", expression]).expect("it can");
        }
    }

    /// Makes every node write to disk now which queues there are.
    pub fn write_down_queues(&mut self) {
        for index in 0..self.size() {
            self.node(index).write_down_queues().expect("the queues are written down");
        }
    }

    /// The broker's version, such as `4.3.6`.
    pub fn version(&self) -> String {
        let settings = self.layers().build().expect("settings");
        let api = ManagementApi::new(settings.management.as_ref().expect("a management API"));
        api.and_then(|api| api.overview()).expect("an overview").rabbitmq_version
    }

    /// Where messages are, for when some are missed.
    pub fn print_queues(&self, settings: &Settings) {
        let api = ManagementApi::new(settings.management.as_ref().expect("a management API"));
        for queue in api.and_then(|api| api.queues(&settings.broker.vhost)).expect("the queues") {
            let complete = queue.online.len() == self.size();
            if queue.messages > 0 || queue.messages_dlx > 0 || !complete || queue.leader.is_empty() {
                eprintln!(
                    "   {}: {} messages, {} ready, {} unacknowledged, {} being handed over, {} consumers; leader {}, online {:?}",
                    queue.name,
                    queue.messages,
                    queue.messages_ready,
                    queue.messages_unacknowledged,
                    queue.messages_dlx,
                    queue.consumers,
                    queue.leader,
                    queue.online
                );
            }
        }
    }

    /// Has all queues that hold dead letters try again.
    pub fn unstick(&self, settings: &Settings) {
        let topology = Topology::new(settings.topology.clone());
        let report = admin::unstick(settings, &topology, &UnstickOptions::default());
        eprintln!("   {:?}", report.expect("they try again"));
    }

    /// Restarts, in order, each node that leads a queue with messages that are being
    /// handed over.
    pub fn restart_leaders_of_stuck_levels(&mut self, settings: &Settings) {
        let api = ManagementApi::new(settings.management.as_ref().expect("a management API"));
        let queues = api.and_then(|api| api.queues(&settings.broker.vhost)).expect("the queues");
        let leaders: BTreeSet<_> = queues
            .iter()
            .filter(|queue| queue.messages_dlx > 0)
            .filter_map(|queue| self.position(&queue.leader))
            .collect();
        for leader in leaders {
            self.node(leader).stop().expect("it stops");
            self.node(leader).restart().expect("it starts again");
        }
    }

    /// The node that leads the level with the most messages in it.
    pub fn leader_of_the_hottest_level(&self, settings: &Settings) -> usize {
        let api =
            ManagementApi::new(settings.management.as_ref().expect("a management API")).expect("a client");
        for _ in 0..50 {
            let queues = api.queues(&settings.broker.vhost).unwrap_or_default();
            let hottest = queues
                .iter()
                .filter(|queue| queue.name.contains(".level.") && queue.messages > 0)
                .max_by_key(|queue| queue.messages);
            if let Some(position) = hottest.and_then(|queue| self.cluster().position(&queue.leader)) {
                return position;
            }
            thread::sleep(Duration::from_millis(200));
        }
        panic!("no level has messages");
    }
}
