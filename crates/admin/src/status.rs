//! How many messages wait where.

use serde::Serialize;

use crate::{
    compare::Observed,
    management::{ManagementApi, QueueInfo},
};
use delayline::{
    amqp::Session,
    codec::{Level, RoutingKey},
    topology::{Endpoint, Topology},
};
use delayline_settings::Settings;

use crate::{
    AdminError, doing,
    handover::{Sign, remembered},
    observe,
};

/// The state of a set.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// The levels, from the longest wait to the shortest.
    pub levels: Vec<LevelStatus>,
    /// The applications bound to dispatch; `None` without the management API.
    pub apps: Option<Vec<AppBinding>>,
    /// Messages in the unroutable queue; `None` if the queue is missing.
    pub unroutable: Option<u64>,
    /// Failed messages that no retry service has taken yet; `None` if their queue is missing.
    pub retry: Option<u64>,
    /// Messages that have used up their attempts or their time; `None` if their queue is
    /// missing.
    pub parked: Option<u64>,
    /// What could not be seen, and why.
    pub unseen: Vec<String>,
}

/// One level.
#[derive(Debug, Clone, Serialize)]
pub struct LevelStatus {
    /// 27 to 0.
    pub level: Level,
    /// The name of its queue.
    pub queue: String,
    /// How long a message waits here, in ms.
    pub wait_ms: u64,
    /// Messages that wait; `None` if the queue is missing.
    pub ready: Option<u64>,
    /// Messages whose time is up and that the next queue has not confirmed. When many fall
    /// due together, this number is large. `None` without the management API.
    pub handing_on: Option<u64>,
    /// Those among them that do not move, as the broker's counts of the last minute show;
    /// `None` without the management API.
    pub stuck: Option<u64>,
}

/// A binding of the dispatch exchange.
#[derive(Debug, Clone, Serialize)]
pub struct AppBinding {
    /// The app key; `None` if the pattern is not an exact one.
    pub app: Option<String>,
    /// The binding key, if it is not an exact one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// Where the messages go.
    pub destination: Endpoint,
}

/// Collects the state of a set.
///
/// # Errors
/// If the broker cannot be asked.
pub fn status(settings: &Settings, topology: &Topology) -> Result<Status, AdminError> {
    let mut session = Session::open(&settings.broker).map_err(doing("connecting"))?;
    let observed = observe(settings.management.as_ref(), &settings.broker.vhost)?;
    let api = settings.management.as_ref().map(ManagementApi::new).transpose()?;
    let mut levels = Vec::new();
    let (mut unroutable, mut retry, mut parked) = (None, None, None);
    let names = topology.names();
    for queue in topology.queues() {
        // The count over AMQP is the queue's own; the API's is up to 5 s old.
        let depth =
            session.queue_depth(&queue.name).map_err(doing(format!("looking at queue `{}`", queue.name)))?;
        let ready = depth.map(|depth| u64::from(depth.ready));
        match queue.level {
            Some(level) => {
                let info = observed.as_ref().ok().and_then(|observed| find(observed, &queue.name));
                let handing_on = info.map(|info| info.messages_dlx);
                levels.push(LevelStatus {
                    level,
                    queue: queue.name.clone(),
                    wait_ms: u64::try_from(topology.settings().unit.wait(level).as_millis())
                        .unwrap_or(u64::MAX),
                    ready,
                    handing_on,
                    stuck: match (handing_on, &api) {
                        (Some(1..), Some(api)) => {
                            let looks = remembered(api, &settings.broker.vhost, &queue.name)?;
                            Some(Sign::of(&looks).stuck())
                        }
                        _ => handing_on,
                    },
                });
            }
            None if queue.name == names.retry() => retry = ready,
            None if queue.name == names.parked() => parked = ready,
            None => unroutable = ready,
        }
    }
    levels.sort_by_key(|level| std::cmp::Reverse(level.level));
    let (apps, unseen) = match &observed {
        Ok(observed) => (Some(apps(topology, observed)), Vec::new()),
        Err(reason) => (None, vec![format!("stuck messages and bindings: {reason}")]),
    };
    Ok(Status { levels, apps, unroutable, retry, parked, unseen })
}

fn find<'a>(observed: &'a Observed, name: &str) -> Option<&'a QueueInfo> {
    observed.queues.iter().find(|queue| queue.name == name)
}

fn apps(topology: &Topology, observed: &Observed) -> Vec<AppBinding> {
    observed
        .dispatch_bindings(topology)
        .into_iter()
        .map(|binding| {
            let app = RoutingKey::app_of_pattern(&binding.key).ok().map(|app| app.to_string());
            let pattern = if app.is_none() { Some(binding.key) } else { None };
            AppBinding { app, pattern, destination: binding.destination }
        })
        .collect()
}
