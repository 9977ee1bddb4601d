//! Testing the rights of an application's user, by trying them as that user. Nothing is changed: see
//! [`ProbeAnswer`].

use serde::Serialize;

use crate::{
    apps::AppSpec,
    apps::AppUser,
    apps::limits,
    apps::surroundings::{Other, others, parks, snapshot},
};
use delayline_amqp::{
    AmqpError, ProbeAnswer, Session,
    broker::{Broker, Credentials, Secret},
};
use delayline_broker::{ManagementApi, NOTHING, QueueInfo};
use delayline_core::{
    codec::{AppKey, Delay, Level, MessageId, RoutingKey},
    topology::{Binding, Endpoint, Topology},
};
use delayline_messages::{error::AdminError, error::doing, error::refuse_without_set, scheduled::lost::lost};
use delayline_settings::{NO_MANAGEMENT, Settings};

/// An app key that no application has.
const STRANGER: &str = "delayline-check.nobody";

/// The tested rights of a user.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct AppCheck {
    /// The user.
    pub user: String,
    /// The attempts.
    pub probes: Vec<Probe>,
    /// The attempts that were not possible, and why.
    pub unchecked: Vec<String>,
    /// Rights that the broker gives every user of this version, whatever its permissions.
    pub limits: Vec<String>,
}

/// One attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Probe {
    /// The attempt, in words.
    pub what: String,
    /// Whether it should be allowed.
    pub expected: bool,
    /// Whether it is allowed; `None` if the queue or exchange is missing.
    pub allowed: Option<bool>,
    /// The broker's reason for a refusal.
    pub reason: Option<String>,
}

impl Probe {
    /// Whether the result is as expected.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.allowed == Some(self.expected)
    }
}

impl AppCheck {
    /// Whether all results are as expected.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.probes.iter().all(Probe::passed)
    }
}

/// Tries, as the user of an application, actions that should be allowed and actions that should be refused.
///
/// # Errors If the user cannot log in, there is no set, or the broker is lost.
pub fn check_app(
    settings: &Settings,
    topology: &Topology,
    spec: &AppSpec,
    user: &AppUser,
    password: &Secret,
) -> Result<AppCheck, AdminError> {
    let credentials = Credentials::Plain { username: user.name.clone(), password: password.clone() };
    let broker = settings.broker.clone().with_credentials(credentials);
    let mut session = Session::open(&broker).map_err(doing(format!("logging in as user `{}`", user.name)))?;
    refuse_without_set(&mut session, topology)?;
    let limits = limits(session.server_version().as_deref(), &user.name);
    let mut check = Checking { session: &mut session, probes: Vec::new() };
    let mut unchecked = Vec::new();
    let snapshot = snapshot(settings, topology, spec);
    let others = others(snapshot.as_ref(), topology, spec, user, &mut unchecked);
    let parks = parks(snapshot.as_ref(), topology, spec, user, &mut unchecked);
    check.publishing(topology, spec, user, (&others, parks))?;
    if check.probes.is_empty() {
        unchecked.push("everything: the broker takes any `user_id` from this user".into());
    } else {
        check.reading(topology, spec, user, &others)?;
        // With our own rights: a lost journal refuses every user.
        check.journal(topology, spec, &settings.broker)?;
        check.binding(topology, spec, user)?;
        check.recalling(topology, spec, user, &others)?;
        check.configuring(topology, spec)?;
        check.patterns(settings, user, &mut unchecked);
    }
    Ok(AppCheck { user: user.name.clone(), probes: check.probes, unchecked, limits })
}

/// The applications whose messages a user may recall, and always its own application. The value is whether the action should be allowed, which is `own` for its own.
fn recallable<'a>(
    spec: &'a AppSpec,
    user: &'a AppUser,
    own: bool,
) -> impl Iterator<Item = (&'a AppKey, bool)> {
    let own = (&spec.app, own || user.may_recall.contains(&spec.app));
    let others = user.may_recall.iter().filter(|app| **app != spec.app);
    std::iter::once(own).chain(others.map(|app| (app, true)))
}

