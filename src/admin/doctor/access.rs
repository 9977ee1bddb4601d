//! Who may do what they should not.
//!
//! Administrators are left out: they can give themselves any permission. So is who is
//! said to be trusted.

use std::collections::BTreeMap;

use regex::Regex;

use crate::{
    codec::{AppKey, Delay, RoutingKey},
    management::Permission,
    topology::Topology,
};

use super::{
    DoctorOptions, FindingCode, HealthFinding,
    facts::{Access, Facts},
};

/// An app key that nobody has been given: what permits it permits any.
const ANY_APP: &str = "delayline-doctor-any-app";

/// A user without the tag `administrator`, and what it may do.
struct User<'a> {
    permission: &'a Permission,
    access: &'a Access,
    vhost: &'a str,
}

/// Whether a user may, or why it cannot be told.
type May = Result<bool, String>;

impl User<'_> {
    /// Patterns of permissions must match a name somewhere; an empty one matches none.
    fn matches(&self, pattern: &str, text: &str) -> May {
        if pattern.is_empty() {
            return Ok(false);
        }
        let matches = Regex::new(pattern).map(|pattern| pattern.is_match(text));
        matches.map_err(|_| format!("what user `{}` may do: cannot read `{pattern}`", self.permission.user))
    }

    /// Whether a key is allowed on a topic exchange.
    fn key(&self, exchange: &str, key: &str, which: fn(&(String, String)) -> &String) -> May {
        let user = &self.permission.user;
        let topic = self.access.topics.iter().find(|topic| topic.user == *user && topic.exchange == exchange);
        let Some(topic) = topic else { return Ok(true) };
        let pattern = which(&(topic.write.clone(), topic.read.clone()))
            .replace("{username}", &regex::escape(user))
            .replace("{vhost}", &regex::escape(self.vhost));
        self.matches(&pattern, key)
    }
}

pub(super) fn check(
    topology: &Topology,
    facts: &Facts,
    options: &DoctorOptions,
    vhost: &str,
    unchecked: &mut Vec<String>,
) -> Vec<HealthFinding> {
    let Some(access) = &facts.access else { return Vec::new() };
    let mut found: BTreeMap<FindingCode, Vec<String>> = BTreeMap::new();
    for permission in &access.permissions {
        let known = access.users.iter().find(|user| user.name == permission.user);
        let trusted = options.trusted.contains(&permission.user);
        if trusted || known.is_some_and(|user| user.has_tag("administrator")) {
            continue;
        }
        let user = User { permission, access, vhost };
        for (code, may) in powers(topology, &user) {
            match may {
                Ok(true) => found.entry(code).or_default().push(permission.user.clone()),
                Ok(false) => {}
                Err(reason) if unchecked.contains(&reason) => {}
                Err(reason) => unchecked.push(reason),
            }
        }
    }
    found.into_iter().map(|(code, users)| finding(topology, code, &users)).collect()
}

fn powers(topology: &Topology, user: &User<'_>) -> Vec<(FindingCode, May)> {
    let names = topology.names();
    let (entry, dispatch) = (names.entry(), names.dispatch());
    let Permission { configure, write, read, .. } = user.permission;
    let any = AppKey::new(ANY_APP).expect("it is one");
    let routing_key = RoutingKey::new(Delay::ZERO, any.clone()).encode();
    let pattern = RoutingKey::binding_pattern(&any);
    let both = |first: May, second: &dyn Fn() -> May| if first? { second() } else { Ok(false) };
    // A key that no rule on purpose lets through: services may publish for any app.
    let garbage = "delayline-doctor";
    let publishes = both(user.matches(write, &entry), &|| user.key(&entry, garbage, |topic| &topic.0));
    let binds = both(user.matches(read, &dispatch), &|| user.key(&dispatch, &pattern, |topic| &topic.1));
    // Who may take messages out of the unroutable queue is to send them on.
    let operator = user.matches(read, &names.unroutable()).unwrap_or(false);
    let delivers = both(user.matches(write, &dispatch).map(|may| may && !operator), &|| {
        user.key(&dispatch, &routing_key, |topic| &topic.0)
    });
    let own: Vec<_> =
        topology.queues().filter(|queue| queue.level.is_some()).map(|queue| queue.name.as_str()).collect();
    let anywhere = |pattern: &str, names: &[&str]| -> May {
        names.iter().try_fold(false, |so_far, name| Ok(so_far || user.matches(pattern, name)?))
    };
    let controls = [
        anywhere(read, &own),
        anywhere(write, &own),
        anywhere(configure, &own),
        anywhere(configure, &[&entry, &dispatch, &names.unroutable()]),
    ]
    .into_iter()
    .try_fold(false, |so_far, one| Ok(so_far || one?));
    vec![
        (FindingCode::EntryUnprotected, publishes),
        (FindingCode::DispatchUnprotected, binds),
        (FindingCode::DispatchWritable, delivers),
        (FindingCode::SetUnprotected, controls),
    ]
}

fn finding(topology: &Topology, code: FindingCode, users: &[String]) -> HealthFinding {
    let names = topology.names();
    let (entry, dispatch) = (names.entry(), names.dispatch());
    let list: Vec<_> = users.iter().map(|user| format!("`{user}`")).collect();
    let who = list.join(", ");
    let (subject, what, advice) = match code {
        FindingCode::EntryUnprotected => (
            format!("exchange `{entry}`"),
            format!("any key can be published by {who}: for any application, and garbage"),
            "give them a topic permission there; delayline app add does, and docs/security.md has the patterns",
        ),
        FindingCode::DispatchUnprotected => (
            format!("exchange `{dispatch}`"),
            format!("any key can be bound by {who}, and so any application's messages copied"),
            "give them a topic permission there, or take `read` on it away; delayline app add binds for them",
        ),
        FindingCode::DispatchWritable => (
            format!("exchange `{dispatch}`"),
            format!("messages can be delivered to any application at once by {who}"),
            "take `write` on it away from all but operators, who need it to replay",
        ),
        _ => (
            format!("set `{}`", topology.settings().set),
            format!("levels can be purged, consumed, fed or deleted by {who}"),
            "take the permissions on the set's own queues and exchanges away; docs/security.md says who needs which",
        ),
    };
    HealthFinding::new(code, subject, what, advice)
}
