//! What the broker has and a platform file does not: applications, gateways, and the rights of users.

use std::collections::{BTreeMap, BTreeSet};

use delayline_broker::{Snapshot, apps_in};
use delayline_core::{codec::AppKey, topology::Topology};
use delayline_schedules::ScheduleName;
use delayline_settings::Settings;

use super::PlatformSet;
use crate::apps::is_of_adding;
use delayline_inspect::{apps_of, names_among};
use delayline_messages::error::AdminError;

/// The parts of a set that are not in the file.
#[derive(Debug, Default)]
pub(super) struct Surplus {
    /// The applications, and the queue of each if it is known.
    pub(super) apps: BTreeMap<AppKey, Option<String>>,
    pub(super) gateways: Vec<String>,
    pub(super) schedules: Vec<ScheduleName>,
    /// Users with the rights of an application of this set.
    pub(super) users: Vec<String>,
    /// The set, with the users of the vhost if they can be seen.
    pub(super) snapshot: Snapshot,
}

impl Surplus {
    /// Compares a set with the file. `users` are the users of the whole file.
    pub(super) fn find(
        settings: &Settings,
        wanted: &PlatformSet,
        users: &BTreeSet<&str>,
        snapshot: Snapshot,
    ) -> Result<Self, AdminError> {
        let topology = &wanted.topology;
        let mut surplus = Self::default();
        for entry in apps_of(settings, topology, &snapshot, snapshot.grants.as_ref())?.apps {
            // A binding without an application is a finding of `verify`.
            let Some(app) = entry.app.as_deref().and_then(|app| AppKey::new(app).ok()) else { continue };
            if !wanted.apps.iter().any(|spec| spec.app == app) {
                surplus.apps.entry(app).or_insert(entry.queue);
            }
        }
        surplus.gateways = names_among(topology.names(), snapshot.queues.keys());
        surplus.gateways.retain(|name| !wanted.gateways.iter().any(|(it, _)| it == name));
        if snapshot.queues.contains_key(&topology.names().schedules()) {
            let book = delayline_schedules::read(settings, topology)?.unwrap_or_default();
            let names = book.schedules().map(|entry| entry.definition.name.clone());
            let is_wanted = |name: &ScheduleName| wanted.schedules.iter().any(|(it, _)| it == name);
            // Applications manage their own.
            surplus.schedules = names.filter(|name| name.owner().is_none() && !is_wanted(name)).collect();
        }
        surplus.users = former_users(topology, wanted, users, &snapshot);
        surplus.snapshot = snapshot;
        Ok(surplus)
    }

    /// Its parts, in words.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        let apps = self.apps.keys().map(|app| format!("application `{app}`"));
        let gateways = self.gateways.iter().map(|gateway| format!("gateway `{gateway}`"));
        let users = self.users.iter().map(|user| format!("permissions of user `{user}`"));
        let schedules = self.schedules.iter().map(|schedule| format!("schedule `{schedule}`"));
        apps.chain(gateways).chain(schedules).chain(users)
    }
}

/// Users with rights that adding an application gave, and whom the file does not name. Users of applications
/// whose users the file leaves alone (`no_user`) are left alone.
fn former_users(
    topology: &Topology,
    wanted: &PlatformSet,
    users: &BTreeSet<&str>,
    snapshot: &Snapshot,
) -> Vec<String> {
    let Some(grants) = &snapshot.grants else { return Vec::new() };
    let entry = topology.names().entry();
    let alone = |app: &AppKey| wanted.apps.iter().any(|spec| spec.app == *app && spec.user.is_none());
    let former = grants.permissions.values().filter(|permission| {
        let user = permission.user.as_str();
        let apps = grants.topic(user, &entry).map(|rule| apps_in(&rule.write)).unwrap_or_default();
        !users.contains(user)
            && !grants.has_tag(user, "administrator")
            && is_of_adding(topology, permission)
            && !apps.is_empty()
            && !apps.iter().any(alone)
    });
    former.map(|permission| permission.user.clone()).collect()
}
