//! `delayline send`

mod input;

#[cfg(all(feature = "cli", any(test, fuzzing)))]
pub(crate) use input::read_json_line;

use std::{
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal, Read},
    path::PathBuf,
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::RecvTimeoutError;
use jiff::Timestamp;
use serde::Serialize;

use crate::{
    Message, Router, Settings,
    codec::{AppKey, Delay, Tolerance},
    message::When,
    router::{Cause, Outcome, Receipt},
};

use super::{
    Code, Failure, Output, args, interrupt,
    output::{counted, grouped},
    time,
};

use input::{Format, Template};

/// How many lines may be read before they are sent.
const READ_AHEAD: usize = 1_000;

/// How often it is looked for an interrupt while there is nothing to read.
const TICK: Duration = Duration::from_millis(100);

/// How many failures are shown one by one.
const SHOWN: usize = 20;

/// How long closing the connection may take after the last answer.
const CLOSE: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline send --app billing --delay 90s --body 'invoice 17'
  delayline send --app billing --at 2026-12-24T18:00 --file letter.pdf
  delayline send --app billing --delay 1h --tolerance 5% < body.txt
  seq 1000 | delayline send --app billing --delay 10s --lines
  delayline send --jsonl --file messages.jsonl --delay 1h

A line of JSON is an object with any of body, body_base64, headers, app, delay, at,
tolerance, message_id, correlation_id, content_type, content_encoding, reply_to, type,
priority, expiration, timestamp, app_id, user_id; flags fill in what it leaves out:
  {\"app\": \"billing\", \"delay\": \"90s\", \"body\": \"invoice 17\", \"headers\": {\"customer\": \"C-4\"}}

A file with bad lines is refused as a whole, before anything is sent. Bad lines of standard
input are reported and left out. The exit code is 3 if the broker did not confirm a message,
be it one or one of many, and otherwise 2 if one could not be sent.")]
pub(super) struct Args {
    /// The application that receives the messages
    #[arg(long, value_name = "KEY", value_parser = args::app)]
    app: Option<AppKey>,
    /// How long to wait: 90, 90s, 1h30m, 2d, PT90S
    #[arg(long, value_name = "D", value_parser = args::delay, conflicts_with = "at")]
    delay: Option<Delay>,
    /// When to deliver: 2026-12-24T18:00:00Z, `2026-12-24 18:00` (local), 18:00
    #[arg(long, value_name = "TIME", value_parser = time::instant)]
    at: Option<Timestamp>,
    /// How much later is fine if that saves queue hops: 5%, 30s
    #[arg(long, value_name = "T", value_parser = args::tolerance, default_value = "0s")]
    tolerance: Tolerance,
    /// The body of one message
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["file", "lines", "jsonl"])]
    body: Option<String>,
    /// Read from this file instead of standard input
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Each line is the body of a message
    #[arg(long, conflicts_with = "jsonl")]
    lines: bool,
    /// Each line is a message as JSON
    #[arg(long)]
    jsonl: bool,
}

#[derive(Debug, Default, Serialize)]
struct Report {
    confirmed: u64,
    failed: u64,
    /// Those among the failed that nobody could send: nothing is wrong with the broker.
    unsendable: u64,
    seconds: f64,
    per_second: f64,
    /// The first few failures.
    failures: Vec<Line>,
    /// The receipt of a single message.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Sent>,
    #[serde(skip)]
    interrupted: bool,
}

#[derive(Debug, Serialize)]
struct Line {
    line: u64,
    error: String,
}

#[derive(Debug, Serialize)]
struct Sent {
    due: Timestamp,
    seconds: u32,
    hops: u32,
}

pub(super) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let template = Template {
        app: args.app.clone(),
        when: args.delay.map(When::After).or(args.at.map(When::At)),
        tolerance: args.tolerance,
        quota: settings.router.quota.clone(),
        unit: settings.topology.unit,
    };
    let report = if args.lines || args.jsonl {
        let format = if args.lines { Format::Lines } else { Format::Json };
        send_many(args, format, &template, settings, output)?
    } else {
        let message = template.message(one_body(args)?).map_err(Failure::usage)?;
        send_one(message, settings)?
    };
    show(&report, output)?;
    // The same as for one message alone.
    Ok(match &report {
        Report { interrupted: true, .. } => Code::Interrupted,
        Report { unsendable, failed, .. } if failed > unsendable => Code::Broker,
        Report { unsendable: 1.., .. } => Code::Usage,
        _ => Code::Done,
    })
}

fn open(file: &PathBuf) -> Result<File, Failure> {
    File::open(file).map_err(|error| Failure::usage(format!("{}: {error}", file.display())))
}

