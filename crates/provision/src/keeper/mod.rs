//! Watches a set, makes its stuck queues try again, and pauses applications that block a level.

mod relief;
mod suspicion;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use log::{Level, debug, info, warn};

use delayline_broker::Survey;
use delayline_core::{backoff::wait, topology::Topology};
use delayline_messages::{
    complaint::Complaint, error::AdminError, unstick::Unstick, unstick::UnstickOptions,
    unstick::UnstickReport, unstick::is_of_set, unstick::unstick,
};
use delayline_settings::Settings;

use relief::Relief;
use suspicion::{Suspect, Suspicion};

/// How often it checks whether there are new counts, and whether to stop.
const TICK: Duration = Duration::from_millis(100);

/// What a keeper has done, for metrics.
#[derive(Debug, Default)]
pub struct UnstickStats(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    attempts: BTreeMap<String, u64>,
    /// `None` while the broker's counts are unknown.
    blocked: Option<BTreeSet<String>>,
}

impl Counts {
    fn blocked(&mut self) -> &mut BTreeSet<String> {
        self.blocked.get_or_insert_default()
    }
}

impl UnstickStats {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often each queue was made to try again.
    #[must_use]
    pub fn attempts(&self) -> BTreeMap<String, u64> {
        self.lock().attempts.clone()
    }

    /// How many queues are stuck now and must not or cannot be touched; `None` if that is not known.
    #[must_use]
    pub fn blocked(&self) -> Option<usize> {
        self.lock().blocked.as_ref().map(BTreeSet::len)
    }
}

/// Runs [`unstick`] automatically, whenever a queue of the set or a landing queue has had dead letters for
/// some seconds and none was seen to leave. While that lasts, it repeats this every 10 s for a minute, and
/// then every 30 s.
#[derive(Debug)]
pub struct Unsticker {
    settings: Settings,
    topology: Topology,
    stats: Arc<UnstickStats>,
    survey: Arc<Survey>,
    suspicion: Suspicion,
    relief: Option<Relief>,
    complaint: Complaint,
    /// That dead letters cannot be counted.
    blind: Complaint,
}

impl Unsticker {
    /// An unsticker for the set of the settings, which takes the counts from a survey.
    #[must_use]
    pub fn new(settings: Settings, survey: Arc<Survey>, stats: Arc<UnstickStats>) -> Self {
        let topology = Topology::new(settings.topology.clone());
        let [complaint, blind] = [(), ()].map(|()| Complaint::of(module_path!()));
        let suspicion = Suspicion::default();
        Self { settings, topology, stats, survey, suspicion, relief: None, complaint, blind }
    }

    /// The same, which also pauses applications that block a level, at most so many at a time, and resumes
    /// them when their queues accept messages again.
    #[must_use]
    pub fn pausing(mut self, most: usize) -> Self {
        self.relief = (most > 0).then(|| Relief::new(&self.settings, &self.topology, most));
        self
    }

    /// Watches the set until `stop` is set, through restarts of the broker. Without a management API it
    /// logs that and ends.
    pub fn run(mut self, stop: &AtomicBool) {
        if self.settings.management.is_none() {
            return info!("without a management API, stuck queues cannot be detected");
        }
        let started = Instant::now();
        let mut last = None;
        let mut clean = false;
        while !stop.load(Ordering::Relaxed) {
            let Some(reading) = self.survey.reading().filter(|reading| last != Some(reading.at)) else {
                wait(stop, TICK);
                continue;
            };
            last = Some(reading.at);
            if !clean {
                clean = self.clear_what_was_left_behind();
            }
            match &reading.counts {
                Ok(found) => {
                    self.blind.tell(Level::Warn, None);
                    let names = self.topology.names();
                    let ours =
                        found.queues.iter().filter(|queue| is_of_set(&self.topology, names, &queue.name));
                    let counts = ours.clone().filter_map(|queue| {
                        let count = queue.messages_dlx.filter(|count| *count > 0);
                        Some((queue.name.clone(), count?))
                    });
                    let (counts, unknown) = (counts.collect(), ours.clone().any(|queue| queue.uncounted));
                    let stuck = self.look(|| started.elapsed(), &counts);
                    if let Some(relief) = &mut self.relief {
                        if let Some(level) = stuck {
                            relief.pause(&self.survey, &level);
                        }
                        relief.resume(&self.survey, started.elapsed(), &found.queues);
                    }
                    if unknown {
                        self.stats.lock().blocked = None;
                    }
                }
                Err(error) => {
                    let unknown = format!("stuck queues cannot be detected: {error}; trying again");
                    self.blind.tell(Level::Warn, Some(unknown));
                    self.suspicion.forget();
                    self.stats.lock().blocked = None;
                }
            }
        }
    }

