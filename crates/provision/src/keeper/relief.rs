//! Pausing applications whose queues block a level, and resuming them.

use std::{collections::BTreeMap, sync::atomic::AtomicBool, time::Duration};

use log::{Level, info, warn};

use delayline_broker::{QueueInfo, Survey, routes};
use delayline_core::{codec::AppKey, topology::Topology};
use delayline_settings::Settings;

use crate::{apps::pause_app, apps::resume_app, engine::Applied};
use delayline_inspect::Hold;
use delayline_messages::{complaint::Complaint, error::AdminError};

/// How long no message may wait in the queue of a paused application before that is resumed.
const CALM: Duration = Duration::from_secs(20);

/// The greatest age of the snapshot by which an application is paused or resumed.
const FRESH: Duration = Duration::from_secs(1);

/// Applications that are paused because they block a level.
#[derive(Debug)]
pub(super) struct Relief {
    settings: Settings,
    topology: Topology,
    /// The most applications that may be paused at a time.
    most: usize,
    /// Since when each has had no waiting message.
    calm: BTreeMap<String, Duration>,
    complaint: Complaint,
}

impl Relief {
    pub(super) fn new(settings: &Settings, topology: &Topology, most: usize) -> Self {
        let (settings, topology) = (settings.clone(), topology.clone());
        Self { settings, topology, most, calm: BTreeMap::new(), complaint: Complaint::of(module_path!()) }
    }

    /// Pauses the applications that are known not to accept messages now, since a level is stuck.
    pub(super) fn pause(&mut self, survey: &Survey, level: &str) {
        let done = self.try_pause(survey, level);
        let what = done.unwrap_or_else(|error| Some(error.to_string()));
        let text = what.map(|what| format!("queue `{level}` is stuck, and no application is paused: {what}"));
        self.complaint.tell(Level::Warn, text);
    }

    /// The reason why an application that blocks the level was not paused.
    fn try_pause(&self, survey: &Survey, level: &str) -> Result<Option<String>, AdminError> {
        let seen = survey.set(FRESH)?;
        let snapshot = &seen.snapshot;
        let names = self.topology.names();
        let mut paused = snapshot.queues.keys().filter(|name| names.app_of_paused(name).is_some()).count();
        for target in routes(&self.topology, snapshot).iter().filter(|target| target.landing.is_none()) {
            let (Some(why), Ok(app)) = (target.blocked(), AppKey::new(&target.app)) else { continue };
            if paused >= self.most {
                return Ok(Some(format!(
                    "`{app}` does not accept messages ({why}), but {paused} are paused"
                )));
            }
            let report = pause_app(&self.settings, &self.topology, &app, Hold::UntilAccepted, false)?;
            if report.outcome == Applied::Conflict {
                return Ok(Some(report.conflicts.join("; ")));
            }
            warn!(
                "application `{app}` blocks queue `{level}` ({why}), and is paused: its due messages wait in \
                 queue `{}`",
                report.queue
            );
            paused += 1;
        }
        Ok(None)
    }

    /// Resumes the applications whose queues have accepted all messages for a while. Those that were paused
    /// until a person resumes them stay paused.
    pub(super) fn resume(&mut self, survey: &Survey, now: Duration, queues: &[QueueInfo]) {
        let names = self.topology.names();
        let empty: Vec<_> = queues
            .iter()
            .filter(|queue| !queue.uncounted && queue.messages == Some(0))
            .filter_map(|queue| names.app_of_paused(&queue.name))
            .collect();
        self.calm.retain(|app, _| empty.contains(&app.as_str()));
        for app in empty {
            self.calm.entry(app.to_owned()).or_insert(now);
        }
        let due = self.calm.iter().filter(|(_, since)| now.saturating_sub(**since) >= CALM);
        let due: Vec<_> = due.filter_map(|(app, _)| AppKey::new(app.as_str()).ok()).collect();
        for app in due {
            self.calm.remove(app.as_str());
            match self.try_resume(survey, &app) {
                Ok(true) => info!("application `{app}` accepts messages again, and is resumed"),
                Ok(false) => {}
                Err(error) => warn!("application `{app}` stays paused: {error}"),
            }
        }
    }

    fn try_resume(&self, survey: &Survey, app: &AppKey) -> Result<bool, AdminError> {
        let seen = survey.set(FRESH)?;
        let snapshot = &seen.snapshot;
        let queue = snapshot.queues.get(&self.topology.names().paused(app));
        let ours = queue.is_some_and(|queue| Hold::of(queue) == Hold::UntilAccepted);
        let targets = routes(&self.topology, snapshot);
        let refuses = targets.iter().any(|target| target.app == app.as_str() && target.blocked().is_some());
        if !ours || refuses {
            return Ok(false);
        }
        let stop = AtomicBool::new(false);
        let report = resume_app(&self.settings, &self.topology, app, Duration::ZERO, false, &stop)?;
        Ok(report.outcome == Applied::Installed)
    }
}
