//! Removing an application: the reverse of adding.

use std::{
    fmt,
    sync::atomic::AtomicBool,
    thread,
    time::{Duration, Instant},
};

use delayline_amqp::{HAND_OVER, Session};
use delayline_broker::{BindingInfo, ManagementApi, QueueInfo, Snapshot, is_of_program};
use delayline_core::{
    codec::AppKey,
    topology::{Binding, Endpoint, Exchange, ExchangeKind, Object, Queue, Rejected, Topology},
};
use delayline_settings::Settings;
use serde::Serialize;

use super::{api, rights::is_of_adding};
use crate::{
    engine::Closed, engine::Gate, engine::Removal, engine::Removed, engine::Waiting, engine::contents,
    engine::contents::SETTLE, engine::contents::When, engine::contents::contents, engine::contents::last,
    engine::contents::may_be_gone, engine::look::Users, engine::look::look,
};
use delayline_inspect::landing;
use delayline_messages::{
    error::AdminError, error::connect, error::doing, examine, examine::ObjectState, number::counted,
    number::either, scheduled::PendingCopies, scheduled::count_recalls_of, scheduled::lost,
    scheduled::lost::Lost, scheduled::pending_copies,
};

/// The parts to remove.
#[derive(Debug, Clone, Default)]
pub struct RemoveOptions {
    /// The user whose permissions in this vhost are removed; `None` leaves users alone.
    pub user: Option<String>,
    /// Whether to delete the user itself, in all vhosts.
    pub delete_user: bool,
    /// The application's queue, deleted if no other binding leads to it.
    pub queue: Option<String>,
    /// Whether to keep the queue.
    pub keep_queue: bool,
    /// Whether to remove only recall; everything else stays.
    pub only_recall: bool,
    /// Whether to discard waiting messages and to cut off consumers.
    pub force: bool,
    /// Whether to change nothing.
    pub dry_run: bool,
}

/// The removed parts, or the parts that would be removed.
#[derive(Debug, Clone, Default, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct RemoveReport {
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// The removed parts, in this order.
    pub removed: Vec<String>,
    /// The parts that were left alone, and why.
    pub left: Vec<String>,
    /// Messages that were lost with the queues, with `force`.
    pub discarded: Vec<Waiting>,
    /// Whether a signal came when the removal could no longer be undone: it was completed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
}

/// Why nothing was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct RemoveRefusal {
    /// Where messages wait, and how many.
    pub waiting: Vec<Waiting>,
    /// Queues that have consumers, and how many.
    pub consumed: Vec<(String, u64)>,
    /// How many recalls are pending: without the application, recalled messages would become unroutable
    /// when they are due.
    pub recalls: u32,
    /// How many schedules it manages itself.
    pub schedules: u32,
    /// How many messages of its journal are not due yet.
    pub journalled: PendingCopies,
    /// The differences from the objects that adding makes.
    pub conflicts: Vec<String>,
    /// Whether the binding was missing for some seconds before it was restored. Messages that fell due for
    /// the application meanwhile are unroutable, and can be replayed.
    pub unbound_meanwhile: bool,
    /// Whether a signal came: then everything that was closed was opened again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
}

impl RemoveRefusal {
    /// Whether messages, recalls, schedules or consumers would be lost or cut off, so that waiting helps.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        let messages = !self.waiting.is_empty() || self.journalled.messages > 0;
        messages || !self.consumed.is_empty() || self.recalls > 0 || self.schedules > 0
    }
}

impl fmt::Display for RemoveRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut reasons = self.conflicts.clone();
        for waiting in &self.waiting {
            reasons.push(waiting.to_string());
        }
        for (queue, consumers) in &self.consumed {
            reasons.push(format!("{consumers} consumers are attached to `{queue}`"));
        }
        let recalls = u64::from(self.recalls);
        if recalls > 0 {
            reasons.push(format!("{} {} pending", counted(recalls, "recall"), either(recalls, "is", "are")));
        }
        if let PendingCopies { messages: messages @ 1.., until: Some(until), .. } = &self.journalled {
            reasons.push(format!(
                "{} in its journal {} not due yet, the last at {until}",
                counted(*messages, "message"),
                either(*messages, "is", "are")
            ));
        }
        if self.schedules > 0 {
            reasons.push(format!("it has {} of its own", counted(self.schedules.into(), "schedule")));
        }
        if self.interrupted {
            reasons.push("interrupted, and everything is as it was".into());
        }
        f.write_str(&reasons.join("; "))
    }
}

