//! A process that publishes and reports every answer. It can be killed, and can have its own clock.

use std::{
    io::{self, BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::Sender,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use delayline_client::router::Outcome;
use delayline_core::{
    Message,
    codec::{AppKey, Delay},
    message::Properties,
};
use delayline_settings::Settings;

use crate::ledger::{Ledger, clock_ms};

/// The environment variable with the publisher's job, as JSON.
pub const JOB: &str = "FAULTS_PUBLISHER";

#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct Job {
    /// Settings for the router.
    pub settings: Vec<(String, String)>,
    pub app: String,
    pub unit_ms: u64,
    /// The first id, and the id after the last one.
    pub from: u64,
    pub to: u64,
    /// Messages per second.
    pub rate: u64,
    pub delays: Delays,
    /// Whether each message has its number as an id, so that it can be recalled.
    pub recallable: bool,
}

/// The delays of the messages.
#[derive(Debug, Clone, Copy, serde::Serialize, serde::Deserialize)]
pub enum Delays {
    /// One to 127 units, mostly with one or two bits set.
    Mixed,
    /// One to this many units.
    UpTo(u64),
}

impl Delays {
    /// The delay of a message in units.
    fn of(self, id: u64) -> u64 {
        match self {
            Self::Mixed => delay_of(id),
            Self::UpTo(most) => fastrand::Rng::with_seed(id).u64(1..=most),
        }
    }
}

/// The delay of a message in units: mostly with one or two bits set, sometimes with up to seven.
fn delay_of(id: u64) -> u64 {
    let mut random = fastrand::Rng::with_seed(id);
    match id % 4 {
        0 => random.u64(1..128),
        1 => (1 << random.u64(0..7)) | (1 << random.u64(0..7)),
        _ => 1 << random.u64(0..7),
    }
}

/// The code of the process: publishes, and prints a line for each result.
pub fn publish(job: &Job) {
    let mut layers = delayline_settings::Layers::new();
    for (key, value) in &job.settings {
        layers = layers.set(key, value);
    }
    let settings: Settings = layers.build().expect("settings");
    let router = settings.router().connect_later();
    let app = AppKey::new(job.app.as_str()).expect("an app key");
    let mut pipeline = router.pipeline();
    let started = Instant::now();
    for id in job.from..job.to {
        // The rate is constant, even if the broker has blocked the publisher for a while.
        let planned = Duration::from_secs_f64((id - job.from) as f64 / job.rate as f64);
        if let Some(ahead) = planned.checked_sub(started.elapsed()) {
            thread::sleep(ahead);
        }
        let delay = job.delays.of(id);
        let due = clock_ms() + i64::try_from(delay * job.unit_ms).expect("a time");
        let properties = Properties { message_id: Some(id.to_string()), ..Properties::default() };
        let mut message =
            Message::after(app.clone(), Delay::from_seconds(delay).expect("a delay"), "x".repeat(256))
                .with_properties(properties);
        if job.recallable {
            message = message.with_id(id.to_string().parse().expect("an id"));
        }
        let mut outcome = pipeline.push((id, due), message);
        while let Some(settled) = outcome {
            report(&settled);
            outcome = pipeline.try_next();
        }
    }
    pipeline.for_each(|outcome| report(&outcome));
}

fn report(outcome: &Outcome<(u64, i64)>) {
    let (id, due) = outcome.tag;
    let mut out = io::stdout().lock();
    // If the reader is gone, the line is not needed.
    let _ = match &outcome.result {
        Ok(receipt) => {
            let handle = receipt.handle.as_ref().map(|handle| format!(" {handle}")).unwrap_or_default();
            writeln!(out, "confirmed {id} {due} {}{handle}", receipt.delay.hops())
        }
        Err(error) => writeln!(out, "failed {id} {error}"),
    };
}

/// A message that was confirmed and can be recalled.
#[derive(Debug, Clone)]
pub struct Waiting {
    pub id: u64,
    /// A time of [`clock_ms`].
    pub due: i64,
    pub handle: String,
}

/// A publisher, from the suite's point of view.
pub struct Publisher {
    job: Job,
    /// The environment that changes its clock.
    clock: Vec<(String, String)>,
    ledger: Arc<Ledger>,
    /// Receives the handles of confirmed messages.
    handles: Option<Sender<Waiting>>,
    running: Option<(Child, JoinHandle<()>)>,
    /// The id after the highest one that was reported.
    reached: Arc<AtomicU64>,
}

impl Publisher {
    pub fn start(job: Job, clock: Vec<(String, String)>, ledger: Arc<Ledger>) -> Self {
        Self::telling(job, clock, ledger, None)
    }

    /// The same; also sends the handles of confirmed messages to a channel.
    pub fn telling(
        job: Job,
        clock: Vec<(String, String)>,
        ledger: Arc<Ledger>,
        handles: Option<Sender<Waiting>>,
    ) -> Self {
        let reached = Arc::new(job.from.into());
        let mut publisher = Self { reached, job, clock, ledger, handles, running: None };
        publisher.run();
        publisher
    }

    fn run(&mut self) {
        let mut child = Command::new(std::env::current_exe().expect("our own path"))
            .env(JOB, serde_json::to_string(&self.job).expect("JSON"))
            .envs(self.clock.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a publisher can be started");
        let out = BufReader::new(child.stdout.take().expect("its output"));
        let (ledger, reached) = (Arc::clone(&self.ledger), Arc::clone(&self.reached));
        let handles = self.handles.clone();
        let reader = thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let words: Vec<_> = line.split(' ').collect();
                // The last line of a killed process may be cut off. Its message is then not in the
                // ledger, although the broker may have it.
                let Some(id) = words.get(1).and_then(|id| id.parse().ok()) else { continue };
                match words[..] {
                    ["confirmed", _, due, levels] => match (due.parse(), levels.parse()) {
                        (Ok(due), Ok(levels)) => ledger.confirm(id, due, levels),
                        _ => continue,
                    },
                    ["confirmed", _, due, levels, handle] => match (due.parse(), levels.parse()) {
                        (Ok(due), Ok(levels)) => {
                            ledger.confirm(id, due, levels);
                            let waiting = Waiting { id, due, handle: handle.into() };
                            // The receiver may be gone.
                            _ = handles.as_ref().map(|handles| handles.send(waiting));
                        }
                        _ => continue,
                    },
                    ["confirmed", ..] => continue,
                    _ => {
                        eprintln!("   {line}");
                        ledger.fail();
                    }
                }
                reached.fetch_max(id + 1, Ordering::Relaxed);
            }
        });
        self.running = Some((child, reader));
    }

    /// Kills the process as it publishes, and starts another that goes on.
    pub fn kill_and_restart(&mut self) {
        if let Some((mut child, reader)) = self.running.take() {
            let _ = child.kill();
            let _ = child.wait();
            let _ = reader.join();
        }
        // Ids that were in flight are never reused, because they may or may not arrive.
        let left = self.job.to.saturating_sub(self.reached.load(Ordering::Relaxed));
        self.job.from = self.job.to + 1_000_000;
        self.job.to = self.job.from + left;
        self.reached.store(self.job.from, Ordering::Relaxed);
        self.run();
    }

    /// Waits until every message has an answer. Returns whether the process succeeded.
    pub fn finish(mut self) -> bool {
        let Some((mut child, reader)) = self.running.take() else { return false };
        let ended = child.wait().is_ok_and(|status| status.success());
        reader.join().is_ok() && ended
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        if let Some((mut child, _)) = self.running.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
