//! `delayline demo`

use std::{
    collections::HashMap,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use jiff::Timestamp;
use owo_colors::OwoColorize;
use serde::Serialize;

use delayline_admin as admin;
use delayline_amqp::{Next, Session};
use delayline_core::{
    Message,
    codec::{AppKey, Delay, RoutingKey},
    message::Properties,
    topology::{Binding, Endpoint, Names, Topology},
};
use delayline_node::{NodeOptions, PrivateNode};
use delayline_settings::Settings;

use delayline_term::{Code, Failure, Output, ending, output::counted, table::table};

/// The delays to show, in seconds: single levels, and all below 16.
const DELAYS: [u64; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 10, 13, 15, 20];

/// How long after the last due time a message counts as lost.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline demo
  delayline demo --keep      leave the broker running, to try the other commands on it
  delayline demo --json

Starts RabbitMQ (which must be installed, not running) in a temporary directory on free
ports of this machine, and removes it at the end. No other broker is touched.")]
pub(crate) struct Args {
    /// Leave the private broker running and print its URL
    #[arg(long)]
    keep: bool,
}

/// One message of the demo.
#[derive(Debug, Serialize, schemars::JsonSchema)]
struct Row {
    seconds: u32,
    hops: u32,
    routing_key: String,
    /// Its lateness in ms; `None` if it never arrived.
    late_ms: Option<i64>,
}

#[derive(Serialize, schemars::JsonSchema)]
pub(crate) struct Report {
    messages: Vec<Row>,
    #[serde(flatten)]
    kept: Option<Running>,
}

/// A node that keeps running.
#[derive(Serialize, schemars::JsonSchema)]
struct Running {
    url: String,
    management_url: String,
    /// The shell command that stops it.
    stop: String,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<Code, Failure> {
    // The node ends with this process.
    ending::end_without_reader(Vec::new())?;
    let spinner = output.progress(None, "starting a private RabbitMQ node");
    spinner.set_style(
        ProgressStyle::with_template("{spinner} {msg} ({elapsed})")
            .unwrap_or_else(|_| ProgressStyle::default_spinner()),
    );
    let started = Instant::now();
    let node = PrivateNode::start(NodeOptions::default());
    spinner.finish_and_clear();
    let node = node?;
    let say = |output: &mut Output, line: String| {
        if output.json { Ok(()) } else { output.line(line) }
    };
    say(
        output,
        format!(
            "{} a private RabbitMQ node at {} ({:.1} s)",
            "started".green().bold(),
            node.url(),
            started.elapsed().as_secs_f64()
        ),
    )?;

    let settings = node.settings().build()?;
    let topology = Topology::new(settings.topology.clone());
    let started = Instant::now();
    let bar = output.progress(Some(topology.objects().len() as u64), "installing");
    let installed = admin::install(&settings, &topology, false, || bar.inc(1));
    bar.finish_and_clear();
    let report = installed?;
    say(
        output,
        format!(
            "{} {} and {} ({:.1} s)",
            "installed".green().bold(),
            counted(report.created.len() as u64, "object"),
            counted(report.bindings as u64, "binding"),
            started.elapsed().as_secs_f64()
        ),
    )?;

    let app = AppKey::new("demo").map_err(Failure::usage)?;
    let rows = watch(&app, &settings, output)?;
    let lost = rows.iter().filter(|row| row.late_ms.is_none()).count();
    let early = rows.iter().filter(|row| row.late_ms.is_some_and(|ms| ms < 0)).count();
    let kept = args.keep.then(|| Running {
        url: node.url(),
        management_url: node.management_url(),
        stop: node.keep(),
    });
    if output.json {
        output.json(&Report { messages: rows, kept })?;
    } else {
        show(&rows, output)?;
        if let Some(Running { url, management_url, stop }) = kept {
            output.line(format!("The node stays. Its URL is {url}, its web pages are at {management_url} (user and password guest)."))?;
            output
                .line(format!("Try:      delayline status --url {url} --management-url {management_url}"))?;
            output.line(format!("Stop it:  {stop}"))?;
        } else {
            output.line("The node is gone again. Next: delayline install --url amqp://USER@BROKER")?;
        }
    }
    Ok(if lost + early > 0 { Code::Problem } else { Code::Done })
}

/// Sends the messages and shows them arrive.
fn watch(app: &AppKey, settings: &Settings, output: &mut Output) -> Result<Vec<Row>, Failure> {
    let mut session = Session::open(&settings.broker)?;
    let queue = session.declare_own_queue()?;
    session.bind(&Binding {
        source: Names::new(settings.topology.set.clone()).dispatch(),
        destination: Endpoint::Queue(queue.clone()),
        key: RoutingKey::binding_pattern(app),
    })?;
    let consumer = session.consume(&queue, 100)?;

    let router = settings.router().connect()?;
    let mut rows = Vec::new();
    let mut due = HashMap::new();
    let started = Instant::now();
    for seconds in DELAYS {
        let delay = Delay::from_seconds(seconds).map_err(Failure::usage)?;
        let id = seconds.to_string();
        let properties = Properties { message_id: Some(id.clone()), ..Properties::default() };
        let message =
            Message::after(app.clone(), delay, format!("{seconds} s later")).with_properties(properties);
        let receipt = router.publish(message).map_err(|error| Failure::new(Code::Broker, error))?;
        due.insert(id, (rows.len(), receipt.due));
        rows.push(Row {
            seconds: delay.seconds(),
            hops: delay.hops(),
            routing_key: RoutingKey::new(delay, app.clone()).encode(),
            late_ms: None,
        });
    }
    let live = Live::new(&rows, output, started);
    let deadline = started + Duration::from_secs(DELAYS.into_iter().max().unwrap_or(0)) + PATIENCE;
    let mut missing = rows.len();
    while missing > 0 && Instant::now() < deadline {
        match consumer.next(Duration::from_millis(100)) {
            Next::Delivery(delivery) => {
                let now = Timestamp::now();
                let id = delivery.properties.message_id.clone().unwrap_or_default();
                consumer.ack(delivery)?;
                if let Some(&(index, due)) = due.get(&id)
                    && rows[index].late_ms.is_none()
                {
                    let late = now.as_millisecond() - due.as_millisecond();
                    rows[index].late_ms = Some(late);
                    missing -= 1;
                    live.arrived(index, late);
                }
            }
            Next::Timeout => {}
            Next::Ended(cause) => {
                let reason = cause.map_or_else(|| "the consumer ended".into(), |cause| cause.to_string());
                return Err(Failure::new(Code::Broker, reason));
            }
        }
    }
    live.end();
    // All messages have arrived.
    let _ = router.close(Duration::from_secs(5));
    Ok(rows)
}

/// A bar for each message that fills while the message waits; only on a terminal.
struct Live {
    bars: Vec<ProgressBar>,
    all: MultiProgress,
    ticker: Option<(mpsc::Sender<()>, thread::JoinHandle<()>)>,
}

impl Live {
    fn new(rows: &[Row], output: &Output, started: Instant) -> Self {
        let all = MultiProgress::new();
        if output.json || !output.is_terminal() {
            all.set_draw_target(ProgressDrawTarget::hidden());
        } else {
            all.set_draw_target(ProgressDrawTarget::stdout());
        }
        let style = ProgressStyle::with_template("{prefix:>5}  {bar:32.cyan/dim}  {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("━╸─");
        let bars: Vec<_> = rows
            .iter()
            .map(|row| {
                let bar = all.add(ProgressBar::new(u64::from(row.seconds) * 1_000).with_style(style.clone()));
                bar.set_prefix(format!("{} s", row.seconds));
                bar.set_message("waiting");
                bar
            })
            .collect();
        let (stop, stopped) = mpsc::channel::<()>();
        let ticking = bars.clone();
        let ticker = thread::Builder::new().name("delayline-demo".into()).spawn(move || {
            while stopped.recv_timeout(Duration::from_millis(80)) == Err(mpsc::RecvTimeoutError::Timeout) {
                let elapsed = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
                for bar in ticking.iter().filter(|bar| !bar.is_finished()) {
                    bar.set_position(elapsed.min(bar.length().unwrap_or(0)));
                }
            }
        });
        Self { bars, all, ticker: ticker.ok().map(|handle| (stop, handle)) }
    }

    fn arrived(&self, index: usize, late: i64) {
        if let Some(bar) = self.bars.get(index) {
            bar.set_position(bar.length().unwrap_or(0));
            bar.finish_with_message(format!("arrived, {late} ms late"));
        }
    }

    fn end(mut self) {
        if let Some((stop, handle)) = self.ticker.take() {
            drop(stop);
            let _ = handle.join();
        }
        // The table that follows has the same figures, in a form that can be copied.
        let _ = self.all.clear();
    }
}

fn show(rows: &[Row], output: &mut Output) -> Result<(), Failure> {
    let bits = |seconds: u32| format!("{seconds:05b}");
    let cells = rows.iter().map(|row| {
        vec![
            format!("{} s", row.seconds),
            bits(row.seconds),
            row.hops.to_string(),
            row.late_ms.map_or_else(|| "lost".into(), |ms| format!("{ms} ms")),
        ]
    });
    output.line(table(&[">delay", ">lowest 5 bits", ">queues passed", ">late"], cells))?;
    let mut late: Vec<_> = rows.iter().filter_map(|row| row.late_ms).collect();
    late.sort_unstable();
    let early = match late.iter().filter(|ms| **ms < 0).count() {
        0 => "none".to_owned(),
        count => count.to_string(),
    };
    if let (Some(median), Some(worst)) = (late.get(late.len() / 2), late.last()) {
        output.line(format!(
            "{} of {} arrived, {early} early; median lateness {median} ms, worst {worst} ms",
            late.len(),
            rows.len()
        ))?;
    }
    Ok(())
}
