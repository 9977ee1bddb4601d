//! The single steps of adding an application.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::{
    compare::Observed,
    management::{ManagementApi, Permission, QueueInfo, TopicPermission, UserInfo},
};
use delayline_amqp::{
    Session,
    broker::{Broker, Secret},
};
use delayline_core::{
    codec::AppKey,
    shell::quoted,
    topology::{Argument, Binding, Endpoint, Exchange, Names, Object, Queue, Topology},
};

use crate::{
    AdminError, ObjectState,
    apps::{AppQueue, AppSpec, Delivery, Target, rights::rights},
    doing, examine,
    journal::lost,
    observe_with,
    retention::Retention,
};

/// One thing that an application has, in the order in which they are made: topic permissions
/// come before the permission they restrict.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// A queue or exchange of the application that must exist already.
    Stands(Endpoint),
    /// One of the exchanges that let its messages be recalled.
    Exchange(Exchange),
    /// Its queue, its landing queue, or the queue of its recalled messages.
    Queue(Queue),
    /// Its binding.
    Binding(Binding),
    /// Its user, and the password to create it with.
    User(String, Option<Secret>),
    /// The keys it may use on an exchange.
    Topic(TopicPermission),
    /// What it may do.
    Permission(Permission),
}

/// Everything an application should have.
pub(crate) fn steps(topology: &Topology, spec: &AppSpec) -> Vec<Step> {
    let mut steps = Vec::new();
    let app = &spec.app;
    let own_queue = |queue: &AppQueue| match queue.existing {
        true => Step::Stands(Endpoint::Queue(queue.name.clone())),
        false => Step::Queue(own(topology, app, queue)),
    };
    let landing = |exchange: &str, key: Option<&str>| {
        let queue = topology.landing_queue(app, exchange, key);
        let binding = topology.app_binding(app, &queue.name);
        [Step::Queue(queue), Step::Binding(binding)]
    };
    match &spec.delivery {
        Delivery::Direct(queue) => {
            steps.push(own_queue(queue));
            steps.push(Step::Binding(topology.app_binding(app, &queue.name)));
        }
        Delivery::Landing(Target::Queue(queue)) => {
            steps.push(own_queue(queue));
            // The default exchange routes to the queue of that name.
            steps.extend(landing("", Some(&queue.name)));
        }
        Delivery::Landing(Target::Exchange { exchange, key, queue }) => {
            steps.push(Step::Stands(Endpoint::Exchange(exchange.clone())));
            steps.extend(queue.iter().map(|queue| Step::Stands(Endpoint::Queue(queue.clone()))));
            steps.extend(landing(exchange, key.as_deref()));
        }
        Delivery::Nothing => {}
    }
    if let Some(settings) = spec.recall
        && let Some(to) = arrives_in(topology, spec)
    {
        steps.extend(topology.recall(app, Endpoint::Queue(to), settings).into_iter().map(Step::from));
    }
    if let Some(user) = &spec.user {
        let (permission, topics) = rights(topology, spec, user);
        steps.push(Step::User(user.name.clone(), user.password.clone()));
        steps.extend(topics.into_iter().map(Step::Topic));
        steps.push(Step::Permission(permission));
    }
    steps
}

/// The queue that an application consumes, as it is declared.
fn own(topology: &Topology, app: &AppKey, queue: &AppQueue) -> Queue {
    let declared = topology.app_queue(app, &queue.name, queue.retry);
    match queue.native_retry {
        Some(retry) => declared.with_native_retry(retry),
        None => declared,
    }
}

/// The queue in which its messages arrive from dispatch.
fn arrives_in(topology: &Topology, spec: &AppSpec) -> Option<String> {
    match &spec.delivery {
        Delivery::Direct(queue) => Some(queue.name.clone()),
        Delivery::Landing(_) => Some(topology.names().landing(&spec.app)),
        Delivery::Nothing => None,
    }
}

impl From<Object> for Step {
    fn from(object: Object) -> Self {
        match object {
            Object::Exchange(exchange) => Self::Exchange(exchange),
            Object::Queue(queue) => Self::Queue(queue),
            Object::Binding(binding) => Self::Binding(binding),
        }
    }
}

