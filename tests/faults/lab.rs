//! The brokers that the faults are applied to.

use std::{collections::BTreeSet, thread, time::Duration};

use delayline_admin::{self as admin, UnstickOptions};
use delayline_amqp::{Session, broker::Broker};
use delayline_broker::ManagementApi;
use delayline_core::topology::Topology;
use delayline_node::{ClusterOptions, NodeError, NodeOptions, PrivateCluster, PrivateNode};
use delayline_settings::{Layers, Settings};

/// One node, or a cluster of three.
pub enum Lab {
    Single(Box<PrivateNode>),
    Cluster { cluster: PrivateCluster, separable: bool },
}

/// Installs the set, and opens a session to declare the rest.
///
/// During a run, connections end if the broker is silent for two seconds. That is too short for the
/// installation on a busy machine.
pub fn install(settings: &Settings) -> Session {
    let mut settings = settings.clone();
    settings.broker.heartbeat = Broker::HEARTBEAT;
    let topology = Topology::new(settings.topology.clone());
    admin::install(&settings, &topology, false, || {}).expect("the set is installed");
    Session::open(&settings.broker).expect("a session")
}

impl Lab {
    /// Starts the nodes with this time limit for a hand-over between queues, or with the broker's
    /// default settings where they matter.
    pub fn start(cluster: bool, confirm_timeout_ms: Option<u64>) -> Result<Self, NodeError> {
        let node = NodeOptions {
            // The recommended setting for a cluster: the smaller part of a divided cluster pauses
            // until the division ends. Versions without Mnesia ignore it.
            config: if cluster {
                "cluster_partition_handling = pause_minority\n".into()
            } else {
                String::new()
            },
            rabbit: vec![match confirm_timeout_ms {
                Some(limit) => format!("{{dead_letter_worker_publisher_confirm_timeout, {limit}}}"),
                // The shipped interval; private nodes use a shorter one.
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
            self.node(index).tell(&["eval", expression]).expect("the node runs the expression");
        }
    }

    /// Makes every node write the list of its queues to disk now.
    pub fn write_down_queues(&mut self) {
        for index in 0..self.size() {
            self.node(index).write_down_queues().expect("the list of queues is written to disk");
        }
    }

    /// The broker's version, such as `4.3.6`.
    pub fn version(&self) -> String {
        let settings = self.layers().build().expect("settings");
        let api = ManagementApi::new(settings.management.as_ref().expect("a management API"));
        api.and_then(|api| api.overview()).expect("an overview").rabbitmq_version
    }

    /// Prints where the messages are, to explain missing ones.
    pub fn print_queues(&self, settings: &Settings) {
        let api = ManagementApi::new(settings.management.as_ref().expect("a management API"));
        for queue in api.and_then(|api| api.queues(&settings.broker.vhost)).expect("the queues") {
            let complete = queue.online.len() == self.size();
            if queue.messages > Some(0)
                || queue.messages_dlx > Some(0)
                || !complete
                || queue.leader.is_empty()
            {
                eprintln!(
                    "   {}: {:?} messages, {:?} ready, {:?} unacknowledged, {:?} being handed over, {:?} consumers; leader {}, online {:?}",
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

    /// Makes all queues with stuck dead letters try again.
    pub fn unstick(&self, settings: &Settings) {
        let topology = Topology::new(settings.topology.clone());
        let report = admin::unstick(settings, &topology, &UnstickOptions::default());
        eprintln!("   {:?}", report.expect("the queues try again"));
    }

    /// Restarts each node that leads a queue with messages in hand-over, one after the other.
    pub fn restart_leaders_of_stuck_levels(&mut self, settings: &Settings) {
        let api = ManagementApi::new(settings.management.as_ref().expect("a management API"));
        let queues = api.and_then(|api| api.queues(&settings.broker.vhost)).expect("the queues");
        let leaders: BTreeSet<_> = queues
            .iter()
            .filter(|queue| queue.messages_dlx > Some(0))
            .filter_map(|queue| self.position(&queue.leader))
            .collect();
        for leader in leaders {
            self.node(leader).stop().expect("the node stops");
            self.node(leader).restart().expect("the node starts again");
        }
    }

    /// The node that leads the level with the most messages.
    pub fn leader_of_the_hottest_level(&self, settings: &Settings) -> usize {
        let api =
            ManagementApi::new(settings.management.as_ref().expect("a management API")).expect("a client");
        // The counts of the management API are seconds old, and the messages may be gone by then.
        let mut broker = settings.broker.clone();
        broker.heartbeat = Broker::HEARTBEAT;
        let mut session = Session::open(&broker).expect("a session");
        let mut depth =
            |queue: &str| session.queue_depth(queue).expect("an answer").and_then(|it| it.ready).unwrap_or(0);
        let topology = Topology::new(settings.topology.clone());
        let levels = topology.queues().filter(|queue| queue.level.is_some());
        let hottest = levels.max_by_key(|queue| depth(&queue.name)).expect("a level");
        for _ in 0..600 {
            let queues = api.queues(&settings.broker.vhost).unwrap_or_default();
            let leader = queues.iter().find(|queue| queue.name == hottest.name).map(|queue| &queue.leader);
            if let Some(position) = leader.and_then(|leader| self.cluster().position(leader)) {
                return position;
            }
            thread::sleep(Duration::from_millis(200));
        }
        panic!("nobody leads {}", hottest.name);
    }
}