/// The parts of an application.
struct Belongings {
    user: Option<String>,
    bindings: Vec<Binding>,
    /// Its landing queue, and its queue while it is paused, which comes before that.
    landing: Vec<String>,
    queue: Option<String>,
    /// The exchanges that let its messages be recalled, in the order in which they go.
    exchanges: Vec<String>,
    /// The queue of its recalled messages.
    recalled: Option<String>,
    /// How many recalls are pending.
    recalls: u32,
    /// Its journal.
    journal: Option<String>,
    /// The stream of the schedules that it manages itself.
    schedules: Option<String>,
}

/// Removes an application: its bindings, its permissions and then the rules on its keys, its recall
/// exchanges, its landing queue, its queue. The binding goes first, so that no new messages arrive while
/// the queues are counted. It is restored if messages wait, or if `stop` is set. After that the removal is
/// completed.
///
/// # Errors If the broker refuses or is lost, or there is no management API; removing again continues from
/// there.
pub fn remove_app(
    settings: &Settings,
    topology: &Topology,
    app: &AppKey,
    options: &RemoveOptions,
    stop: &AtomicBool,
) -> Result<Result<RemoveReport, RemoveRefusal>, AdminError> {
    let api = api(settings)?;
    let vhost = &settings.broker.vhost;
    let mut session = connect(&settings.broker)?;
    let look = |users| {
        let named = options.queue.iter().cloned().map(Endpoint::Queue);
        look(&api, vhost, topology, named.collect(), users)
    };
    let snapshot = look(if options.user.is_some() { Users::Required } else { Users::No })?;
    let mut report = RemoveReport { dry_run: options.dry_run, ..RemoveReport::default() };
    let (mut belongings, mut refusal) =
        belongings(topology, app, options, (&api, &snapshot), &mut session, &mut report)?;
    if snapshot.exchanges.contains_key(&topology.names().recall(app)) {
        let pending = count_recalls_of(&api, settings, topology, app)?.pending;
        belongings.recalls = u32::try_from(pending).unwrap_or(u32::MAX);
    }
    if options.only_recall {
        belongings.only_recall(topology, app, &mut report);
    }
    count(&mut session, &snapshot, &belongings, When::First, &mut refusal)?;
    let until = Instant::now() + SETTLE;
    while !options.force
        && refusal.consumed.is_empty()
        && Instant::now() < until
        && may_be_gone(&mut session, &refusal.waiting)?
    {
        thread::sleep(Duration::from_secs(1));
        refusal.waiting.clear();
        count(&mut session, &look(Users::No)?, &belongings, When::First, &mut refusal)?;
    }
    let lost = match &belongings.journal {
        Some(journal) => lost_journal(settings, &snapshot, journal, &mut refusal)?,
        None => false,
    };
    if belongings.journal.is_some() && !options.force && !lost {
        refusal.journalled = pending_copies(settings, topology, app)?;
    }
    if belongings.schedules.is_some() && !options.force {
        let book = delayline_schedules::read(settings, topology)?.unwrap_or_default();
        let own = book.schedules().filter(|it| it.definition.name.owner().as_ref() == Some(app));
        refusal.schedules = u32::try_from(own.count()).unwrap_or(u32::MAX);
    }
    if refused(&refusal, options.force) {
        return Ok(Err(refusal));
    }
    if options.dry_run {
        report.removed = belongings.names();
        report.discarded = refusal.waiting;
        return Ok(Ok(report));
    }
    let gates: Vec<_> = belongings.bindings.iter().cloned().map(Gate::Binding).collect();
    let mut removal = Removal { broker: &settings.broker, session: &mut session, api: None, stop };
    let settle = !options.force && belongings.queues().next().is_some();
    let count = |session: &mut Session| {
        let count = || {
            let mut late = RemoveRefusal { unbound_meanwhile: !gates.is_empty(), ..RemoveRefusal::default() };
            if settle {
                count(session, &look(Users::No)?, &belongings, When::Last, &mut late)?;
            }
            Ok(late)
        };
        last(count, |late| &late.waiting)
    };
    let add = topology.settings().set.command(&["app", "add", app.as_str()]);
    let restoring = format!("restoring the application's binding (`{add}` does that, too)");
    match removal.close(&gates, settle, &restoring, count, |late| settle && refused(late, false))? {
        Closed::For(_) => {}
        Closed::Refused(late) => return Ok(Err(late)),
        Closed::Interrupted => {
            return Ok(Err(RemoveRefusal {
                interrupted: true,
                unbound_meanwhile: !gates.is_empty(),
                ..RemoveRefusal::default()
            }));
        }
    }
    if options.force {
        thread::sleep(HAND_OVER);
    }
    if !refusal.waiting.is_empty() {
        contents::calm(removal.session, belongings.queues().map(String::as_str));
    }
    if let Some(user) = &belongings.user {
        revoke(&api, topology, user, &snapshot)?;
        if options.delete_user {
            api.delete_user(user)?;
        }
    }
    let exchanges =
        belongings.exchanges.iter().map(|it| Object::Exchange(Exchange::new(it, ExchangeKind::Direct)));
    let queues = belongings.queues().chain(belongings.streams()).map(|it| Object::Queue(Queue::new(it)));
    let objects: Vec<_> = exchanges.chain(queues).collect();
    let mut removed = Removed { discarded: refusal.waiting, ..Removed::default() };
    removal.delete(&objects, &mut removed)?;
    (report.removed, report.discarded) = (belongings.names(), removed.discarded);
    report.interrupted = removal.is_stopped();
    if options.delete_user
        && let Some(user) = &belongings.user
    {
        report.removed.push(format!("user `{user}`"));
    }
    Ok(Ok(report))
}