fn one_body(args: &Args) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    match (&args.body, &args.file) {
        (Some(text), _) => body.extend_from_slice(text.as_bytes()),
        (None, Some(file)) => {
            let read = open(file)?.read_to_end(&mut body);
            read.map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
        }
        (None, None) => {
            if io::stdin().is_terminal() {
                anstream::eprintln!("reading the body from the terminal; Ctrl-D ends it");
            }
            io::stdin().lock().read_to_end(&mut body)?;
        }
    }
    Ok(body)
}

fn send_one(message: Message, settings: &Settings) -> Result<Report, Failure> {
    let router = Router::connect(settings)?;
    let started = Instant::now();
    let result = router.publish(message);
    let seconds = started.elapsed().as_secs_f64();
    router.close(CLOSE);
    match result {
        Ok(receipt) => {
            let message = Some(Sent::from(receipt));
            Ok(Report { confirmed: 1, seconds, per_second: seconds.recip(), message, ..Report::default() })
        }
        Err(error) if matches!(error.cause(), Cause::Invalid(_)) => Err(Failure::usage(error)),
        Err(error) => Err(Failure::new(Code::Broker, error)),
    }
}

fn send_many(
    args: &Args,
    format: Format,
    template: &Template,
    settings: &Settings,
    output: &Output,
) -> Result<Report, Failure> {
    let (reader, total): (Box<dyn BufRead + Send>, _) = match &args.file {
        // What can be read only once is not checked beforehand.
        Some(file) if !file.is_file() => (Box::new(BufReader::new(open(file)?)), None),
        Some(file) => {
            let total = input::check(BufReader::new(open(file)?), format, template).map_err(|problem| {
                Failure::usage(format!("{}: {problem}; nothing was sent", file.display()))
            })?;
            (Box::new(BufReader::new(open(file)?)), Some(total))
        }
        None => (Box::new(BufReader::new(io::stdin())), None),
    };
    let router = Router::connect(settings)?;
    let interrupted = interrupt::flag()?;
    let started = Instant::now();
    let bar = output.progress(total, "sending");
    let mut report = Report::default();
    let mut pipeline = router.pipeline();
    // On a thread of its own, which nobody waits for: reading may take for ever.
    let (sender, lines) = crossbeam_channel::bounded(READ_AHEAD);
    thread::spawn(move || input::lines(reader).try_for_each(|line| sender.send(line)));
    loop {
        if interrupted.load(Ordering::Relaxed) {
            report.interrupted = true;
            break;
        }
        let (number, line) = match lines.recv_timeout(TICK) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                report.extend(std::iter::from_fn(|| pipeline.try_next()), || bar.inc(1));
                continue;
            }
        };
        match line.map_err(|error| error.to_string()).and_then(|line| format.message(&line, template)) {
            Ok(Some(message)) => {
                let outcome = pipeline.push(number, message);
                report.extend(outcome, || bar.inc(1));
            }
            Ok(None) => {}
            Err(error) => {
                report.unsendable += 1;
                report.fail(number, error);
            }
        }
    }
    report.extend(pipeline, || bar.inc(1));
    bar.finish_and_clear();
    report.seconds = started.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a rate to look at")]
    let confirmed = report.confirmed as f64;
    report.per_second = confirmed / report.seconds.max(1e-9);
    router.close(CLOSE);
    Ok(report)
}

impl Report {
    fn extend(&mut self, outcomes: impl IntoIterator<Item = Outcome<u64>>, mut progress: impl FnMut()) {
        for outcome in outcomes {
            match outcome.result {
                Ok(_) => self.confirmed += 1,
                Err(error) => {
                    self.unsendable += u64::from(matches!(error.cause(), Cause::Invalid(_)));
                    self.fail(outcome.tag, error.to_string());
                }
            }
            progress();
        }
    }

    fn fail(&mut self, line: u64, error: String) {
        self.failed += 1;
        if self.failures.len() < SHOWN {
            self.failures.push(Line { line, error });
        }
    }
}

impl From<Receipt> for Sent {
    fn from(receipt: Receipt) -> Self {
        Self { due: receipt.due, seconds: receipt.delay.seconds(), hops: receipt.delay.hops() }
    }
}

fn show(report: &Report, output: &mut Output) -> Result<(), Failure> {
    if output.json {
        return Ok(output.json(report)?);
    }
    for failure in &report.failures {
        anstream::eprintln!("message {}: {}", failure.line, failure.error);
    }
    let more = report.failed.saturating_sub(report.failures.len() as u64);
    if more > 0 {
        anstream::eprintln!("… and {more} more");
    }
    if let Some(sent) = &report.message {
        let hops = counted(sent.hops.into(), "hop");
        output.line(format!(
            "confirmed; due at {} (in {} s, {hops})",
            time::clock(sent.due),
            sent.seconds
        ))?;
        return Ok(());
    }
    output.line(format!(
        "{} confirmed, {} failed, in {:.1} s ({:.0}/s){}",
        grouped(report.confirmed),
        grouped(report.failed),
        report.seconds,
        report.per_second,
        if report.interrupted { "; interrupted" } else { "" }
    ))?;
    Ok(())
}