/// A key with an id that no message has.
fn recallable_key(app: &AppKey) -> String {
    let id = MessageId::new("delayline-check").expect("it is an id");
    let key = RoutingKey::new(Delay::ZERO, app.clone());
    key.with_id(id).expect("there is room for it").encode()
}

/// Rights of the user beyond single names.
struct Standing {
    /// The names that the broker lets it declare.
    configure: String,
    administrator: bool,
    policymaker: bool,
}

/// The tags and permissions of a user; `None` if the broker does not know it.
fn standing(settings: &Settings, user: &AppUser) -> Result<Option<Standing>, String> {
    let management = settings.management.as_ref().ok_or(NO_MANAGEMENT)?;
    let api = ManagementApi::new(management).map_err(|error| error.to_string())?;
    let permissions = api.permissions(&settings.broker.vhost).map_err(|error| error.to_string())?;
    let users = api.users().map_err(|error| error.to_string())?;
    let has_tag = |tag: &str| users.iter().any(|known| known.name == user.name && known.has_tag(tag));
    let own = permissions.into_iter().find(|permission| permission.user == user.name);
    Ok(own.map(|own| Standing {
        configure: own.configure.to_string(),
        administrator: has_tag("administrator"),
        policymaker: has_tag("policymaker"),
    }))
}

struct Checking<'a> {
    session: &'a mut Session,
    probes: Vec<Probe>,
}

