//! Removing an application: what adding does, in reverse.

use std::{fmt, thread};

use serde::Serialize;

use crate::management::{ManagementApi, TopicPermission};
use delayline_amqp::{HAND_OVER, Session};
use delayline_core::{
    codec::AppKey,
    topology::{Binding, Endpoint, Topology},
};
use delayline_settings::Settings;

use crate::{
    AdminError, ObjectState, Waiting,
    apps::{api, list::landing, rights::NOTHING, steps::Standing},
    connect,
    contents::{self, SETTLE, contents},
    doing, examine,
    journal::{
        PendingCopies,
        lost::{self, Lost},
        pending_copies,
    },
    number::{counted, either},
    recalls::count_recalls_of,
};

/// What to remove.
#[derive(Debug, Clone, Default)]
pub struct RemoveOptions {
    /// The user to take the permissions in this vhost from; `None` leaves users alone.
    pub user: Option<String>,
    /// Whether to delete the user itself, in all vhosts.
    pub delete_user: bool,
    /// The application's queue, deleted if no other binding leads to it.
    pub queue: Option<String>,
    /// Whether to keep the queue.
    pub keep_queue: bool,
    /// Whether to take away only that its messages can be recalled; everything else stays.
    pub only_recall: bool,
    /// Whether to discard waiting messages and to cut off consumers.
    pub force: bool,
    /// Whether to change nothing.
    pub dry_run: bool,
}

/// What was removed, or would be.
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct RemoveReport {
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// What was removed, in this order.
    pub removed: Vec<String>,
    /// What was left alone, and why.
    pub left: Vec<String>,
    /// Messages that were lost with the queues, with `force`.
    pub discarded: Vec<Waiting>,
}

/// Why nothing was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RemoveRefusal {
    /// Where messages wait, and how many.
    pub waiting: Vec<Waiting>,
    /// Queues that have consumers, and how many.
    pub consumed: Vec<(String, u64)>,
    /// How many recalls are pending: what was recalled would be unroutable when it is due.
    pub recalls: usize,
    /// How many messages of its journal are not due yet.
    pub journalled: PendingCopies,
    /// What differs from what adding makes.
    pub conflicts: Vec<String>,
    /// Whether the binding was gone for some seconds before it was restored: messages that
    /// fell due for the application meanwhile are unroutable, and can be replayed.
    pub unbound_meanwhile: bool,
}

impl fmt::Display for RemoveRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut reasons = self.conflicts.clone();
        for waiting in &self.waiting {
            reasons.push(format!(
                "{} {} in `{}`",
                counted(waiting.messages, "message"),
                either(waiting.messages, "waits", "wait"),
                waiting.queue
            ));
        }
        for (queue, consumers) in &self.consumed {
            reasons.push(format!("{consumers} consumers are attached to `{queue}`"));
        }
        let recalls = self.recalls as u64;
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
        f.write_str(&reasons.join("; "))
    }
}

/// What belongs to an application.
struct Belongings {
    user: Option<String>,
    bindings: Vec<Binding>,
    landing: Option<String>,
    queue: Option<String>,
    /// The exchanges that let its messages be recalled, in the order in which they go.
    exchanges: Vec<String>,
    /// The queue of its recalled messages.
    recalled: Option<String>,
    /// How many recalls are pending.
    recalls: usize,
    /// Its journal.
    journal: Option<String>,
}

