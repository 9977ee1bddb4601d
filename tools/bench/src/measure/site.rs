//! The throw-away set.

use log::warn;

use std::sync::atomic::AtomicBool;

use delayline_admin as admin;
use delayline_amqp::Session;
use delayline_broker::Difference;
use delayline_core::{
    codec::{AppKey, Delay, Level, RoutingKey},
    topology::{Binding, Endpoint, Queue, QueueType, SetName, Topology, Unit},
};
use delayline_settings::Settings;

use super::BenchError;

/// A set of our own, and an application's queue that is bound to it. Both are removed when
/// this is dropped.
pub(super) struct Site {
    settings: Settings,
    topology: Topology,
    pub(super) sink: String,
    pub(super) app: AppKey,
    stands: bool,
}

/// A name that no other set has.
pub(super) fn new_name() -> SetName {
    let name = format!("bench-{:08x}", fastrand::u32(..));
    name.parse().expect("it is one word")
}

impl Site {
    /// Installs it, unless anything exists under its name.
    pub(super) fn set_up(
        settings: &Settings,
        name: SetName,
        unit: Unit,
        progress: impl FnMut(),
    ) -> Result<Self, BenchError> {
        let mut settings = settings.clone();
        settings.topology.set = name;
        settings.topology.unit = unit;
        settings.topology.shortcuts.get_or_insert(false);
        let topology = Topology::new(settings.topology.clone());
        let sink = format!("{}.sink", settings.topology.set);
        let mut session = Session::open(&settings.broker)?;
        let found = admin::install(&settings, &topology, true, || {})?;
        if let Some(conflict) = found.conflicts.first() {
            return Err(BenchError::Exists { object: conflict.object.clone() });
        }
        if found.standing > 0 {
            let object = format!("something of the set `{}`", settings.topology.set);
            return Err(BenchError::Exists { object });
        }
        if session.queue_depth(&sink)?.is_some() {
            return Err(BenchError::Exists { object: format!("queue `{sink}`") });
        }
        // From here on there is something to remove, however this ends.
        let mut site =
            Self { settings, topology, sink, app: AppKey::new("bench").expect("it is one"), stands: true };
        match site.install(&mut session, progress) {
            Ok(()) => Ok(site),
            Err(error) => Err(site.abandon(error)),
        }
    }

    fn install(&mut self, session: &mut Session, progress: impl FnMut()) -> Result<(), BenchError> {
        let report = admin::install(&self.settings, &self.topology, false, progress)?;
        if let Some(finding) = report.unsuitable.first() {
            self.stands = false;
            return Err(match finding {
                Difference::Unsuitable { reason, remedy } => {
                    BenchError::Unsuitable { reason: reason.clone(), remedy: remedy.clone() }
                }
                other => BenchError::Unsuitable { reason: other.to_string(), remedy: String::new() },
            });
        }
        let mut arguments = std::collections::BTreeMap::new();
        arguments.insert("x-queue-type".to_owned(), self.settings.topology.queue_type.as_str().into());
        if self.settings.topology.queue_type == QueueType::Quorum
            && let Some(replicas) = self.settings.topology.replicas
        {
            arguments.insert("x-quorum-initial-group-size".to_owned(), i64::from(replicas.get()).into());
        }
        session.declare_queue(&Queue::new(self.sink.clone()).with_arguments(arguments))?;
        session.bind(&Binding {
            source: self.topology.names().dispatch(),
            destination: Endpoint::Queue(self.sink.clone()),
            key: RoutingKey::binding_pattern(&self.app),
        })?;
        Ok(())
    }

    /// How many queues a message with this delay passes.
    pub(super) fn hops(&self, delay: Delay) -> u32 {
        delay.hops_with(self.settings.topology.shortcuts == Some(true))
    }

    /// Its settings, for a router that publishes to it.
    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The name of its entry.
    pub(super) fn entry(&self) -> String {
        self.topology.names().entry()
    }

    /// The name of the queue of a level.
    pub(super) fn level_queue(&self, level: Level) -> String {
        self.topology.names().level_queue(level)
    }

    /// Removes it.
    pub(super) fn remove(mut self) -> Result<(), BenchError> {
        self.clear().map_err(|error| self.left(&error))
    }

    /// Removes it after a failure, and reports it if that fails too.
    pub(super) fn abandon(mut self, error: BenchError) -> BenchError {
        match self.clear() {
            Ok(()) => error,
            Err(_) => self.left(&error),
        }
    }

    fn clear(&mut self) -> Result<(), BenchError> {
        if !std::mem::take(&mut self.stands) {
            return Ok(());
        }
        // With `force`: the messages in it are ours.
        admin::uninstall(&self.settings, &self.topology, true, &AtomicBool::new(false))?.map_err(
            |refusal| BenchError::Left {
                reason: refusal.to_string(),
                set: self.settings.topology.set.to_string(),
                remedy: self.remedy(),
            },
        )?;
        Session::open(&self.settings.broker)?.delete_queue(&self.sink)?;
        Ok(())
    }

    fn left(&self, error: &BenchError) -> BenchError {
        match error {
            BenchError::Left { reason, set, remedy } => {
                BenchError::Left { reason: reason.clone(), set: set.clone(), remedy: remedy.clone() }
            }
            error => BenchError::Left {
                reason: error.to_string(),
                set: self.settings.topology.set.to_string(),
                remedy: self.remedy(),
            },
        }
    }

    fn remedy(&self) -> String {
        let set = &self.settings.topology.set;
        let unit = self.settings.topology.unit.millis();
        let mut remedy = format!("`delayline uninstall --set {set} --unit-ms {unit} --force");
        if self.settings.topology.queue_type == QueueType::Classic {
            remedy += " --queue-type classic";
        }
        if let Some(replicas) = self.settings.topology.replicas {
            remedy += &format!(" --replicas {replicas}");
        }
        remedy + &format!("`, and the queue `{}`", self.sink)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            warn!("{}", self.left(&error));
        }
    }
}
