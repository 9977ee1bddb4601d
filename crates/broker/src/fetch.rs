//! Asking for a vhost, or for the part of it that concerns a set or a layout.
//!
//! Other people may have many thousands of queues and bindings in the same vhost. A broker takes seconds to
//! list these, so they are not asked for unless a message of ours can reach them.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use delayline_core::{
    codec::Level,
    topology::{Binding, Endpoint, Names, Topology},
};
use delayline_settings::{Layout, Management, NO_MANAGEMENT};
use serde_json::Value as Json;

use crate::{
    management::{BindingInfo, ExchangeInfo, ManagementApi, ManagementError},
    pattern::escape,
    policy::Policies,
    route::passed,
    snapshot::Snapshot,
};

/// The most queues of others for which all bindings are listed: one request then takes less time than one for
/// each exchange and queue.
const FEW: usize = 1_000;

/// If the bindings of one exchange take so much longer than a question that needs no search, the broker searches all
/// bindings for them, and one list of all is cheaper (4.3.6 with 100,000 bindings, on a slow machine: 0.12 s for one
/// exchange, 6.7 s for the list, or 0.8 s as definitions). Of a broker far away, that question takes long as well.
const SEARCHED: Duration = Duration::from_millis(25);

/// How many sides are asked about before that is decided, and how many there must be.
const TRIED: usize = 3;
const MANY: usize = 40;

/// The part of a vhost to ask for.
#[derive(Debug, Clone, Copy)]
pub enum Scope<'a> {
    /// A set, its applications and gateways, the queues and exchanges that its due messages pass, these queues, and
    /// these exchanges with the queues and exchanges behind them.
    Set(&'a Topology, &'a [Endpoint]),
    /// The same, with the bindings of its applications alone: from dispatch, and behind it.
    Apps(&'a Topology, &'a [Endpoint]),
    /// A layout, its guard, and the queues and exchanges that its due messages pass. The topology is that of any
    /// set in the vhost.
    Layout(&'a Topology, &'a Layout),
}

impl Scope<'_> {
    /// A pattern for the names of its own queues.
    #[must_use]
    pub fn pattern(&self) -> String {
        match self {
            Self::Set(topology, _) | Self::Apps(topology, _) => {
                format!(r"^{}\.", escape(topology.settings().set.as_str()))
            }
            Self::Layout(_, layout) => {
                let (first, last) = (layout.level(Level::LOWEST), layout.level(Level::TOP));
                let same = first.chars().zip(last.chars()).take_while(|(one, other)| one == other);
                let levels: String = same.map(|(letter, _)| letter).collect();
                format!("^({}|{}$)", escape(&levels), escape(&layout.kept()))
            }
        }
    }

    /// Whether an exchange or queue of this name is its own. The exchanges of gateways have names that their users
    /// chose.
    #[must_use]
    pub fn owns(&self, name: &str) -> bool {
        match self {
            Self::Set(topology, _) | Self::Apps(topology, _) => {
                let rest = name.strip_prefix(topology.settings().set.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            }
            Self::Layout(_, layout) => {
                layout.kept() == name || layout.exchanges().iter().any(|own| own == name)
            }
        }
    }
}

impl Snapshot {
    /// Asks for a part of a vhost.
    ///
    /// # Errors
    /// See [`ManagementError`]. Policies that cannot be read are no error.
    pub fn fetch(api: &ManagementApi, vhost: &str, scope: Scope<'_>) -> Result<Self, ManagementError> {
        let pattern = scope.pattern();
        let exchanges = api.exchange_definitions(vhost)?;
        let (queues, all) = api.queues_matching(vhost, Some(&pattern))?;
        let mut snapshot = Self::new(vhost, exchanges, queues, Vec::new());
        snapshot.queues_in_all = all;
        if let Scope::Set(topology, _) = scope {
            // With its rates.
            let entry = api.exchange(vhost, &topology.names().entry())?;
            snapshot.exchanges.extend(entry.map(|entry| (entry.name.clone(), entry)));
        }
        snapshot.fetch_bindings(api, scope)?;
        // After the queues: a policy that was set in between is included, and a policy that was deleted is
        // not reported for a queue.
        snapshot.apply(Policies::fetch(api, vhost));
        Ok(snapshot)
    }

    /// The same, or why the management API cannot be asked.
    ///
    /// # Errors
    /// Only if the API refuses us and the user named it: see [`ManagementError::absence`].
    pub fn try_fetch(
        settings: Option<&Management>,
        vhost: &str,
        scope: Scope<'_>,
    ) -> Result<Result<Self, String>, ManagementError> {
        let Some(settings) = settings else {
            return Ok(Err(NO_MANAGEMENT.into()));
        };
        match ManagementApi::new(settings).and_then(|api| Self::fetch(&api, vhost, scope)) {
            Ok(snapshot) => Ok(Ok(snapshot)),
            Err(error) => Ok(Err(error.absence(settings)?)),
        }
    }

