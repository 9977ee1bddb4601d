//! `delayline send`

mod input;
mod instead;
mod lines;
mod problem;
mod report;

pub(crate) use report::{Recallable, Report};

#[cfg(any(test, fuzzing))]
pub(crate) use input::read_json_line;

use std::{
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal, Read},
    path::{Path, PathBuf},
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use crossbeam_channel::RecvTimeoutError;
use jiff::Timestamp;

use delayline_amqp::AmqpError;
use delayline_client::router::{Cause, Receipt, Router};
use delayline_core::{
    Message,
    codec::{AppKey, Delay, MessageId, Tolerance},
    message::{Handle, When},
};
use delayline_settings::Settings;

use crate::values;
use delayline_term::{Code, Failure, Output, ending, output::aside, output::counted, time};

use input::{Format, Past, Template, not_past};
use instead::send_instead;
use problem::Problems;
use report::{Sent, show, show_handle};

/// How often to check for an interrupt while there is nothing to read.
const TICK: Duration = Duration::from_millis(100);

/// The most bytes that a broker's `max_message_size` can be: 512 MiB.
const LARGEST: u64 = 512 << 20;

/// How many bytes of unconfirmed bodies the router may hold, except for a single larger body: its
/// window counts messages, not bytes.
const UNSETTLED: usize = 16 << 20;

/// How long closing the connection may take after the last confirm.
const CLOSE: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline send --app billing --delay 90s --body 'invoice 17'
  delayline send --app billing --at 2026-12-24T18:00 --file letter.pdf
  delayline send --app billing --delay 1h --tolerance 5% < body.txt
  seq 1000 | delayline send --app billing --delay 10s --lines
  delayline send --jsonl --file messages.jsonl --delay 1h
  delayline send --app billing --delay 30d --id invoice-17-1 --body 'pay!'
  delayline send --app billing --delay 14d --id invoice-17-1 --replace --body 'pay now!'

A line of JSON is an object with any of body, body_base64, headers, app, delay, at, past,
tolerance, id, message_id, correlation_id, content_type, content_encoding, reply_to, type,
priority, expiration, timestamp, app_id, user_id; flags supply what it leaves out:
  {\"app\": \"billing\", \"delay\": \"90s\", \"body\": \"invoice 17\", \"headers\": {\"customer\": \"C-4\"}}
`listen --json` and `held show --json` print such objects, too.

A file (--file) is checked completely first: if any line is bad, all bad lines are
reported, nothing is sent, and the exit code is 2. Standard input may never end, so each
of its lines is sent as it comes; a bad line is reported and left out. A line may have up
to 128 MiB. The exit code is 3 if the broker did not confirm every message, and otherwise
2 if a message could not be sent.

Delays: years of 365.25 days (y), weeks (w), days (d), h, m, s, ms; from large to small,
with fractions if you like: 1h30m, 1.5d, 8.5y. Times without an offset or a zone are
local; times that the clocks skip or show twice are refused.")]
pub(crate) struct Args {
    /// The application that receives the messages
    #[arg(long, value_name = "APP", value_parser = values::app)]
    app: Option<AppKey>,
    /// How long to wait: 90, 90s, 1h30m, 2d, 8.5y
    #[arg(long, value_name = "D", value_parser = values::delay, conflicts_with = "at")]
    delay: Option<Delay>,
    /// When to deliver: 2026-12-24T18:00:00Z, `2026-12-24 18:00` (local), 18:00 (the next time
    /// that clocks show this)
    #[arg(long, value_name = "TIME", value_parser = time::instant)]
    at: Option<Timestamp>,
    /// What to do if the time of --at is in the past
    #[arg(long, value_name = "WHAT", value_enum, default_value_t)]
    past: Past,
    /// How much later is acceptable to save queue hops: 5%, 30s
    #[arg(long, value_name = "T", value_parser = values::tolerance, default_value = "0s")]
    tolerance: Tolerance,
    /// Give it an id, so that it can be recalled (the application needs `app add --recall`)
    #[arg(long, value_name = "ID", value_parser = values::id, conflicts_with_all = ["lines", "jsonl"])]
    id: Option<MessageId>,
    /// Once the new message is confirmed, recall this old message; without a HANDLE, recall all waiting
    /// messages with its id in the application's journal
    #[arg(long, value_name = "HANDLE", value_parser = values::handle, conflicts_with_all = ["lines", "jsonl"])]
    replace: Option<Option<Handle>>,
    /// Print only the handle of each confirmed message with an id, for `scheduled recall`; the rest
    /// goes to standard error
    #[arg(long, conflicts_with = "lines")]
    handles: bool,
    /// The body of one message
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["file", "lines", "jsonl"])]
    body: Option<String>,
    /// Read from this file; `-` for standard input, which is the default
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Each line is the body of a message
    #[arg(long, conflicts_with = "jsonl")]
    lines: bool,
    /// Each line is a message as JSON
    #[arg(long)]
    jsonl: bool,
}