/// Whether a journal is lost. A lost journal that cannot be deleted is a conflict.
fn lost_journal(
    settings: &Settings,
    snapshot: &Snapshot,
    journal: &str,
    refusal: &mut RemoveRefusal,
) -> Result<bool, AdminError> {
    let Some(info) = snapshot.queues.get(journal) else {
        return Ok(false);
    };
    let found = lost::lost(&settings.broker, info).map_err(doing(format!("examining `{journal}`")))?;
    if found == Some(Lost::Stuck) {
        let way_out = lost::way_out(journal, &snapshot.vhost);
        refusal.conflicts.push(format!(
            "queue `{journal}`: {}. {way_out} and then remove the application again",
            lost::WHAT
        ));
    }
    Ok(found.is_some())
}

impl Belongings {
    /// Leaves out the parts that are not for recalls.
    fn only_recall(&mut self, topology: &Topology, app: &AppKey, report: &mut RemoveReport) {
        let route = topology.recall_route(app);
        self.bindings.retain(|binding| *binding == route);
        (self.user, self.landing, self.queue) = (None, Vec::new(), None);
        let schedules = self.schedules.take();
        self.exchanges.retain(|exchange| Some(exchange) != schedules.as_ref());
        report.left.clear();
        if !self.exchanges.is_empty() || self.recalled.is_some() {
            report.left.push(format!(
                "the rights of its user: `{}` removes those that are no longer needed",
                topology.settings().set.command(&["app", "add", app.as_str(), "--replace-permissions"])
            ));
        }
    }

    /// Its queues, each before those it passes messages to.
    fn queues(&self) -> impl Iterator<Item = &String> + Clone {
        self.landing.iter().chain(&self.queue).chain(&self.recalled)
    }

    /// Its streams, which have only copies and records.
    fn streams(&self) -> impl Iterator<Item = &String> {
        self.journal.iter().chain(&self.schedules)
    }

    fn names(&self) -> Vec<String> {
        let user = self.user.iter().map(|user| format!("permissions and topic permissions of user `{user}`"));
        let bindings =
            self.bindings.iter().map(|it| format!("binding of {} to `{}`", it.destination, it.source));
        let exchanges = self.exchanges.iter().map(|exchange| format!("exchange `{exchange}`"));
        let queues = self.queues().chain(self.streams()).map(|queue| format!("queue `{queue}`"));
        user.chain(bindings).chain(exchanges).chain(queues).collect()
    }
}

fn refused(refusal: &RemoveRefusal, force: bool) -> bool {
    !refusal.conflicts.is_empty() || !force && refusal.is_in_use()
}