    /// Asks for queues that are not known yet, as far as they exist. Those of the scope itself are known.
    fn ask_for_queues(
        &mut self,
        api: &ManagementApi,
        scope: Scope<'_>,
        names: impl IntoIterator<Item = String>,
    ) -> Result<(), ManagementError> {
        let unknown = |name: &String| !self.queues.contains_key(name) && !scope.owns(name);
        let names: BTreeSet<_> = names.into_iter().filter(unknown).collect();
        // One by one, they have no counts on a broker without statistics.
        let all = if self.has_statistics() { self.queues_in_all } else { 0 };
        let found = api.queues_named(&self.vhost, names.iter().map(String::as_str), all)?;
        self.queues.extend(found.into_iter().map(|queue| (queue.name.clone(), queue)));
        Ok(())
    }

    /// Asks for bindings, and for the queues on the routes of due messages.
    fn fetch_bindings(&mut self, api: &ManagementApi, scope: Scope<'_>) -> Result<(), ManagementError> {
        let recalls = self.exchanges.values().any(|exchange| self.set_of_recalls(exchange).is_some());
        let others = self.queues_in_all.saturating_sub(self.queues.len());
        let all = others <= FEW;
        let mut listed = all && !recalls;
        if listed {
            self.enter([], [], api.bindings(&self.vhost, |_| true)?);
        }
        let mut known = BTreeSet::new();
        let mut next = if listed { BTreeSet::new() } else { self.sides(scope) };
        let mut looked_up = BTreeSet::new();
        // Decided on the scope's own sides: behind others, the list lacks bindings.
        let mut undecided = !recalls && next.len() > MANY;
        loop {
            let (mut found, mut quickest) = (Vec::new(), Duration::MAX);
            for (number, side) in next.into_iter().enumerate() {
                if known.contains(&side) {
                    continue;
                }
                let began = Instant::now();
                found.extend(self.bindings_at(api, &side)?);
                quickest = quickest.min(began.elapsed());
                known.insert(side);
                if undecided && number + 1 == TRIED && searches(api, quickest)? {
                    listed = true;
                    // Those of others are read later, if a message can pass their exchanges.
                    let ours = |it: &BindingInfo| scope.owns(&it.source) || scope.owns(&it.destination);
                    found = api
                        .searched_bindings(&self.vhost, |it| ours(it) || it.destination_type == "exchange")?;
                    known.extend(self.sides(scope).into_iter().filter(|side| scope.owns(side.name())));
                }
            }
            undecided = false;
            if !found.is_empty() {
                self.enter([], [], found);
            }
            let mut passed = match scope {
                Scope::Set(topology, also) | Scope::Apps(topology, also) => {
                    passed(topology, None, self, also)
                }
                Scope::Layout(topology, layout) => passed(topology, Some(layout), self, &[]),
            };
            passed.retain(|end| looked_up.insert(end.clone()));
            let queues = passed.iter().filter(|end| matches!(end, Endpoint::Queue(_)));
            self.ask_for_queues(api, scope, queues.map(|end| end.name().to_owned()))?;
            next = BTreeSet::new();
            if !all || recalls {
                let through = passed.iter().filter(|end| matches!(end, Endpoint::Exchange(_)));
                next = through.map(|end| Side::From(end.name().to_owned())).collect();
            }
            if !listed {
                // The exchanges that messages can come from, and those before them.
                let into = |it: &&Binding| known.contains(&Side::To(it.destination.clone()));
                let sources = self.bindings().iter().filter(into);
                next.extend(sources.map(|it| Side::To(Endpoint::Exchange(it.source.clone()))));
            }
            next.retain(|side| !known.contains(side));
            if next.is_empty() && passed.is_empty() {
                return Ok(());
            }
        }
    }