    /// Whether policies that were left behind have been deleted.
    fn clear_what_was_left_behind(&self) -> bool {
        let options = self.options(Vec::new());
        match unstick(&self.settings, &self.topology, &options) {
            Ok(report) => {
                for kind in report.left_behind {
                    info!("deleted the {kind} that an earlier run left behind");
                }
                true
            }
            Err(error) => {
                debug!("cannot tell whether a policy was left behind: {error}");
                false
            }
        }
    }

    fn options(&self, queues: Vec<String>) -> UnstickOptions {
        UnstickOptions { which: Unstick::Named(queues), wait: Duration::ZERO, ..UnstickOptions::default() }
    }

    /// Makes stuck queues try again. Returns a level among them.
    fn look(&mut self, clock: impl Fn() -> Duration, counts: &BTreeMap<String, u64>) -> Option<String> {
        let (suspects, freed) = self.suspicion.note(clock(), counts);
        self.stats.lock().blocked().retain(|queue| counts.contains_key(queue));
        for queue in freed {
            info!("queue `{queue}` is flowing again");
        }
        if suspects.is_empty() {
            return None;
        }
        let names = suspects.iter().map(|suspect| suspect.queue.clone()).collect();
        let done = unstick(&self.settings, &self.topology, &self.options(names));
        // The request may have taken long.
        for suspect in &suspects {
            self.suspicion.attempted(clock(), &suspect.queue);
        }
        match done {
            Ok(report) => self.note(&suspects, &report),
            Err(error) => self.complain(&suspects, &error),
        }
        let mut stuck = suspects.into_iter().map(|suspect| suspect.queue);
        stuck.find(|queue| self.topology.names().hop_of(queue).is_some())
    }

    fn note(&mut self, suspects: &[Suspect], report: &UnstickReport) {
        let mut counts = self.stats.lock();
        for touched in &report.touched {
            *counts.attempts.entry(touched.queue.clone()).or_default() += 1;
            counts.blocked().remove(&touched.queue);
            let Some(suspect) = suspects.iter().find(|suspect| suspect.queue == touched.queue) else {
                continue;
            };
            let Suspect { queue, dead_letters, since, moves } = suspect;
            let since = since.as_secs();
            match moves {
                false => warn!(
                    "queue `{queue}` has had dead letters for {since} s and passes none on ({dead_letters} \
                     now): made to try again"
                ),
                true => info!(
                    "queue `{queue}` has always had dead letters for {since} s ({dead_letters} now): made to try again"
                ),
            }
        }
        counts.blocked().extend(report.occupied.iter().map(|occupied| occupied.queue.clone()));
        drop(counts);
        let occupied = report.occupied.first().map(|first| {
            format!(
                "queue `{}` is stuck and cannot be made to try again without replacing the policy `{}` or \
                 the operator policy `{}`; changing either of them, for example its priority, has the same \
                 effect",
                first.queue, first.policy, first.operator_policy
            )
        });
        self.complaint.tell(Level::Warn, occupied);
    }

    fn complain(&mut self, suspects: &[Suspect], error: &AdminError) {
        self.stats.lock().blocked().extend(suspects.iter().map(|suspect| suspect.queue.clone()));
        let queues: Vec<_> = suspects.iter().map(|suspect| format!("`{}`", suspect.queue)).collect();
        debug!("{} stuck: {error}", queues.join(", "));
        self.complaint.tell(Level::Warn, Some(format!("stuck queues cannot be made to try again: {error}")));
    }
}