fn belongings(
    topology: &Topology,
    app: &AppKey,
    options: &RemoveOptions,
    (api, snapshot): (&ManagementApi, &Snapshot),
    session: &mut Session,
    report: &mut RemoveReport,
) -> Result<(Belongings, RemoveRefusal), AdminError> {
    let key = topology.app_binding(app, "").key;
    let mut bindings = snapshot.app_bindings(topology);
    bindings.retain(|binding| binding.key == key);
    let route = topology.recall_route(app);
    bindings.extend(snapshot.has(&Object::Binding(route.clone())).then_some(route));
    let landings = [topology.names().paused(app), topology.names().landing(app)];
    let landings = landings.iter().filter_map(|name| snapshot.queues.get(name));
    let landings: Vec<_> = landings.filter_map(|info| landing(topology, info)).collect();
    let direct = bindings.iter().find_map(|binding| match &binding.destination {
        Endpoint::Queue(name) if topology.names().app_of_landing(name).is_none() => Some(name.clone()),
        _ => None,
    });
    // The last one leads to the application.
    let behind = landings.last().filter(|it| it.exchange.is_empty()).and_then(|it| it.key.clone());
    let queue = direct
        .or(behind)
        .or_else(|| options.queue.clone().filter(|_| landings.is_empty()))
        .filter(|name| snapshot.queues.contains_key(name) && !topology.owns_queue(name));
    let mut refusal = RemoveRefusal::default();
    let of_program = bindings.iter().find(|it| is_of_program(topology.names(), &it.destination));
    refusal.conflicts.extend(of_program.map(|binding| program(topology, app, binding)));
    let grants = snapshot.grants.as_ref();
    let is_known = |user: &str| grants.is_some_and(|grants| grants.user(user).is_some());
    let user = options.user.clone().filter(|user| {
        grants.and_then(|grants| grants.permissions.get(user)).is_some_and(|found| {
            // Only permissions that adding gives are removed.
            let ours = is_of_adding(topology, found);
            if !ours {
                refusal.conflicts.push(format!(
                    "user `{user}` has other permissions in this vhost than an application gets (configure \
                     `{}`, write `{}`, read `{}`). Name another user with --user, or use --no-user",
                    found.configure, found.write, found.read
                ));
            }
            ours
        }) || options.delete_user && is_known(user)
    });
    if let Some(user) = options.user.as_ref().filter(|_| options.delete_user)
        && grants.is_some_and(|grants| grants.has_tag(user, "administrator"))
    {
        refusal.conflicts.push(format!(
            "user `{user}` is an administrator, which `app add` never creates; delete it yourself, or leave \
             out --delete-user"
        ));
    }
    let queue = match queue {
        Some(name) if options.keep_queue => {
            report.left.push(format!("queue `{name}`, as asked"));
            None
        }
        Some(name) => match stays(topology, app, &name, (api, snapshot), session)? {
            Some(reason) => {
                report.left.push(format!("queue `{name}`: {reason}"));
                None
            }
            None => Some(name),
        },
        None => None,
    };
    let names = topology.names();
    let [moving, from] = names.moving(app);
    let exchanges = [names.recall(app), names.through(app), moving, from, names.schedules_of(app)];
    let belongings = Belongings {
        user,
        bindings,
        landing: landings.into_iter().map(|it| it.queue).collect(),
        queue,
        exchanges: exchanges.into_iter().filter(|name| snapshot.exchanges.contains_key(name)).collect(),
        recalled: Some(names.recalled(app)).filter(|name| snapshot.queues.contains_key(name)),
        recalls: 0,
        journal: Some(names.journal(app)).filter(|name| snapshot.queues.contains_key(name)),
        schedules: Some(names.schedules_of(app)).filter(|name| snapshot.queues.contains_key(name)),
    };
    Ok((belongings, refusal))
}

/// Why the binding of a program of delayline is not removed like that of an application.
fn program(topology: &Topology, app: &AppKey, binding: &Binding) -> String {
    let to = &binding.destination;
    match topology.names().gateway_of(to.name()) {
        Some(gateway) => {
            let remove = topology.settings().set.command(&["gateway", "remove", gateway]);
            format!("{to} belongs to the gateway `{gateway}`, which `{remove}` removes")
        }
        None => format!(
            "`{app}` is a canary of `{}`, and no application: {to} disappears an hour after the canary was stopped",
            topology.settings().set.command(&["serve"])
        ),
    }
}

