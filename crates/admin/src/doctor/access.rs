//! Users that may do more than they should.
//!
//! Administrators are left out: they can give themselves any permission. So are the users
//! named as trusted.

use std::collections::BTreeMap;

use crate::{
    compare::forgery,
    doctor::{DoctorOptions, facts::Facts},
    finding::{Finding, FindingCode},
    management::{Permission, TopicPermission},
    permitted::{ANY_APP, Grants, May, Unreadable, key_matches, matches},
};
use delayline_core::{
    codec::{AppKey, Delay, RoutingKey},
    topology::Topology,
};

/// What a user should not be able to do, in the order of the codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Power {
    /// Publish any key to the entry exchange.
    Publish,
    /// Bind any key to dispatch.
    Bind,
    /// Publish any key to dispatch.
    Deliver,
    /// Use or change the set's own queues and exchanges.
    Control,
    /// Put policies on them.
    SetPolicies,
    /// Publish at all, on a broker where one message can end all delays.
    Forge,
}

/// A user without the tag `administrator`, and what it may do.
struct User<'a> {
    permission: &'a Permission,
    grants: &'a Grants,
    vhost: &'a str,
    makes_policies: bool,
    forgeable: bool,
}

impl User<'_> {
    /// Whether a topic permission allows a key.
    fn key(&self, exchange: &str, key: &str, which: fn(&TopicPermission) -> &String) -> May {
        key_matches(&self.grants.topics, (&self.permission.user, self.vhost), exchange, key, which)
    }
}

pub(super) fn check(
    topology: &Topology,
    facts: &Facts,
    options: &DoctorOptions,
    vhost: &str,
    unchecked: &mut Vec<String>,
) -> Vec<Finding> {
    let Some(grants) = &facts.grants else { return Vec::new() };
    let forgery = forgery(facts.about.version.as_deref());
    let mut found: BTreeMap<Power, Vec<String>> = BTreeMap::new();
    for permission in &grants.permissions {
        let has_tag = |tag: &str| grants.has_tag(&permission.user, tag);
        if options.trusted.contains(&permission.user) || has_tag("administrator") {
            continue;
        }
        let makes_policies = has_tag("policymaker");
        let user = User { permission, grants, vhost, makes_policies, forgeable: forgery.is_some() };
        for (power, may) in powers(topology, &user) {
            match may {
                Ok(true) => found.entry(power).or_default().push(permission.user.clone()),
                Ok(false) => {}
                Err(Unreadable(pattern)) => {
                    let reason = format!("what user `{}` may do: cannot read `{pattern}`", permission.user);
                    if !unchecked.contains(&reason) {
                        unchecked.push(reason);
                    }
                }
            }
        }
    }
    let forgery = forgery.unwrap_or_default();
    found.into_iter().map(|(power, users)| finding(topology, power, &users, &forgery)).collect()
}

fn powers(topology: &Topology, user: &User<'_>) -> Vec<(Power, May)> {
    let names = topology.names();
    let (entry, dispatch) = (names.entry(), names.dispatch());
    let Permission { configure, write, read, .. } = user.permission;
    let any = AppKey::new(ANY_APP).expect("it is one");
    let routing_key = RoutingKey::new(Delay::ZERO, any.clone()).encode();
    let pattern = RoutingKey::binding_pattern(&any);
    let both = |first: May, second: &dyn Fn() -> May| if first? { second() } else { Ok(false) };
    // A key that no rule allows on purpose: services may publish for any app.
    let garbage = "delayline-doctor";
    let publishes = both(matches(write, &entry), &|| user.key(&entry, garbage, |topic| &topic.write));
    let binds = both(matches(read, &dispatch), &|| user.key(&dispatch, &pattern, |topic| &topic.read));
    // A user that may read the unroutable queue is meant to send messages on from it.
    let operator = matches(read, &names.unroutable()).unwrap_or(false);
    let delivers = both(matches(write, &dispatch).map(|may| may && !operator), &|| {
        user.key(&dispatch, &routing_key, |topic| &topic.write)
    });
    let forges = match user.forgeable && !operator {
        true => matches(write, &entry),
        false => Ok(false),
    };
    let own: Vec<_> =
        topology.queues().filter(|queue| queue.level.is_some()).map(|queue| queue.name.as_str()).collect();
    let anywhere = |pattern: &str, names: &[&str]| -> May {
        names.iter().try_fold(false, |so_far, name| Ok(so_far || matches(pattern, name)?))
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
        (Power::Publish, publishes),
        (Power::Bind, binds),
        (Power::Deliver, delivers),
        (Power::Control, controls),
        (Power::SetPolicies, Ok(user.makes_policies)),
        (Power::Forge, forges),
    ]
}

fn finding(topology: &Topology, power: Power, users: &[String], forgery: &str) -> Finding {
    let names = topology.names();
    let exchange = |name: String| format!("exchange `{name}`");
    let set = || format!("set `{}`", topology.settings().set);
    let list: Vec<_> = users.iter().map(|user| format!("`{user}`")).collect();
    let who = list.join(", ");
    let (code, subject, what, advice) = match power {
        Power::Publish => (
            FindingCode::EntryUnprotected,
            exchange(names.entry()),
            format!("{who} can publish any key: for any application, and malformed ones"),
            "give them a topic permission there; delayline app add does that, and docs/security.md has the \
             patterns",
        ),
        Power::Bind => (
            FindingCode::DispatchUnprotected,
            exchange(names.dispatch()),
            format!("{who} can bind any key and so copy any application's messages"),
            "give them a topic permission there, or take away `read` on it; delayline app add binds for them",
        ),
        Power::Deliver => (
            FindingCode::DispatchWritable,
            exchange(names.dispatch()),
            format!("{who} can deliver messages to any application at once"),
            "take away `write` on it from all but operators, who need it for replays",
        ),
        Power::Control => (
            FindingCode::SetUnprotected,
            set(),
            format!("{who} can purge, consume, fill or delete levels"),
            "take away the permissions on the set's own queues and exchanges; docs/security.md says who \
             needs which",
        ),
        Power::SetPolicies => (
            FindingCode::SetUnprotected,
            set(),
            format!("{who} can set policies on every level that drop messages or deliver them early"),
            "take away the tag `policymaker`: it covers every queue of the vhost, whatever permissions they have",
        ),
        Power::Forge => (
            FindingCode::UntrustedTenants,
            exchange(names.entry()),
            format!("{who} may publish, and {forgery}"),
            "upgrade to RabbitMQ 4; until then, name the users that all the others trust (--trusted), and \
             give the rest a broker of their own",
        ),
    };
    Finding::new(code, subject, what, advice)
}