impl Args {
    /// The file to read from, unless that is standard input.
    fn named_file(&self) -> Option<&Path> {
        self.file.as_deref().filter(|file| *file != Path::new("-"))
    }
}

pub(crate) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    if let Some(at) = args.at {
        not_past(at, args.past, Timestamp::now())
            .map_err(|reason| Failure::usage(format!("--at {reason}")))?;
    }
    let template = Template {
        app: args.app.clone(),
        when: args.delay.map(When::After).or(args.at.map(When::At)),
        past: args.past,
        checked: false,
        tolerance: args.tolerance,
        id: args.id.clone(),
        quota: settings.router.quota.clone(),
        unit: (settings.topology.unit, settings.topology.shortcuts == Some(true)),
        user: settings.broker.credentials.username().map(str::to_owned),
    };
    // Mistakes in the flags are reported before the broker is asked.
    if !args.jsonl {
        template.message(Vec::new()).map_err(Failure::usage)?;
    }
    let same_id = match (&args.replace, &args.id) {
        (Some(None), None) => {
            return Err(Failure::usage(
                "--replace without a HANDLE replaces waiting messages with the same id: give its --id",
            ));
        }
        (Some(None), id) => id.as_ref(),
        _ => None,
    };
    let report = if args.lines || args.jsonl {
        let format = if args.lines { Format::Lines } else { Format::Json };
        send_many(args, format, &template, settings, output)?
    } else {
        let message = template.message(one_body(args)?).and_then(|message| template.admits(message));
        let message = message.map_err(Failure::usage)?;
        match (&args.replace, same_id) {
            (Some(Some(old)), _) => instead::send_for_handle(message, old, settings)?,
            (_, Some(id)) => match instead::waiting(&message.app, id, settings, output)? {
                Ok(old) => send_instead(message, &old, settings)?,
                Err(code) => return Ok(code),
            },
            (_, None) => send_one(message, settings)?,
        }
    };
    match args.handles && !output.json {
        true => show_handle(&report, output)?,
        false => show(&report, output)?,
    }
    // The same exit code as for a single message.
    Ok(match &report {
        Report { interrupted: true, .. } => Code::Interrupted,
        Report { left, .. } if !left.is_empty() => Code::Problem,
        Report { unsendable, problems, .. } if problems.count > *unsendable => Code::Broker,
        Report { unsendable: 1.., .. } => Code::Usage,
        _ => Code::Done,
    })
}

fn open(file: &Path) -> Result<File, Failure> {
    let opened = File::open(file).and_then(|opened| match opened.metadata()?.is_dir() {
        true => Err(io::ErrorKind::IsADirectory.into()),
        false => Ok(opened),
    });
    opened.map_err(|error| Failure::usage(format!("{}: {error}", file.display())))
}

fn one_body(args: &Args) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    match (&args.body, args.named_file()) {
        (Some(text), _) => body.extend_from_slice(text.as_bytes()),
        (None, Some(file)) => {
            let unreadable = |error| Failure::usage(format!("{}: {error}", file.display()));
            body = whole(open(file)?, LARGEST, unreadable)?;
        }
        (None, None) => {
            let is_typed = io::stdin().is_terminal();
            if is_typed {
                aside("reading the body from the terminal; Ctrl-D ends it");
            }
            let read = whole(io::stdin().lock(), LARGEST, Failure::from);
            if is_typed && ending::is_gone(&io::stdin()) {
                return Err(Failure::new(Code::Interrupted, "the terminal is gone; nothing was sent"));
            }
            body = read?;
            // A job whose input is /dev/null has sent nothing on purpose.
            if body.is_empty() && !is_typed && args.file.is_none() {
                return Err(Failure::usage(
                    "nothing was sent: standard input has no body; for an empty message, use --body ''",
                ));
            }
        }
    }
    Ok(body)
}

