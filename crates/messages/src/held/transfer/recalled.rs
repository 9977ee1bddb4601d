//! Which of the waiting messages were recalled at the source.

use std::collections::{HashMap, HashSet};

use crate::{error::AdminError, scheduled::recalled_keys};
use delayline_core::{
    codec::{AppKey, RoutingKey},
    topology::Topology,
};
use delayline_settings::Settings;

/// The recalled keys of the applications whose messages were read.
pub(super) struct RecalledKeys<'a> {
    from: &'a Settings,
    topology: Topology,
    of_apps: HashMap<AppKey, HashSet<String>>,
    failure: Option<AdminError>,
}

impl<'a> RecalledKeys<'a> {
    /// The broker is asked at the first message with an id.
    pub(super) fn of(from: &'a Settings) -> Self {
        let topology = Topology::new(from.topology.clone());
        Self { from, topology, of_apps: HashMap::new(), failure: None }
    }

    /// Whether the message with this key was recalled. `None` if the broker cannot be asked;
    /// [`checked`](Self::checked) then returns the reason.
    pub(super) fn has(&mut self, key: &RoutingKey) -> Option<bool> {
        if key.id().is_none() {
            return Some(false);
        }
        if self.failure.is_none() && !self.of_apps.contains_key(&key.app) {
            match recalled_keys(self.from, &self.topology, &key.app) {
                Ok(Ok(keys)) => drop(self.of_apps.insert(key.app.clone(), keys)),
                Ok(Err(reason)) => {
                    let reason = format!("which messages of `{}` were recalled: {reason}", key.app);
                    self.failure = Some(AdminError::NoManagement { reason });
                }
                Err(error) => self.failure = Some(error),
            }
        }
        self.of_apps.get(&key.app).map(|keys| keys.contains(&key.encode()))
    }

    /// Fails if the recalls of an application could not be read.
    pub(super) fn checked(self) -> Result<(), AdminError> {
        self.failure.map_or(Ok(()), Err)
    }
}
