//! Processes that recall a tenth of the messages, each at a random moment before it is due or
//! shortly after, and say what they were told.

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

/// What a recaller is told in its environment: settings, as JSON.
pub const JOB: &str = "FAULTS_RECALLER";

/// How many recall at the same time.
const PROCESSES: usize = 4;

/// One of how many messages is recalled.
const EACH: u64 = 10;

/// How long after a message was due somebody may still try to recall it, in ms.
const AFTERWARDS_MS: i64 = 200;

/// How long a recaller tries again while the broker is away.
const PATIENCE: Duration = Duration::from_secs(120);

/// How many messages are published in a second: for 20 s at least, so that there are recalls
/// before and after each kill.
pub fn rate(args: &Args) -> u64 {
    args.rate.min(args.messages / 20).max(1)
}

/// The longest delay of a message, in units: as long as it takes to publish them all, but 30 s
/// to 2 min, so that most recalls are in time although a node is away for a while.
pub fn longest(args: &Args) -> u64 {
    (args.messages / rate(args)).clamp(30, 120) * 1_000 / UNIT_MS
}

/// Makes what an application needs for it.
pub fn offer(session: &mut Session, topology: &Topology, app: &str) {
    let app = AppKey::new(app).expect("an app key");
    let to = Endpoint::Queue(app.to_string());
    for object in topology.recall(&app, to, RecallSettings::default()) {
        match object {
            Object::Exchange(exchange) => session.declare_exchange(&exchange),
            Object::Queue(queue) => session.declare_queue(&queue),
            Object::Binding(binding) => session.bind(&binding),
        }
        .expect("it can be declared");
    }
}

/// The process itself: recalls what it reads, and writes a line per answer.
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
        // If nobody reads any more, there is nobody to tell.
        let _ = writeln!(io::stdout().lock(), "{id} {told}");
    }
}

fn one(settings: &Settings, recaller: &mut Option<Recaller>, handle: &Handle) -> &'static str {
    let until = Instant::now() + PATIENCE;
    let mut failed = false;
    while Instant::now() < until {
        let connect = || Recaller::connect(settings.broker.clone(), settings.topology.set.clone());
        let connected = match recaller.take() {
            Some(recaller) => Ok(recaller),
            None => connect(),
        };
        if let Ok(mut connected) = connected {
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

/// The processes as the suite sees them.
pub struct Recallers {
    planner: JoinHandle<usize>,
    readers: Vec<(Child, JoinHandle<()>)>,
    ledger: Arc<Ledger>,
}

impl Recallers {
    /// Starts them. They take the handles that are sent, until nobody sends any more.
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

    /// Waits until each has its answer.
    pub fn finish(self) {
        let planned = self.planner.join().expect("the plan is carried out");
        for (mut child, reader) in self.readers {
            assert!(child.wait().is_ok_and(|status| status.success()), "a recaller did not end in order");
            reader.join().expect("its answers are read");
        }
        assert_eq!(self.ledger.told(), planned, "recalls without an answer");
    }
}

/// Gives a tenth of the messages to the recallers, each at its moment. Returns how many.
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