/// The whole input, unless it is more than any broker accepts.
fn whole(
    reader: impl Read,
    most: u64,
    unreadable: impl FnOnce(io::Error) -> Failure,
) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    reader.take(most.saturating_add(1)).read_to_end(&mut body).map_err(unreadable)?;
    if body.len() as u64 > most {
        return Err(Failure::usage(format!(
            "the body is over {most} bytes, the highest limit of any broker; store it elsewhere and send a \
             reference"
        )));
    }
    Ok(body)
}

/// Connects, after it has compared the set with the settings, as far as this user may see it.
fn connect(settings: &Settings) -> Result<Router, AmqpError> {
    settings.router().check_set(true).connect()
}

fn send_one(message: Message, settings: &Settings) -> Result<Report, Failure> {
    let router = connect(settings)?;
    let started = Instant::now();
    let result = router.publish(message);
    let seconds = started.elapsed().as_secs_f64();
    // The message has its outcome already.
    let _ = router.close(CLOSE);
    match result {
        Ok(receipt) => {
            let message = Some(Sent::new(&receipt, settings));
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
    output: &mut Output,
) -> Result<Report, Failure> {
    let (reader, total): (Box<dyn BufRead + Send>, _) = match args.named_file() {
        // Input that can be read only once is not checked beforehand.
        Some(file) if !file.is_file() => (Box::new(BufReader::new(open(file)?)), None),
        Some(file) => {
            let total = lines::check(BufReader::new(open(file)?), format, template)
                .map_err(|problems| refused(file, problems))?;
            (Box::new(BufReader::new(open(file)?)), Some(total))
        }
        None => (Box::new(BufReader::new(io::stdin())), None),
    };
    // A time that was not in the past when the file was checked may be now.
    let template = Template { checked: total.is_some(), ..template.clone() };
    let router = connect(settings)?;
    let interrupted = ending::on_signal()?;
    let started = Instant::now();
    let bar = output.progress(total, "sending");
    let mut report = Report::default();
    let mut unwritten = None;
    let mut settled = |receipt: Option<&Receipt>| {
        bar.inc(1);
        let handle = receipt.and_then(|receipt| receipt.handle.as_ref()).filter(|_| args.handles);
        let mut print = |handle: &Handle| match output.json {
            true => output.json(&Recallable { handle: handle.to_string() }),
            false => output.line(handle),
        };
        if let Some(Err(error)) = handle.map(|handle| bar.suspend(|| print(handle))) {
            unwritten.get_or_insert(error);
        }
    };
    let mut pipeline = router.pipeline();
    let lines = lines::Ahead::start(reader);
    loop {
        if interrupted.load(Ordering::Relaxed) {
            report.interrupted = true;
            break;
        }
        report.say_problems(total.is_none(), &bar);
        let (number, line) = match lines.next(TICK) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                report.extend(std::iter::from_fn(|| pipeline.try_next()), &mut settled);
                continue;
            }
        };
        match line.and_then(|line| format.message(&line, &template)) {
            Ok(Some(message)) => {
                let size = message.body.len();
                while report.unsettled + size > UNSETTLED
                    && let Some(outcome) = pipeline.next()
                {
                    report.extend([outcome], &mut settled);
                }
                report.unsettled += size;
                let outcome = pipeline.push((number, size), message);
                report.extend(outcome, &mut settled);
            }
            Ok(None) => {}
            Err(problem) => {
                report.unsendable += 1;
                report.problems.add(number, problem);
            }
        }
    }
    report.extend(pipeline, &mut settled);
    report.say_problems(total.is_none(), &bar);
    bar.finish_and_clear();
    if let Some(error) = unwritten {
        return Err(error.into());
    }
    report.seconds = started.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a rate to look at")]
    let confirmed = report.confirmed as f64;
    report.per_second = confirmed / report.seconds.max(1e-9);
    // All messages have their outcomes already.
    let _ = router.close(CLOSE);
    Ok(report)
}

/// A file with bad lines, which are all listed.
fn refused(file: &Path, problems: Problems) -> Failure {
    let bad = counted(problems.count, "bad line");
    let reason = format!("{}: {bad}; nothing was sent\n{problems}", file.display());
    Failure::usage(reason).with_lines(problems.shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_without_an_end_is_not_held() {
        assert_eq!(whole(&b"12345"[..], 5, Failure::from).unwrap(), b"12345");
        assert!(whole(&b"123456"[..], 5, Failure::from).is_err());
        assert!(whole(io::repeat(b'x'), 1 << 20, Failure::from).is_err());
    }
}