/// What is on the broker, as far as the steps need to know.
pub(super) struct Standing {
    pub(super) vhost: String,
    pub(super) observed: Observed,
    pub(super) users: Vec<UserInfo>,
    pub(super) permissions: Vec<Permission>,
    pub(super) topics: Vec<TopicPermission>,
}

impl Standing {
    /// Asks the broker; about users only if a user matters, since that needs an
    /// administrator.
    pub(super) fn look(api: &ManagementApi, vhost: &str, users: bool) -> Result<Self, AdminError> {
        let observed = observe_with(api, vhost)?;
        let vhost_name = vhost.to_owned();
        Ok(match users {
            true => Self {
                vhost: vhost_name,
                observed,
                users: api.users()?,
                permissions: api.permissions(vhost)?,
                topics: api.topic_permissions(vhost)?,
            },
            false => Self {
                vhost: vhost_name,
                observed,
                users: Vec::new(),
                permissions: Vec::new(),
                topics: Vec::new(),
            },
        })
    }

    pub(super) fn has_queue(&self, name: &str) -> bool {
        self.observed.queues.iter().any(|queue| queue.name == name)
    }

    pub(super) fn has_exchange(&self, name: &str) -> bool {
        self.observed.exchanges.iter().any(|exchange| exchange.name == name)
    }
}

/// The state of a step on the broker.
pub(super) enum Found {
    Missing,
    Same,
    /// Something else is in the way, and what.
    Different(String),
    /// It would be created, but there is no password for it.
    NoPassword(String),
}

impl Step {
    /// Looks only, and changes nothing.
    pub(super) fn look(
        &self,
        standing: &Standing,
        session: &mut Session,
        topology: &Topology,
    ) -> Result<Found, AdminError> {
        let found = match self {
            Self::Stands(Endpoint::Queue(name)) if standing.has_queue(name) => Found::Same,
            Self::Stands(Endpoint::Exchange(name)) if standing.has_exchange(name) => Found::Same,
            Self::Stands(end) => Found::Different(format!("{end} should already exist, but does not")),
            // Asking over AMQP for something that is missing leaves an error in the broker's
            // log.
            Self::Exchange(exchange) if !standing.has_exchange(&exchange.name) => Found::Missing,
            Self::Exchange(exchange) => {
                match examine::exchange(session, exchange).map_err(doing(format!("looking at {self}")))? {
                    ObjectState::Missing => Found::Missing,
                    ObjectState::Same => Found::Same,
                    ObjectState::Different(conflict) => Found::Different(conflict.to_string()),
                }
            }
            Self::Queue(queue) if !standing.has_queue(&queue.name) => Found::Missing,
            Self::Queue(queue) => {
                match examine::queue(session, queue).map_err(doing(format!("looking at {self}")))? {
                    ObjectState::Missing => Found::Missing,
                    ObjectState::Same => Found::Same,
                    ObjectState::Different(_) if keeps_as_wanted(queue, standing, topology) => Found::Same,
                    ObjectState::Different(conflict) => {
                        Found::Different(format!("{conflict}; {}", remedy(queue, standing, topology)))
                    }
                }
            }
            Self::Binding(binding) => bound(binding, standing, topology.names()),
            Self::User(name, password) => user(name, password.is_some(), standing),
            Self::Topic(wanted) => {
                let same =
                    |other: &&TopicPermission| other.user == wanted.user && other.exchange == wanted.exchange;
                compare(self, standing.topics.iter().find(same), wanted, |it| {
                    format!("write `{}`, read `{}`", it.write, it.read)
                })
            }
            Self::Permission(wanted) => {
                let of_user = |other: &&Permission| other.user == wanted.user;
                compare(self, standing.permissions.iter().find(of_user), wanted, |it| {
                    format!("configure `{}`, write `{}`, read `{}`", it.configure, it.write, it.read)
                })
            }
        };
        Ok(found)
    }

