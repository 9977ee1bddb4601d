//! Several private nodes that form a cluster.

use delayline_settings::Layers;

use crate::{
    error::NodeError, installation::Installation, network::Network, options::ClusterOptions,
    private::PrivateNode, ready::where_nobody_is, spot::Spot,
};

/// A running cluster. Dropping it stops its nodes and removes their files. The end of this process
/// does the same, even after a crash.
#[derive(Debug)]
pub struct PrivateCluster {
    // Dropped before the network that the nodes are in.
    nodes: Vec<PrivateNode>,
    network: Option<Network>,
}

impl PrivateCluster {
    /// Starts the nodes and waits until each answers and sees all others.
    ///
    /// # Errors
    /// RabbitMQ is not installed, a node does not start within five minutes, or the network for
    /// separable nodes cannot be created.
    pub fn start(options: &ClusterOptions) -> Result<Self, NodeError> {
        let installation = Installation::find().ok_or(NodeError::NotInstalled)?;
        where_nobody_is(|| Self::start_once(&installation, options))
    }

    fn start_once(installation: &Installation, options: &ClusterOptions) -> Result<Self, NodeError> {
        let network = options.separable.then(|| Network::new(options.size)).transpose()?;
        let mut spots = spots(options.size, network.as_ref())?.into_iter();
        let mut nodes = Vec::new();
        // The first node exists before the others search for it, so they need not wait for each
        // other.
        for (index, spot) in spots.by_ref().enumerate() {
            let mut node = PrivateNode::prepare(installation.clone(), options.node.clone(), spot)?;
            node.launch()?;
            if index == 0 {
                node.wait_until_ready()?;
            }
            nodes.push(node);
        }
        for node in &mut nodes[1..] {
            node.wait_until_ready()?;
        }
        let cluster = Self { nodes, network };
        for node in &cluster.nodes {
            node.wait_for_peers(options.size)?;
        }
        Ok(cluster)
    }

    /// The nodes, in the order of their start.
    #[must_use]
    pub fn nodes(&self) -> &[PrivateNode] {
        &self.nodes
    }

    /// A node of the cluster, to stop or start it.
    pub fn node(&mut self, index: usize) -> &mut PrivateNode {
        &mut self.nodes[index]
    }

    /// The node with this name.
    #[must_use]
    pub fn position(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.name() == name)
    }

    /// Drops every packet between a node and all other machines and nodes.
    ///
    /// # Errors
    /// The cluster is not separable.
    pub fn cut_off(&self, index: usize) -> Result<(), NodeError> {
        self.cut(index, true)
    }

    /// Ends [`cut_off`](Self::cut_off).
    ///
    /// # Errors
    /// The cluster is not separable.
    pub fn heal(&self, index: usize) -> Result<(), NodeError> {
        self.cut(index, false)
    }

    fn cut(&self, index: usize, cut: bool) -> Result<(), NodeError> {
        match &self.network {
            Some(network) => network.cut(index, cut),
            None => Err(NodeError::Network { reason: "the cluster was started without one".into() }),
        }
    }

    /// Settings for a client of the cluster that prefers this node and lists all.
    #[must_use]
    pub fn settings(&self, preferred: usize) -> Layers {
        let order = |text: fn(&PrivateNode) -> String| {
            let (before, from) = self.nodes.split_at(preferred);
            from.iter().chain(before).map(text).collect::<Vec<_>>()
        };
        let settings = self.nodes[preferred]
            .settings()
            .set("management_url", order(PrivateNode::management_url).join(","));
        match &order(PrivateNode::authority)[1..] {
            [] => settings,
            others => settings.set("other_hosts", others.join(",")),
        }
    }
}

fn spots(size: usize, network: Option<&Network>) -> Result<Vec<Spot>, NodeError> {
    let mut spots: Vec<Spot> = (0..size)
        .map(|index| match network {
            Some(network) => Ok(Spot::apart(&network.namespace(index), network.address(index))),
            None => Spot::local(),
        })
        .collect::<Result<_, _>>()
        .map_err(NodeError::io("find free ports"))?;
    let first = spots.first().map(|spot| spot.name.clone()).unwrap_or_default();
    let cluster = spots.first().map(|spot| spot.cluster.clone()).unwrap_or_default();
    let cookie = spots.first().map(|spot| spot.cookie.clone()).unwrap_or_default();
    let epmd = spots.first().map(|spot| spot.ports.epmd).unwrap_or_default();
    for (index, spot) in spots.iter_mut().enumerate() {
        // The first node searches for no other: some versions would wait for minutes.
        if index > 0 {
            spot.peers = vec![first.clone(), spot.name.clone()];
        }
        spot.cookie.clone_from(&cookie);
        spot.cluster.clone_from(&cluster);
        // On one machine, the nodes find each other through one port mapper.
        if network.is_none() {
            spot.ports.epmd = epmd;
            spot.has_epmd = index > 0;
        }
    }
    Ok(spots)
}
