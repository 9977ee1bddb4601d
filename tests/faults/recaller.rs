//! Processes that recall a tenth of the messages, each at a random moment before it is due or
//! shortly after, and that report the answers.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use delayline_amqp::Session;
use delayline_client::recall::{Answer, Recaller};
use delayline_core::{
    codec::AppKey,
    message::Handle,
    topology::{Endpoint, Object, RecallSettings, Topology},
};
use delayline_settings::{Layers, Settings};

use crate::{
    Args, UNIT_MS,
    ledger::{Ledger, Told, clock_ms},
    publisher::Waiting,
};

/// The environment variable with the recaller's settings, as JSON.
pub const JOB: &str = "FAULTS_RECALLER";

/// The number of processes that recall at the same time.
const PROCESSES: usize = 4;

/// One message in `EACH` is recalled.
const EACH: u64 = 10;

/// How long after its due time a message may still be recalled, in ms.
const AFTERWARDS_MS: i64 = 200;

/// How long a recaller retries while the broker is away.
const PATIENCE: Duration = Duration::from_secs(300);

/// Messages per second: publishing takes 20 s at least, so that there are recalls before and after
/// each kill.
pub fn rate(args: &Args) -> u64 {
    args.rate.min(args.messages / 20).max(1)
}

/// The longest delay of a message in units. It is the time needed to publish all messages, but 30 s
/// to 2 min, so that most recalls are in time although a node is away for a while.
pub fn longest(args: &Args) -> u64 {
    (args.messages / rate(args)).clamp(30, 120) * 1_000 / UNIT_MS
}

/// Declares the objects that an application needs for recalls.
pub fn offer(session: &mut Session, topology: &Topology, app: &str) {
    let app = AppKey::new(app).expect("an app key");
    let to = Endpoint::Queue(app.to_string());
    for object in topology.recall(&app, to, RecallSettings::default()) {
        match object {
            Object::Exchange(exchange) => session.declare_exchange(&exchange),
            Object::Queue(queue) => session.declare_queue(&queue),
            Object::Binding(binding) => session.bind(&binding),
        }
        .expect("the object can be declared");
    }
}

/// The code of the process: recalls the messages that it reads, and prints a line for each answer.
pub fn recall(settings: &Vec<(String, String)>) {
    let mut layers = Layers::new();
    for (key, value) in settings {
        layers = layers.set(key, value);
    }
    let settings: Settings = layers.build().expect("settings");
    let mut recaller = None;
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let (id, handle) = line.split_once(' ').expect("an id and a handle");
        let told = one(&settings, &mut recaller, &handle.parse().expect("a handle"));
        // If the reader is gone, the line is not needed.
        let _ = writeln!(io::stdout().lock(), "{id} {told}");
    }
}

fn one(settings: &Settings, recaller: &mut Option<Recaller>, handle: &Handle) -> &'static str {
    let until = Instant::now() + PATIENCE;
    let mut failed = false;
    while Instant::now() < until {
        let connect = || Recaller::connect(settings.target());
        let connected = match recaller.take() {
            Some(recaller) => Ok(recaller),
            None => connect(),
        };
        if let Ok(connected) = connected {
            let answer = connected.recall(handle);
            *recaller = Some(connected);
            match answer {
                Ok(Answer::InTime) => return "recalled",
                Ok(Answer::TooLate) => return "too-late",
                Ok(_) => return "open",
                Err(error) => {
                    if !failed {
                        eprintln!("   recalling {handle}: {error}");
                    }
                    failed = true;
                }
            }
        }
        thread::sleep(Duration::from_millis(200));
    }
    "open"
}

/// The processes, from the suite's point of view.
pub struct Recallers {
    planner: JoinHandle<usize>,
    readers: Vec<(Child, JoinHandle<()>)>,
    ledger: Arc<Ledger>,
}

impl Recallers {
    /// Starts the processes. They recall the messages that are sent to the returned channel, until
    /// the channel is closed.
    pub fn start(
        settings: &[(String, String)],
        ledger: &Arc<Ledger>,
    ) -> (Option<Sender<Waiting>>, Option<Self>) {
        let (handles, waiting) = mpsc::channel();
        let (mut inputs, mut readers) = (Vec::new(), Vec::new());
        for _ in 0..PROCESSES {
            let mut child = Command::new(std::env::current_exe().expect("our own path"))
                .env(JOB, serde_json::to_string(settings).expect("JSON"))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("a recaller can be started");
            inputs.push(child.stdin.take().expect("its input"));
            let out = BufReader::new(child.stdout.take().expect("its output"));
            let ledger = Arc::clone(ledger);
            let reader = thread::spawn(move || {
                for line in out.lines().map_while(Result::ok) {
                    let Some((id, told)) = line.split_once(' ') else { continue };
                    let told = match told {
                        "recalled" => Told::Recalled,
                        "too-late" => Told::TooLate,
                        _ => Told::Open,
                    };
                    ledger.tell(id.parse().expect("an id"), told);
                }
            });
            readers.push((child, reader));
        }
        let planner = thread::spawn(move || plan(&waiting, inputs));
        let recallers = Self { planner, readers, ledger: Arc::clone(ledger) };
        (Some(handles), Some(recallers))
    }

    /// Waits until each recall has its answer.
    pub fn finish(self) {
        let planned = self.planner.join().expect("the plan is carried out");
        for (mut child, reader) in self.readers {
            assert!(child.wait().is_ok_and(|status| status.success()), "a recaller failed");
            reader.join().expect("its answers are read");
        }
        assert_eq!(self.ledger.told(), planned, "recalls without an answer");
    }
}

/// Passes a tenth of the messages to the recallers, each at its moment. Returns their number.
fn plan(waiting: &Receiver<Waiting>, mut inputs: Vec<ChildStdin>) -> usize {
    let mut planned: BTreeMap<(i64, u64), String> = BTreeMap::new();
    let (mut open, mut given) = (true, 0);
    while open || !planned.is_empty() {
        let now = clock_ms();
        while let Some(first) = planned.first_entry().filter(|first| first.key().0 <= now) {
            let ((_, id), handle) = first.remove_entry();
            let count = inputs.len();
            writeln!(inputs[given % count], "{id} {handle}").expect("a recaller reads");
            given += 1;
        }
        let next = planned.first_key_value().map_or(50, |((at, _), _)| (at - now).clamp(1, 50));
        match waiting.recv_timeout(Duration::from_millis(next.unsigned_abs())) {
            Ok(Waiting { id, due, handle }) => {
                let mut random = fastrand::Rng::with_seed(!id);
                if random.u64(0..EACH) == 0 {
                    let now = clock_ms();
                    let moment = random.i64(now..=(due + AFTERWARDS_MS).max(now));
                    planned.insert((moment, id), handle);
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                open = false;
                thread::sleep(Duration::from_millis(next.unsigned_abs()));
            }
        }
    }
    given
}