/// The queue of another application, or of anyone else, that dead-letters messages to a queue: a landing queue,
/// for example. All queues of the vhost are read for it.
fn fed_by(
    topology: &Topology,
    app: &AppKey,
    name: &str,
    (api, snapshot): (&ManagementApi, &Snapshot),
) -> Result<Option<String>, AdminError> {
    let own = [topology.names().paused(app), topology.names().landing(app)];
    let feeds = |info: &&QueueInfo| {
        let argument = |key: &str, policy: &str| {
            info.arguments.get(key).or_else(|| info.policy_value(policy)).and_then(|value| value.as_str())
        };
        let exchange = argument("x-dead-letter-exchange", "dead-letter-exchange");
        let key = argument("x-dead-letter-routing-key", "dead-letter-routing-key");
        info.name != name && !own.contains(&info.name) && exchange == Some("") && key == Some(name)
    };
    let queues = api.queues(&snapshot.vhost)?;
    let mut all = Snapshot::new(&snapshot.vhost, Vec::new(), queues, Vec::new());
    all.apply(snapshot.policies.clone());
    Ok(all.queues.values().find(feeds).map(|info| info.name.clone()))
}

/// Why a queue must not be deleted.
fn stays(
    topology: &Topology,
    app: &AppKey,
    name: &str,
    (api, snapshot): (&ManagementApi, &Snapshot),
    session: &mut Session,
) -> Result<Option<String>, AdminError> {
    let dispatch = topology.names().dispatch();
    let own = topology.app_binding(app, name).key;
    // Also from exchanges of others, which are not read otherwise. The default exchange has one to each queue.
    let bound = api.bindings_to(&snapshot.vhost, &Endpoint::Queue(name.to_owned()))?;
    let through = topology.names().through(app);
    let is_own = |binding: &&BindingInfo| {
        ["", &through].contains(&binding.source.as_str())
            || binding.source == dispatch && binding.routing_key == own
    };
    let other = bound.iter().find(|binding| !is_own(binding));
    if let Some(other) = other {
        return Ok(Some(format!("it is bound to exchange `{}` as well", other.source)));
    }
    if let Some(other) = fed_by(topology, app, name, (api, snapshot))? {
        return Ok(Some(format!("it gets the messages of queue `{other}` as well")));
    }
    for rejected in [None, Some(Rejected::Retried), Some(Rejected::Parked)] {
        let wanted = topology.app_queue(app, name, rejected);
        let state = examine::queue(session, &wanted).map_err(doing(format!("examining queue `{name}`")))?;
        if state == ObjectState::Same {
            return Ok(None);
        }
    }
    Ok(Some(
        "it was not declared when the application was registered, or it has other settings; delete it yourself"
            .into(),
    ))
}

/// Counts the messages that would be lost.
fn count(
    session: &mut Session,
    snapshot: &Snapshot,
    belongings: &Belongings,
    when: When,
    refusal: &mut RemoveRefusal,
) -> Result<(), AdminError> {
    refusal.recalls = belongings.recalls;
    for name in belongings.queues() {
        let found = contents(session, name, Some(snapshot), when)?;
        if found.messages != Some(0) {
            refusal.waiting.push(Waiting { queue: name.clone(), messages: found.messages });
        }
        if found.consumers > 0 {
            refusal.consumed.push((name.clone(), found.consumers));
        }
    }
    Ok(())
}

/// Removes the permission and then the topic permissions: in the other order, the user could use any key in
/// between.
pub(crate) fn revoke(
    api: &ManagementApi,
    topology: &Topology,
    user: &str,
    snapshot: &Snapshot,
) -> Result<(), AdminError> {
    let vhost = &snapshot.vhost;
    api.delete_permission(vhost, user)?;
    // The API deletes those of all exchanges at once; those of other exchanges are restored.
    api.delete_topic_permissions(vhost, user)?;
    let topics = snapshot.grants.iter().flat_map(|grants| grants.topics(user));
    for topic in topics.filter(|topic| !topology.owns_exchange(&topic.exchange)) {
        api.set_topic_permission(vhost, topic)?;
    }
    Ok(())
}
