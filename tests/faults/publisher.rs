//! A process that publishes and reports every answer, so that it can be killed, and
//! live on a clock of its own.

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

/// What a publisher is told in its environment, as JSON.
pub const JOB: &str = "FAULTS_PUBLISHER";

#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct Job {
    /// Settings to give to the router.
    pub settings: Vec<(String, String)>,
    pub app: String,
    pub unit_ms: u64,
    /// Ids, from and up to.
    pub from: u64,
    pub to: u64,
    /// Messages per second.
    pub rate: u64,
    pub delays: Delays,
    /// Whether each message has its number as an id, so that it can be recalled.
    pub recallable: bool,
}

/// When a message is due.
#[derive(Debug, Clone, Copy, serde::Serialize, serde::Deserialize)]
pub enum Delays {
    /// After one to 127 units, most of one or two bits.
    Mixed,
    /// After one to so many units.
    UpTo(u64),
    /// After one to eight units.
    Short,
    /// At any moment between two of the clock that nobody can set, in ms.
    Between(i64, i64),
}

impl Delays {
    /// The delay in units of a message that is published now.
    fn of(self, id: u64, unit_ms: u64) -> u64 {
        let mut random = fastrand::Rng::with_seed(id);
        match self {
            Self::Mixed => delay_of(id),
            Self::UpTo(most) => random.u64(1..=most),
            Self::Short => random.u64(1..=8),
            Self::Between(from, to) => {
                let ahead = random.i64(from..to) - clock_ms();
                u64::try_from(ahead).unwrap_or(0).div_ceil(unit_ms)
            }
        }
    }
}

/// The delay of a message in units: most of one or two bits, some of up to seven.
fn delay_of(id: u64) -> u64 {
    let mut random = fastrand::Rng::with_seed(id);
    match id % 4 {
        0 => random.u64(1..128),
        1 => (1 << random.u64(0..7)) | (1 << random.u64(0..7)),
        _ => 1 << random.u64(0..7),
    }
}

/// The process itself: publishes, and writes a line per outcome.
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
        // A steady rate, also after the broker kept us waiting.
        let planned = Duration::from_secs_f64((id - job.from) as f64 / job.rate as f64);
        if let Some(ahead) = planned.checked_sub(started.elapsed()) {
            thread::sleep(ahead);
        }
        let delay = job.delays.of(id, job.unit_ms);
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
    // If nobody reads any more, there is nobody to tell.
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
    /// On the clock of [`clock_ms`].
    pub due: i64,
    pub handle: String,
}

/// A publisher as the suite sees it.
pub struct Publisher {
    job: Job,
    /// Environment that moves its clock.
    clock: Vec<(String, String)>,
    ledger: Arc<Ledger>,
    /// Who is told the handles.
    handles: Option<Sender<Waiting>>,
    running: Option<(Child, JoinHandle<()>)>,
    /// The highest id that was reported.
    reached: Arc<AtomicU64>,
}

impl Publisher {
    pub fn start(job: Job, clock: Vec<(String, String)>, ledger: Arc<Ledger>) -> Self {
        Self::telling(job, clock, ledger, None)
    }

    /// The same; tells somebody the handles of what is confirmed.
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
                // The last line of a killed process may be cut off; then its message
                // is not in the ledger, although the broker may have it.
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
                            // Nobody may want to know any more.
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

    /// Kills it as it publishes, and starts another that carries on.
    pub fn kill_and_restart(&mut self) {
        if let Some((mut child, reader)) = self.running.take() {
            let _ = child.kill();
            let _ = child.wait();
            let _ = reader.join();
        }
        // Ids that were in flight are never used again: whether they arrive is open.
        let left = self.job.to.saturating_sub(self.reached.load(Ordering::Relaxed));
        self.job.from = self.job.to + 1_000_000;
        self.job.to = self.job.from + left;
        self.reached.store(self.job.from, Ordering::Relaxed);
        self.run();
    }

    /// Waits until everything has its answer. Returns whether it ended in order.
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