    /// What is wrong with the journal that this step finds, if it is lost, and what to do.
    pub(super) fn lost_journal(
        &self,
        broker: &Broker,
        standing: &Standing,
        topology: &Topology,
    ) -> Result<Option<String>, AdminError> {
        let Self::Queue(Queue { name, .. }) = self else { return Ok(None) };
        if topology.names().app_of_journal(name).is_none() {
            return Ok(None);
        }
        // RabbitMQ 4.0 does not list one that is lost.
        let unlisted = QueueInfo { name: name.clone(), ..QueueInfo::default() };
        let listed = standing.observed.queues.iter().find(|info| info.name == *name);
        let journal = listed.unwrap_or(&unlisted);
        let lost = lost::lost(broker, journal).map_err(doing(format!("looking at {self}")))?;
        Ok(lost.map(|_| {
            let way_out = lost::way_out(name, &standing.vhost);
            format!("{self}: {}. {way_out} and then add the application again", lost::WHAT)
        }))
    }

    /// Whether this is a stream.
    pub(super) fn is_stream(&self) -> bool {
        let stream = Argument::from("stream");
        matches!(self, Self::Queue(queue) if queue.arguments.get("x-queue-type") == Some(&stream))
    }

    /// Carries the step out.
    pub(super) fn make(
        &self,
        api: &ManagementApi,
        vhost: &str,
        session: &mut Session,
    ) -> Result<(), AdminError> {
        match self {
            Self::Stands(_) => {}
            Self::Exchange(exchange) => {
                session.declare_exchange(exchange).map_err(doing(format!("declaring {self}")))?;
            }
            Self::Queue(queue) => session.declare_queue(queue).map_err(doing(format!("declaring {self}")))?,
            Self::Binding(binding) => session.bind(binding).map_err(doing(format!("making the {self}")))?,
            Self::User(name, Some(password)) => api.create_user(name, password, "")?,
            Self::User(_, None) => {}
            Self::Topic(topic) => api.set_topic_permission(vhost, topic)?,
            Self::Permission(permission) => api.set_permission(vhost, permission)?,
        }
        Ok(())
    }

    /// Whether this is a permission that `--replace-permissions` may overwrite.
    pub(super) fn is_permission(&self) -> bool {
        matches!(self, Self::Topic(_) | Self::Permission(_))
    }
}

/// Whether this is a journal that keeps as much as it should, by a policy.
fn keeps_as_wanted(queue: &Queue, standing: &Standing, topology: &Topology) -> bool {
    journal(queue, standing, topology)
        .is_some_and(|found| Retention::effective(found) == Retention::wanted(queue))
}

/// The journal that stands in the place of this one and differs from it in what it keeps, if it
/// does.
fn journal<'a>(queue: &Queue, standing: &'a Standing, topology: &Topology) -> Option<&'a QueueInfo> {
    const RETENTION: [&str; 3] = ["x-max-age", "x-max-length-bytes", "x-stream-max-segment-size-bytes"];
    topology.names().app_of_journal(&queue.name)?;
    let found = standing.observed.queues.iter().find(|info| info.name == queue.name)?;
    let wanted = serde_json::to_value(&queue.arguments).unwrap_or_default();
    let names: BTreeSet<_> = queue.arguments.keys().chain(found.arguments.keys()).collect();
    let same =
        |name: &&String| RETENTION.contains(&name.as_str()) || wanted.get(name) == found.arguments.get(*name);
    names.iter().all(same).then_some(found)
}

/// What to do about a queue that has other arguments.
fn remedy(queue: &Queue, standing: &Standing, topology: &Topology) -> String {
    const EXCHANGE: &str = "x-dead-letter-exchange";
    if journal(queue, standing, topology).is_some() {
        return format!(
            "what a journal keeps can be changed only by a policy: {}, and then add the application again",
            Retention::wanted(queue).policy(&queue.name, &standing.vhost)
        );
    }
    let anew = format!("let `{}` run empty, delete it and add the application again", queue.name);
    if topology.owns_queue(&queue.name) {
        return anew;
    }
    let found = standing.observed.queues.iter().find(|info| info.name == queue.name);
    let as_it_is = "use it as it is with --existing";
    let lacks = |argument: &str| {
        let wanted = queue.arguments.contains_key(argument);
        wanted && found.is_some_and(|info| !info.arguments.contains_key(argument))
    };
    match found {
        Some(info) if lacks(EXCHANGE) || Queue::NATIVE_RETRY.iter().any(|argument| lacks(argument)) => {
            format!("{}; or {anew}", give_it_retries(queue, info, &standing.vhost))
        }
        _ => format!("{as_it_is}, or {anew}"),
    }
}