impl Checking<'_> {
    fn note(&mut self, what: impl Into<String>, expected: bool, verdict: ProbeAnswer) {
        let (allowed, reason) = match verdict {
            ProbeAnswer::Allowed | ProbeAnswer::Done => (Some(true), None),
            ProbeAnswer::Refused(reason) => (Some(false), Some(reason)),
            ProbeAnswer::Missing => (None, None),
        };
        self.probes.push(Probe { what: what.into(), expected, allowed, reason });
    }

    /// Tries something, and notes the answer.
    fn attempt(
        &mut self,
        what: impl Into<String>,
        expected: bool,
        probe: impl FnOnce(&mut Session) -> Result<ProbeAnswer, AmqpError>,
    ) -> Result<(), AdminError> {
        let what = what.into();
        let answer = probe(self.session).map_err(doing(format!("trying to {what}")))?;
        self.note(what, expected, answer);
        Ok(())
    }

    fn publish(&mut self, exchange: &str, key: &str, what: String, expected: bool) -> Result<(), AdminError> {
        self.attempt(what, expected, |session| session.probe_publish(exchange, key))
    }

    /// A single attempt covers one name only; this covers all names.
    fn patterns(&mut self, settings: &Settings, user: &AppUser, unchecked: &mut Vec<String>) {
        match standing(settings, user) {
            Ok(None) => {}
            Ok(Some(Standing { configure, administrator, policymaker })) => {
                let mut note = |what: String, allowed: bool| {
                    self.probes.push(Probe { what, expected: false, allowed: Some(allowed), reason: None });
                };
                let any = !configure.is_empty() && configure != NOTHING;
                let pattern = if any { format!(" (`{configure}`)") } else { String::new() };
                note(format!("declare or delete anything at all{pattern}"), any);
                note("do everything, as an administrator".into(), administrator);
                note("set policies on every queue, as a policymaker".into(), policymaker);
            }
            Err(reason) => unchecked.push(format!("the names that it may declare: {reason}")),
        }
    }

    fn publishing(
        &mut self,
        topology: &Topology,
        spec: &AppSpec,
        user: &AppUser,
        (others, parks): (&[Other], Option<bool>),
    ) -> Result<(), AdminError> {
        let names = topology.names();
        let entry = names.entry();
        let key = |delay: Delay, app: &AppKey| RoutingKey::new(delay, app.clone()).encode();
        // Its own key first: if the broker accepts another user's `user_id` from it (the tag
        // `impersonator`), only that empty message gets through.
        let what = format!("publish its own key `{}`", spec.app);
        let own = key(Delay::ZERO, &spec.app);
        let verdict = self.session.probe_publish(&entry, &own).map_err(doing(format!("trying to {what}")))?;
        if verdict == ProbeAnswer::Done {
            return Ok(());
        }
        self.note(what, true, verdict);
        for app in user.may_publish.iter().chain(&user.may_recall) {
            self.publish(&entry, &key(Delay::ZERO, app), format!("publish the key `{app}`"), true)?;
        }
        for (app, expected) in recallable(spec, user, spec.recall.is_some()) {
            let what = format!("publish the key `{app}` with an id");
            self.publish(&entry, &recallable_key(app), what, expected)?;
        }
        let longest = user.max_delay.unwrap_or(Delay::MAX);
        self.publish(&entry, &key(longest, &spec.app), format!("publish with a delay of {longest}"), true)?;
        if let Ok(longer) = Delay::from_seconds(u64::from(longest.seconds()) + 1) {
            let what = format!("publish with a delay of {longer}");
            self.publish(&entry, &key(longer, &spec.app), what, false)?;
        }
        let stranger = AppKey::new(STRANGER).ok();
        for app in others.iter().map(|(app, _)| app).chain(&stranger) {
            let what = format!("publish the key `{app}`");
            self.publish(&entry, &key(Delay::ZERO, app), what, false)?;
        }
        let garbage = "delayline-check";
        self.publish(&entry, garbage, "publish a malformed key".into(), false)?;
        let levels = [Some(Level::LOWEST), Level::TOP.below()].into_iter().flatten();
        let levels = levels.map(|level| names.level_exchange(level));
        let of_recall = [names.recall(&spec.app), names.through(&spec.app)];
        for exchange in levels.chain([names.dispatch(), names.unroutable()]).chain(of_recall) {
            self.publish(&exchange, &own, format!("publish to `{exchange}`"), false)?;
        }
        for (exchange, may) in [(names.retry(), Some(user.may_retry)), (names.parked(), parks)] {
            if let Some(may) = may {
                let what = format!("publish its own key to `{exchange}`");
                self.publish(&exchange, spec.app.as_str(), what, may)?;
            }
            self.publish(&exchange, garbage, format!("publish another key to `{exchange}`"), false)?;
        }
        let schedules = others.iter().map(|(app, _)| (names.schedules_of(app), false));
        let own = (names.schedules_of(&spec.app), user.may_schedule);
        for (exchange, may) in schedules.chain([own, (names.schedules(), false)]) {
            self.publish(&exchange, Topology::RECORD_KEY, format!("publish to `{exchange}`"), may)?;
        }
        let level = names.level_queue(Level::LOWEST);
        self.publish("", &level, "publish to the default exchange".into(), false)
    }

    fn reading(
        &mut self,
        topology: &Topology,
        spec: &AppSpec,
        user: &AppUser,
        others: &[Other],
    ) -> Result<(), AdminError> {
        let names = topology.names();
        let mut queues: Vec<(String, bool)> =
            spec.queue_name().map(|queue| (queue.to_owned(), true)).into_iter().collect();
        queues.push((names.recalled(&spec.app), spec.recall.is_some()));
        queues.push((names.journal(&spec.app), spec.journal().is_some()));
        queues.push((names.schedules_of(&spec.app), user.may_schedule));
        queues.extend(topology.queues().map(|queue| (queue.name.clone(), false)));
        let theirs = |app: &AppKey| [names.recalled(app), names.journal(app), names.schedules_of(app)];
        let foreign = user.may_recall.iter().chain(others.iter().map(|(app, _)| app));
        let foreign = foreign.filter(|app| **app != spec.app).flat_map(theirs);
        queues.extend(foreign.map(|queue| (queue, false)));
        let own = |name: &String| spec.queue_name() == Some(name.as_str());
        queues.extend(
            others.iter().filter_map(|(_, queue)| Some((queue.clone()?, false))).filter(|it| !own(&it.0)),
        );
        queues.dedup();
        for (queue, expected) in queues {
            let what = format!("consume or purge `{queue}`");
            self.attempt(what, expected, |session| session.probe_read(&queue))?;
        }
        Ok(())
    }

    /// The permission to read a journal is of no use if the journal is lost.
    fn journal(&mut self, topology: &Topology, spec: &AppSpec, broker: &Broker) -> Result<(), AdminError> {
        if spec.journal().is_none() {
            return Ok(());
        }
        let queue = QueueInfo { name: topology.names().journal(&spec.app), ..QueueInfo::default() };
        let what = format!("read and write the stream `{}`", queue.name);
        let reason = format!("the broker lost it. Run `{}`", delayline_core::shell::command(&["doctor"]));
        if lost(broker, &queue).map_err(doing(format!("trying to {what}")))?.is_some() {
            self.note(what, true, ProbeAnswer::Refused(reason));
        }
        Ok(())
    }

    /// A recall is a binding, with a key that no message has.
    fn recalling(
        &mut self,
        topology: &Topology,
        spec: &AppSpec,
        user: &AppUser,
        others: &[Other],
    ) -> Result<(), AdminError> {
        let names = topology.names();
        let stranger = AppKey::new(STRANGER).ok();
        let strangers = others.iter().map(|(app, _)| app).chain(&stranger).map(|app| (app, false));
        for (app, expected) in recallable(spec, user, spec.recall.is_some()).chain(strangers) {
            let binding = Binding {
                source: names.recall(app),
                destination: Endpoint::Queue(names.recalled(app)),
                key: recallable_key(app),
            };
            let what = format!("recall messages of `{app}`");
            self.attempt(what, expected, |session| session.probe_bind(&binding))?;
        }
        Ok(())
    }

    fn binding(&mut self, topology: &Topology, spec: &AppSpec, user: &AppUser) -> Result<(), AdminError> {
        let names = topology.names();
        let queue = spec.queue_name().unwrap_or("delayline-check");
        let own = topology.app_binding(&spec.app, queue);
        let loose = Binding { key: "#".into(), ..own.clone() };
        let round = Binding { destination: Endpoint::Exchange(names.entry()), ..own.clone() };
        let may = user.may_bind && spec.queue_name().is_some();
        let mut tries = vec![
            ("bind its own key", own, may),
            ("bind every key (`#`)", loose, false),
            ("bind the entry to dispatch, so that messages go round", round, may),
        ];
        if let Ok(stranger) = AppKey::new(STRANGER) {
            tries
                .insert(1, ("bind another application's key", topology.app_binding(&stranger, queue), false));
        }
        for (what, binding, expected) in tries {
            self.attempt(what, expected, |session| session.probe_bind(&binding))?;
        }
        Ok(())
    }

    fn configuring(&mut self, topology: &Topology, spec: &AppSpec) -> Result<(), AdminError> {
        let names = topology.names();
        let own = spec.queue_name().map(str::to_owned);
        let theirs = [
            names.entry(),
            names.dispatch(),
            names.level_queue(Level::LOWEST),
            names.unroutable(),
            names.retry(),
            names.parked(),
            names.recall(&spec.app),
            names.through(&spec.app),
            names.recalled(&spec.app),
            names.journal(&spec.app),
            names.schedules_of(&spec.app),
        ];
        for name in own.into_iter().chain(theirs).chain(["delayline-check".to_owned()]) {
            let what = format!("declare or delete `{name}`");
            self.attempt(what, false, |session| session.probe_configure(&name))?;
        }
        Ok(())
    }
}
