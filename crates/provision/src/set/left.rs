//! What stays of applications when their set is removed.

use delayline_broker::{Permission, SeenSet, names_in};
use delayline_core::{codec::AppKey, topology::Topology};
use delayline_settings::Settings;

use crate::apps::is_of_adding;
use delayline_inspect::{AppEntry, AppUserEntry};
use delayline_messages::error::{self, AdminError};

/// The parts of applications that stay without the set.
pub(super) fn left(topology: &Topology, apps: Vec<AppEntry>) -> Vec<String> {
    let of_app = |entry: AppEntry| {
        let app = entry.app?;
        let is_own = |user: &&AppUserEntry| {
            user.publishes == Some(true)
                && (user.consumes == Some(true) || entry.queue.is_none())
                && is_of_adding(topology, &user.permission)
        };
        let users = entry.users.iter().flatten();
        let user = users.filter(is_own).map(|user| user.name.as_str()).next();
        left_of(topology, &app, user, entry.queue.as_deref())
    };
    apps.into_iter().filter_map(of_app).collect()
}

/// The same, after an earlier removal of the set: the broker deletes the bindings and the topic permissions
/// with it, so the key of an application is that of its queue or user. Only administrators see the rights of
/// users.
pub(super) fn left_earlier(settings: &Settings, topology: &Topology) -> Result<Vec<String>, AdminError> {
    let api = error::api(settings, "shows users")?;
    let SeenSet { snapshot, grants: Ok(grants) } = SeenSet::apps(&api, &settings.broker.vhost, topology)?
    else {
        return Ok(Vec::new());
    };
    let of_user = |permission: &Permission| {
        let user = permission.user.as_str();
        if !is_of_adding(topology, permission) || grants.has_tag(user, "administrator") {
            return None;
        }
        let queues = names_in(&permission.read).unwrap_or_default();
        let queue = queues.iter().find(|name| snapshot.queues.contains_key(*name));
        let app = queue.map(String::as_str).into_iter().chain([user]).find(|it| AppKey::new(*it).is_ok())?;
        left_of(topology, app, Some(user), queue.map(String::as_str))
    };
    Ok(grants.permissions.values().filter_map(of_user).collect())
}

fn left_of(topology: &Topology, app: &str, user: Option<&str>, queue: Option<&str>) -> Option<String> {
    let mut command = vec!["app", "remove", app];
    command.extend(user.into_iter().flat_map(|user| ["--user", user]));
    command.extend(queue.into_iter().flat_map(|queue| ["--queue", queue]));
    let queue = queue.map(|queue| format!("queue `{queue}`"));
    let rights = user.map(|user| format!("permissions of user `{user}`"));
    let parts: Vec<_> = queue.into_iter().chain(rights).collect();
    (!parts.is_empty()).then(|| {
        let (parts, command) = (parts.join(" and "), topology.settings().set.command(&command));
        format!("application `{app}`: {parts}; `{command}` removes them")
    })
}