/// How to get retries for a queue that exists: its arguments cannot be changed, but a policy
/// has the same effect.
pub(super) fn give_it_retries(wanted: &Queue, found: &QueueInfo, vhost: &str) -> String {
    let quorum = found.kind.contains("quorum");
    let by_policy = wanted.arguments.iter().filter_map(|(argument, value)| {
        let key = argument.strip_prefix("x-")?;
        let for_both = ["dead-letter-exchange", "dead-letter-routing-key"].contains(&key);
        let for_quorum = ["dead-letter-strategy", "overflow"].contains(&key)
            || Queue::NATIVE_RETRY.contains(&argument.as_str());
        let missing = !found.arguments.contains_key(argument);
        (missing && (for_both || quorum && for_quorum)).then_some((key, value))
    });
    let definition = serde_json::json!(by_policy.collect::<BTreeMap<_, _>>());
    let queue = &wanted.name;
    format!(
        "to have it retried without declaring the queue again: rabbitmqctl set_policy -p {} --apply-to \
         queues --priority 1 {} {} {} (only one policy applies to a queue: add what another one sets there \
         now), and then add the application with --existing",
        quoted(vhost),
        quoted(&format!("retry-{queue}")),
        quoted(&format!("^{}$", regex::escape(queue))),
        quoted(&definition.to_string()),
    )
}

fn compare<T: PartialEq>(step: &Step, found: Option<&T>, wanted: &T, show: impl Fn(&T) -> String) -> Found {
    match found {
        None => Found::Missing,
        Some(found) if found == wanted => Found::Same,
        Some(found) => Found::Different(format!(
            "{step} should be {}, but is {} (--replace-permissions overwrites it)",
            show(wanted),
            show(found)
        )),
    }
}

/// An app key leads to one place: a second binding would deliver copies. Only those who listen
/// are to get these.
fn bound(wanted: &Binding, standing: &Standing, names: &Names) -> Found {
    let bindings = standing.observed.bindings_of(&wanted.source);
    let same_key = bindings.iter().filter(|binding| binding.key == wanted.key);
    let same_key: Vec<_> = same_key.filter(|binding| !names.listens(&binding.destination)).collect();
    match same_key.iter().find(|binding| binding.destination != wanted.destination) {
        Some(other) => Found::Different(format!(
            "exchange `{}` is already bound to {}, and a second binding would deliver a copy of every message",
            wanted.source, other.destination
        )),
        None if same_key.is_empty() => Found::Missing,
        None => Found::Same,
    }
}

fn user(name: &str, has_password: bool, standing: &Standing) -> Found {
    match standing.users.iter().find(|user| user.name == name) {
        Some(user) if user.has_tag("administrator") => Found::Different(format!(
            "user `{name}` is an administrator and can give itself any permission; use another user"
        )),
        Some(user) if user.has_tag("policymaker") => Found::Different(format!(
            "user `{name}` has the tag policymaker, and can set policies that drop every application's \
             messages; use another user, or remove the tag"
        )),
        Some(_) => Found::Same,
        None if has_password => Found::Missing,
        None => Found::NoPassword(format!(
            "user `{name}` does not exist, and there is no password to create it with; set \
             DELAYLINE_APP_PASSWORD or app_password_file, create it yourself, or use --no-user"
        )),
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stands(end) => end.fmt(f),
            Self::Exchange(exchange) => write!(f, "exchange `{}`", exchange.name),
            Self::Queue(queue) => write!(f, "queue `{}`", queue.name),
            Self::Binding(binding) => {
                write!(f, "binding of {} to exchange `{}`", binding.destination, binding.source)
            }
            Self::User(name, _) => write!(f, "user `{name}`"),
            Self::Topic(topic) => {
                write!(f, "topic permission of user `{}` on exchange `{}`", topic.user, topic.exchange)
            }
            Self::Permission(permission) => write!(f, "permissions of user `{}`", permission.user),
        }
    }
}
