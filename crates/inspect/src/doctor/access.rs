//! Users with too many rights.
//!
//! Administrators are left out: they can give themselves any permission. So are the users named as trusted. The
//! daemon's user publishes for every application and sets policies; anything beyond that is a finding.

use delayline_core::shell::command;
use std::collections::BTreeMap;

use crate::{doctor::DoctorOptions, doctor::evidence::Evidence, finding::Finding, finding::FindingCode};
use delayline_broker::{
    ANY_APP, Grants, Pattern, Permission, Unreadable, forgery, is_of_daemon, may_pause, permits,
};
use delayline_core::{
    codec::{AppKey, Delay, Hop, RoutingKey},
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

/// Whether an action is allowed, or why that is unknown.
type May = Result<bool, Unreadable>;

/// A user without the tag `administrator`, and its rights.
struct User<'a> {
    permission: &'a Permission,
    grants: &'a Grants,
    makes_policies: bool,
    forgeable: bool,
}

impl User<'_> {
    fn may_publish(&self, exchange: &str, key: &str) -> May {
        self.grants.may_publish_key(&self.permission.user, exchange, key)
    }

    fn may_bind(&self, exchange: &str, key: &str) -> May {
        self.grants.may_bind_key(&self.permission.user, exchange, key)
    }
}

pub(super) fn check(
    topology: &Topology,
    evidence: &Evidence,
    options: &DoctorOptions,
    unchecked: &mut Vec<String>,
) -> Vec<Finding> {
    let Some(grants) = &evidence.snapshot.grants else { return Vec::new() };
    let forgery = forgery(evidence.snapshot.about.version.as_deref());
    let mut found: BTreeMap<Power, Vec<String>> = BTreeMap::new();
    for permission in grants.permissions.values() {
        let has_tag = |tag: &str| grants.has_tag(&permission.user, tag);
        if options.trusted.contains(&permission.user) || has_tag("administrator") {
            continue;
        }
        let of_daemon = is_of_daemon(topology.names(), permission);
        let pauses = may_pause(topology.names(), permission);
        let makes_policies = has_tag("policymaker");
        let user = User { permission, grants, makes_policies, forgeable: forgery.is_some() };
        for (power, may) in powers(topology, &user) {
            if of_daemon && matches!(power, Power::Publish | Power::SetPolicies | Power::Forge) {
                continue;
            }
            // Pausing an application binds another queue in place of its own.
            if pauses && power == Power::Bind {
                continue;
            }
            match may {
                Ok(true) => found.entry(power).or_default().push(permission.user.clone()),
                Ok(false) => {}
                Err(unreadable) => {
                    let reason = format!("the rights of user `{}`: {unreadable}", permission.user);
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
    let any = AppKey::new(ANY_APP).expect("the name is valid");
    let routing_key = RoutingKey::new(Delay::ZERO, any.clone()).encode();
    let pattern = RoutingKey::binding_pattern(&any);
    let both = |first: May, second: &dyn Fn() -> May| if first? { second() } else { Ok(false) };
    // A key that no rule allows on purpose, since services may publish for any app.
    let garbage = "delayline-doctor";
    let publishes = both(permits(write, &entry), &|| user.may_publish(&entry, garbage));
    let binds = both(permits(read, &dispatch), &|| user.may_bind(&dispatch, &pattern));
    // A user that may read the unroutable queue is meant to send messages on from it.
    let operator = permits(read, &names.unroutable()).unwrap_or(false);
    let delivers = both(permits(write, &dispatch).map(|may| may && !operator), &|| {
        user.may_publish(&dispatch, &routing_key)
    });
    let forges = match user.forgeable && !operator {
        true => permits(write, &entry),
        false => Ok(false),
    };
    let own: Vec<_> = Hop::all().map(|hop| names.hop(hop)).collect();
    let own: Vec<_> = own.iter().map(String::as_str).collect();
    let anywhere = |pattern: &Pattern, names: &[&str]| -> May {
        names.iter().try_fold(false, |so_far, name| Ok(so_far || permits(pattern, name)?))
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
            format!(
                "give them a topic permission there; `{}` does that, and docs/explanation/security.md has \
                 the patterns",
                command(&["app", "add", "APP"])
            ),
        ),
        Power::Bind => (
            FindingCode::DispatchUnprotected,
            exchange(names.dispatch()),
            format!("{who} can bind any key and so copy any application's messages"),
            format!(
                "give them a topic permission there, or remove `read` on it; `{}` makes their bindings",
                command(&["app", "add", "APP"])
            ),
        ),
        Power::Deliver => (
            FindingCode::DispatchWritable,
            exchange(names.dispatch()),
            format!("{who} can deliver messages to any application at once"),
            "remove `write` on it from all users except operators, who need it for replays".into(),
        ),
        Power::Control => (
            FindingCode::SetUnprotected,
            set(),
            format!("{who} can purge, consume, fill or delete levels"),
            "remove the permissions on the set's own queues and exchanges; docs/explanation/security.md \
             lists the permissions that each user needs"
                .into(),
        ),
        Power::SetPolicies => (
            FindingCode::SetUnprotected,
            set(),
            format!("{who} can set policies on every level that drop messages or deliver them early"),
            "remove the tag `policymaker`: it covers every queue of the vhost, whatever their permissions are"
                .into(),
        ),
        Power::Forge => (
            FindingCode::UntrustedTenants,
            exchange(names.entry()),
            format!("{who} may publish, and {forgery}"),
            "upgrade to RabbitMQ 4. Until then, name the users that all other users trust (--trusted), and \
             give the rest a broker of their own"
                .into(),
        ),
    };
    Finding::new(code, subject, what, advice)
}