/// Removes an application: its bindings, its permissions and then the rules on its keys, what
/// lets its messages be recalled, its landing queue, its queue. The binding goes first, since only then can it be known that
/// nothing waits; it is restored if something does.
///
/// # Errors
/// If the broker refuses or is lost, or there is no management API; removing again continues
/// from there.
pub fn remove_app(
    settings: &Settings,
    topology: &Topology,
    app: &AppKey,
    options: &RemoveOptions,
) -> Result<Result<RemoveReport, RemoveRefusal>, AdminError> {
    let api = api(settings)?;
    let vhost = &settings.broker.vhost;
    let mut session = connect(&settings.broker)?;
    let standing = Standing::look(&api, vhost, options.user.is_some())?;
    let mut report = RemoveReport { dry_run: options.dry_run, ..RemoveReport::default() };
    let (mut belongings, mut refusal) = look(topology, app, options, &standing, &mut session, &mut report)?;
    if standing.has_exchange(&topology.names().recall(app)) {
        let pending = count_recalls_of(&api, settings, topology, app)?.pending;
        belongings.recalls = usize::try_from(pending).unwrap_or(usize::MAX);
    }
    if options.only_recall {
        belongings.only_recall(&topology.recall_route(app), &mut report);
    }
    count(&mut session, &standing, &belongings, &mut refusal)?;
    let lost = match &belongings.journal {
        Some(journal) => lost_journal(settings, &standing, journal, &mut refusal)?,
        None => false,
    };
    if belongings.journal.is_some() && !options.force && !lost {
        refusal.journalled = pending_copies(settings, topology, app)?;
    }
    if refused(&refusal, options.force) {
        return Ok(Err(refusal));
    }
    if options.dry_run {
        report.removed = belongings.names();
        report.discarded = refusal.waiting;
        return Ok(Ok(report));
    }
    for binding in &belongings.bindings {
        session.unbind(binding).map_err(doing(format!("removing the {binding}")))?;
    }
    if !options.force && belongings.queues().next().is_some() {
        // A message that was being delivered has reached its queue by then.
        thread::sleep(SETTLE);
        let mut late =
            RemoveRefusal { unbound_meanwhile: !belongings.bindings.is_empty(), ..RemoveRefusal::default() };
        let counted = Standing::look(&api, vhost, false)
            .and_then(|standing| count(&mut session, &standing, &belongings, &mut late));
        if counted.is_err() || refused(&late, false) {
            bind_again(settings, &belongings.bindings)?;
            counted?;
            return Ok(Err(late));
        }
    }
    if options.force {
        thread::sleep(HAND_OVER);
    }
    if !refusal.waiting.is_empty() {
        contents::calm(&mut session, belongings.queues().map(String::as_str));
    }
    report.discarded = refusal.waiting;
    if let Some(user) = &belongings.user {
        revoke(&api, vhost, topology, user, &standing)?;
        if options.delete_user {
            api.delete_user(user)?;
        }
    }
    for exchange in &belongings.exchanges {
        session.delete_exchange(exchange).map_err(doing(format!("removing exchange `{exchange}`")))?;
    }
    for queue in belongings.queues().chain(&belongings.journal) {
        contents::delete(&mut session, queue, &mut report.discarded)?;
    }
    report.removed = belongings.names();
    if options.delete_user
        && let Some(user) = &belongings.user
    {
        report.removed.push(format!("user `{user}`"));
    }
    Ok(Ok(report))
}

/// Whether a journal is lost. One that cannot even be deleted is a conflict.
fn lost_journal(
    settings: &Settings,
    standing: &Standing,
    journal: &str,
    refusal: &mut RemoveRefusal,
) -> Result<bool, AdminError> {
    let Some(info) = standing.observed.queues.iter().find(|info| info.name == journal) else {
        return Ok(false);
    };
    let found = lost::lost(&settings.broker, info).map_err(doing(format!("looking at `{journal}`")))?;
    if found == Some(Lost::Stuck) {
        let way_out = lost::way_out(journal, &standing.vhost);
        refusal.conflicts.push(format!(
            "queue `{journal}`: {}. {way_out} and then remove the application again",
            lost::WHAT
        ));
    }
    Ok(found.is_some())
}

impl Belongings {
    /// Leaves out what has nothing to do with recalling.
    fn only_recall(&mut self, route: &Binding, report: &mut RemoveReport) {
        self.bindings.retain(|binding| binding == route);
        (self.user, self.landing, self.queue) = (None, None, None);
        report.left.clear();
        if !self.exchanges.is_empty() || self.recalled.is_some() {
            let rights = "the rights of its user: `delayline app add` with --replace-permissions and without \
                          --recall takes those that are of no use any more";
            report.left.push(rights.into());
        }
    }

    /// Its queues, each before those it passes messages to.
    fn queues(&self) -> impl Iterator<Item = &String> + Clone {
        self.landing.iter().chain(&self.queue).chain(&self.recalled)
    }

    fn names(&self) -> Vec<String> {
        let user = self.user.iter().map(|user| format!("permissions and topic permissions of user `{user}`"));
        let bindings =
            self.bindings.iter().map(|it| format!("binding of {} to `{}`", it.destination, it.source));
        let exchanges = self.exchanges.iter().map(|exchange| format!("exchange `{exchange}`"));
        let queues = self.queues().chain(&self.journal).map(|queue| format!("queue `{queue}`"));
        user.chain(bindings).chain(exchanges).chain(queues).collect()
    }
}

fn refused(refusal: &RemoveRefusal, force: bool) -> bool {
    let in_use = !refusal.waiting.is_empty() || !refusal.consumed.is_empty() || refusal.recalls > 0;
    let in_use = in_use || refusal.journalled.messages > 0;
    !refusal.conflicts.is_empty() || !force && in_use
}