    /// The sides from which the bindings of a scope are read: from each of its exchanges, and to each exchange and
    /// queue of a set.
    fn sides(&self, scope: Scope<'_>) -> BTreeSet<Side> {
        if let Scope::Apps(topology, _) = scope {
            return [Side::From(topology.names().dispatch())].into();
        }
        let own = self.exchanges.keys().filter(|name| !name.is_empty() && scope.owns(name)).cloned();
        let mut sides: BTreeSet<_> = own.map(Side::From).collect();
        let Scope::Set(topology, _) = scope else { return sides };
        let gateways = self.queues.keys().filter_map(|queue| topology.names().gateway_of(queue));
        sides.extend(
            gateways.flat_map(|gateway| [gateway.to_owned(), Names::gateway_entry(gateway)]).map(Side::From),
        );
        let queues = topology.queues().filter(|queue| self.queues.contains_key(&queue.name));
        sides.extend(queues.map(|queue| Side::To(Endpoint::Queue(queue.name.clone()))));
        let leads_here = |exchange: &&ExchangeInfo| {
            let to = exchange.arguments.get("alternate-exchange").and_then(Json::as_str);
            topology.exchanges().any(|own| own.name == exchange.name || to == Some(&own.name))
        };
        let exchanges = self.exchanges.values().filter(leads_here);
        sides.extend(exchanges.map(|exchange| Side::To(Endpoint::Exchange(exchange.name.clone()))));
        sides
    }

    /// The bindings at one side. Recalls are left out: there may be a hundred thousand, and a broker that lists so
    /// many takes seconds and hundreds of megabytes. Of their exchanges' bindings, only those to the entry of their
    /// set are read, which their applications can make.
    fn bindings_at(&self, api: &ManagementApi, side: &Side) -> Result<Vec<BindingInfo>, ManagementError> {
        let name = match side {
            Side::To(end) => return api.bindings_to(&self.vhost, end),
            Side::From(name) => name,
        };
        // The entry has the name of the set.
        match self.exchanges.get(name).and_then(|exchange| self.set_of_recalls(exchange)) {
            Some(set) => api.bindings_between(&self.vhost, name, set),
            None => api.bindings_from(&self.vhost, name),
        }
    }

    /// The set whose recalls an exchange has, if it has any.
    pub(crate) fn set_of_recalls<'a>(&self, exchange: &'a ExchangeInfo) -> Option<&'a str> {
        // The name of a set has no dot.
        let (set, rest) = exchange.name.split_once('.')?;
        let queue = format!("{set}.recalled.{}", rest.strip_prefix("recall.")?);
        (exchange.kind == "direct" && self.queues.contains_key(&queue)).then_some(set)
    }
}

/// Whether a broker searches for the bindings of one exchange, which it reported within this time.
fn searches(api: &ManagementApi, quickest: Duration) -> Result<bool, ManagementError> {
    let began = Instant::now();
    Ok(quickest > SEARCHED && {
        api.clock()?;
        quickest > SEARCHED + 2 * began.elapsed()
    })
}

/// A side from which bindings are read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    /// From an exchange.
    From(String),
    /// To an exchange or queue.
    To(Endpoint),
}