fn look(
    topology: &Topology,
    app: &AppKey,
    options: &RemoveOptions,
    standing: &Standing,
    session: &mut Session,
    report: &mut RemoveReport,
) -> Result<(Belongings, RemoveRefusal), AdminError> {
    let key = topology.app_binding(app, "").key;
    let mut bindings = standing.observed.app_bindings(topology);
    bindings.retain(|binding| binding.key == key);
    let route = topology.recall_route(app);
    bindings.extend(standing.observed.bindings_of(&route.source).into_iter().filter(|it| *it == route));
    let landing_name = topology.names().landing(app);
    let landing = standing
        .observed
        .queues
        .iter()
        .find(|queue| queue.name == landing_name)
        .and_then(|info| landing(topology, info));
    let direct = bindings.iter().find_map(|binding| match &binding.destination {
        Endpoint::Queue(name) if *name != landing_name => Some(name.clone()),
        _ => None,
    });
    let behind = landing.as_ref().filter(|it| it.exchange.is_empty()).and_then(|it| it.key.clone());
    let queue = direct
        .or(behind)
        .or_else(|| options.queue.clone().filter(|_| landing.is_none()))
        .filter(|name| standing.has_queue(name) && !topology.owns_queue(name));
    let mut refusal = RemoveRefusal::default();
    let user = options.user.clone().filter(|user| {
        let known = standing.permissions.iter().find(|permission| permission.user == *user);
        known.is_some_and(|found| {
            // We only take away what adding gives.
            let ours = found.configure == NOTHING
                && [&found.write, &found.read].iter().all(|pattern| {
                    pattern.as_str() == NOTHING || pattern.starts_with('^') && pattern.ends_with(r"\z")
                })
                && allows(&found.write, &topology.names().entry());
            if !ours {
                refusal.conflicts.push(format!(
                    "user `{user}` has other permissions in this vhost than an application gets (configure \
                     `{}`, write `{}`, read `{}`); name another with --user, or use --no-user",
                    found.configure, found.write, found.read
                ));
            }
            ours
        }) || options.delete_user && standing.users.iter().any(|known| known.name == *user)
    });
    if let Some(user) = options.user.as_ref().filter(|_| options.delete_user)
        && standing.users.iter().any(|known| known.name == *user && known.has_tag("administrator"))
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
        Some(name) => match stays(topology, app, &name, standing, session)? {
            Some(reason) => {
                report.left.push(format!("queue `{name}`: {reason}"));
                None
            }
            None => Some(name),
        },
        None => None,
    };
    let names = topology.names();
    let exchanges = [names.recall(app), names.through(app)];
    let belongings = Belongings {
        user,
        bindings,
        landing: landing.map(|it| it.queue),
        queue,
        exchanges: exchanges.into_iter().filter(|name| standing.has_exchange(name)).collect(),
        recalled: Some(names.recalled(app)).filter(|name| standing.has_queue(name)),
        recalls: 0,
        journal: Some(names.journal(app)).filter(|name| standing.has_queue(name)),
    };
    Ok((belongings, refusal))
}

fn allows(pattern: &str, name: &str) -> bool {
    regex::Regex::new(pattern).is_ok_and(|pattern| pattern.is_match(name))
}

/// Why a queue must not be deleted.
fn stays(
    topology: &Topology,
    app: &AppKey,
    name: &str,
    standing: &Standing,
    session: &mut Session,
) -> Result<Option<String>, AdminError> {
    let dispatch = topology.names().dispatch();
    let other = standing.observed.bindings.iter().find(|binding| {
        binding.destination == name
            && binding.destination_type == "queue"
            && !binding.source.is_empty()
            && !(binding.source == dispatch && binding.routing_key == topology.app_binding(app, name).key)
            && binding.source != topology.names().through(app)
    });
    if let Some(other) = other {
        return Ok(Some(format!("it is bound to exchange `{}` as well", other.source)));
    }
    for retry in [false, true] {
        let wanted = topology.app_queue(app, name, retry);
        let state = examine::queue(session, &wanted).map_err(doing(format!("looking at queue `{name}`")))?;
        if state == ObjectState::Same {
            return Ok(None);
        }
    }
    Ok(Some(
        "it was not declared by `delayline app add`, or it has other settings; delete it yourself".into(),
    ))
}

/// Restores the bindings, on a connection of its own, since the other one may be lost.
fn bind_again(settings: &Settings, bindings: &[Binding]) -> Result<(), AdminError> {
    let doing = || doing("restoring the application's binding (`delayline app add` does that, too)");
    let mut session = Session::open(&settings.broker).map_err(doing())?;
    bindings.iter().try_for_each(|binding| session.bind(binding).map_err(doing()))
}

/// Counts what would be lost.
fn count(
    session: &mut Session,
    standing: &Standing,
    belongings: &Belongings,
    refusal: &mut RemoveRefusal,
) -> Result<(), AdminError> {
    refusal.recalls = belongings.recalls;
    for name in belongings.queues() {
        let found = contents(session, name, Some(&standing.observed))?;
        if found.messages > 0 {
            refusal.waiting.push(Waiting { queue: name.clone(), messages: found.messages });
        }
        if found.consumers > 0 {
            refusal.consumed.push((name.clone(), found.consumers));
        }
    }
    Ok(())
}

/// Takes away the permission and then the topic permissions: the other way round, the user
/// could use any key in between.
fn revoke(
    api: &ManagementApi,
    vhost: &str,
    topology: &Topology,
    user: &str,
    standing: &Standing,
) -> Result<(), AdminError> {
    api.delete_permission(vhost, user)?;
    // The API deletes those of all exchanges at once; those of other exchanges are restored.
    api.delete_topic_permissions(vhost, user)?;
    let others: Vec<&TopicPermission> = standing
        .topics
        .iter()
        .filter(|topic| topic.user == user && !topology.owns_exchange(&topic.exchange))
        .collect();
    for topic in others {
        api.set_topic_permission(vhost, topic)?;
    }
    Ok(())
}