impl Side {
    fn name(&self) -> &str {
        match self {
            Self::From(exchange) => exchange,
            Self::To(end) => end.name(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use delayline_core::topology::TopologySettings;
    use serde_json::json;

    use super::*;
    use crate::{management::pretend, pattern::Pattern};

    /// Reads a part from an API of this version, in whose vhost others have 10,000 queues, and that takes so long for
    /// each answer, and may have definitions; returns the paths that it was asked for.
    fn asked_in_a_crowd(
        scope: fn(&Topology) -> Scope<'_>,
        version: &'static str,
        definitions: Option<&'static str>,
        takes: fn(&str) -> Duration,
    ) -> Vec<String> {
        let topology = Topology::new(TopologySettings::default());
        let all = Snapshot::default().with(topology.objects());
        let names = |names: Vec<&String>| {
            names.iter().map(|name| json!({ "name": name, "reductions": 1 })).collect::<Vec<_>>()
        };
        let exchanges = json!(names(all.exchanges.keys().collect()));
        let queues =
            json!({ "items": names(all.queues.keys().collect()), "page_count": 1, "total_count": 10_033 });
        let (api, asked) = pretend::answering(move |path| {
            thread::sleep(takes(path));
            Some(match path {
                "/api/exchanges/%2F/delay" => json!({ "name": "delay" }).to_string(),
                "/api/overview" => json!({ "rabbitmq_version": version }).to_string(),
                "/api/definitions/%2F" => return definitions.map(str::to_owned),
                path if path.starts_with("/api/queues/%2F?") => queues.to_string(),
                path if path.starts_with("/api/exchanges/%2F?") => exchanges.to_string(),
                _ => "[]".into(),
            })
        });
        let read = Snapshot::fetch(&api, "/", scope(&topology)).unwrap();
        let defined = read.bindings_from("delay.level.05");
        assert!(defined.iter().all(|it| it.key == "tap"), "{defined:?}");
        assert_eq!(defined.len(), definitions.map_or(0, |_| 1));
        asked.lock().unwrap().clone()
    }

    #[test]
    fn all_bindings_are_listed_if_the_broker_searches_them_but_not_because_it_is_far_away() {
        let lists = |paths: Vec<String>| {
            ["/api/bindings/%2F?", "/api/definitions/%2F"]
                .map(|list| paths.iter().filter(|path| path.starts_with(list)).count())
        };
        let asked = |version, definitions, takes| {
            asked_in_a_crowd(|topology| Scope::Set(topology, &[]), version, definitions, takes)
        };
        assert_eq!(lists(asked("4.3.6", None, |_| Duration::from_millis(60))), [0, 0]);
        let searched: fn(&str) -> _ =
            |path| Duration::from_millis(if path.contains("/bindings") { 500 } else { 0 });
        assert_eq!(lists(asked("4.3.5", None, searched)), [1, 0]);
        assert_eq!(lists(asked("4.3.6", None, searched)), [1, 1], "not an administrator");
        let definitions = r#"{"bindings": [
            {"source": "delay.level.05", "destination": "tap", "destination_type": "queue", "routing_key": "tap"},
            {"source": "other", "destination": "other", "destination_type": "queue", "routing_key": "other"}
        ]}"#;
        assert_eq!(lists(asked("4.10.0-rc.1", Some(definitions), searched)), [0, 1]);
    }

    #[test]
    fn applications_are_read_without_the_other_bindings_of_the_set() {
        let apps: fn(&Topology) -> Scope<'_> = |topology| Scope::Apps(topology, &[]);
        let mut asked = asked_in_a_crowd(apps, "4.3.6", None, |_| Duration::ZERO);
        asked.retain(|path| path.contains("/bindings"));
        let [path] = asked.as_slice() else { panic!("{asked:?}") };
        assert!(path.starts_with("/api/exchanges/%2F/delay.dispatch/bindings/source?"), "{path}");
    }

    #[test]
    fn the_bindings_of_many_exchanges_behind_dispatch_are_all_read() {
        let topology = Topology::new(TopologySettings::default());
        let teams: Vec<_> = (0..=MANY).map(|number| format!("team.{number}")).collect();
        let binding = |source: &str, to: &str, kind: &str| json!({ "source": source, "destination": to, "destination_type": kind, "routing_key": "#" });
        let named = teams.clone();
        let (api, _) = pretend::answering(move |path| {
            let team = path.strip_prefix("/api/exchanges/%2F/").and_then(|rest| rest.split('/').next());
            // The broker searches all bindings.
            thread::sleep(Duration::from_millis(if path.contains("/bindings") { 60 } else { 0 }));
            Some(match team {
                Some("delay") => json!({ "name": "delay" }),
                Some("delay.dispatch") => {
                    named.iter().map(|team| binding("delay.dispatch", team, "exchange")).collect()
                }
                Some(team) => json!([binding(team, &format!("{team}.queue"), "queue")]),
                None if path.starts_with("/api/exchanges") => {
                    named.iter().map(|team| json!({ "name": team, "type": "topic" })).collect()
                }
                None if path.starts_with("/api/queues/%2F?") => {
                    let own = json!({ "name": "delay.parked", "reductions": 1 });
                    json!({ "items": [own], "page_count": 1, "total_count": 10_000 })
                }
                None if path.starts_with("/api/queues") => json!({ "name": "queue" }),
                None => json!([]),
            })
            .map(|answer: Json| answer.to_string())
        });
        let read = Snapshot::fetch(&api, "/", Scope::Apps(&topology, &[])).unwrap();
        for team in &teams {
            assert_eq!(read.bindings_from(team).len(), 1, "{team}");
        }
    }

    #[test]
    fn the_names_of_others_are_left_out() {
        let topology = Topology::new(TopologySettings::default());
        let set = Scope::Set(&topology, &[]);
        let pattern = Pattern::from(set.pattern());
        for (name, ours) in [
            ("delay.level.00", true),
            ("delay.landing.billing", true),
            ("delayed.level.00", false),
            ("my.delay.level.00", false),
        ] {
            assert_eq!(pattern.matches(name), Ok(ours), "{name}");
            assert_eq!(set.owns(name), ours, "{name}");
        }
        assert!(set.owns("delay"));
        for layout in ["nservicebus", "nservicebus:v1", "celery", "celery:eu.shop"] {
            let layout: Layout = layout.parse().unwrap();
            let scope = Scope::Layout(&topology, &layout);
            let pattern = Pattern::from(scope.pattern());
            for own in Level::all().map(|level| layout.level(level)).chain([layout.kept()]) {
                assert_eq!(pattern.matches(&own), Ok(true), "{own}");
            }
            assert!(scope.owns(&layout.delivery()) && !scope.owns("delay"));
            assert_eq!(pattern.matches("delay.level.00"), Ok(false));
        }
    }
}
