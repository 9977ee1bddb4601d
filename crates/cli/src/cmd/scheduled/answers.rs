//! Recalling messages one by one, and the results.

use std::{
    collections::BTreeMap,
    io,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use jiff::Timestamp;
use owo_colors::OwoColorize;
use serde::Serialize;

use delayline_admin::{self as admin, AdminError, Kept, drain::DrainError};
use delayline_amqp::Session;
use delayline_client::recall::{Answer, MARGIN, RecallError, Recaller};
use delayline_core::{
    codec::AppKey,
    message::Handle,
    topology::{Endpoint, Topology},
};
use delayline_settings::Settings;

use delayline_term::{Code, Failure, Output, ending::on_signal, output::aside, output::grouped, time::date};

/// How long after it was due a message is looked for, at most, and how often.
const LATE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How often to look for a message with an unknown due time: each look reads the recalled
/// messages.
const LOOK_SELDOM: Duration = Duration::from_secs(5);

/// The action for all handles.
pub(crate) struct All<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) topology: &'a Topology,
    pub(crate) undo: bool,
    pub(crate) wait: bool,
}

/// The result for a handle.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct Line {
    handle: String,
    due: Option<Timestamp>,
    #[schemars(extend("enum" = ["recalled", "undone", "too-late", "uncertain", "failed"]))]
    answer: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The results so far.
#[derive(Default)]
struct Tally {
    done: u64,
    open: u64,
    failed: u64,
}

impl All<'_> {
    /// Recalls each of the messages, or undoes that, and prints the results. `left` more messages are
    /// not changed.
    pub(crate) fn change(
        &self,
        handles: Vec<Handle>,
        left: u64,
        output: &mut Output,
    ) -> Result<Code, Failure> {
        let stop = on_signal()?;
        let mut harmless = BTreeMap::new();
        if self.undo {
            // To remove a binding of an exchange that does not exist is no error.
            let entry = self.topology.names().entry();
            if !Session::open(&self.settings.broker)?.exchange_exists(&entry)? {
                return Err(AdminError::from(DrainError::Missing { what: Endpoint::Exchange(entry) }).into());
            }
        }
        let recaller = Recaller::connect(self.settings.target())?;
        let mut tally = Tally { open: left, ..Tally::default() };
        let all = handles.len();
        let mut interrupted = false;
        for (tried, handle) in handles.into_iter().enumerate() {
            if stop.load(Ordering::Relaxed) {
                return Ok(Code::Interrupted);
            }
            let answer = match self.answer(&recaller, &handle, &mut harmless, &stop) {
                // It may be the next message's turn still: this one has no recall, or is not ours.
                Err(error @ (RecallError::NotOffered { .. } | RecallError::NotPermitted { .. })) => {
                    Err(error)
                }
                Err(error) => return Err(broken(&error, all - tried)),
                Ok((answer, looked)) => {
                    // It would have looked longer.
                    interrupted = looked && answer != Answer::InTime && stop.load(Ordering::Relaxed);
                    Ok(answer)
                }
            };
            tally.note(&answer);
            self.show(&handle, &answer, output)?;
        }
        let code = match (interrupted, tally.failed, tally.open) {
            (true, ..) => Code::Interrupted,
            (_, 0, 0) => Code::Done,
            (_, 0, _) => Code::Problem,
            _ => Code::Broker,
        };
        if self.undo && tally.open > left {
            let replay = self.settings.command(&["held", "replay", "--kind", "recalled", "--app", "APP"]);
            aside(format!(
                "If a message was due already and its recall was in time, it is among the recalled \
                 messages. `{replay}` delivers it."
            ));
        }
        let not = tally.open + tally.failed;
        if !output.json && !interrupted && tally.done + not > 1 {
            let what = if self.undo { "undone" } else { "recalled" };
            output.line(format!("{} {what}, {} not or not certainly", grouped(tally.done), grouped(not)))?;
        }
        Ok(code)
    }

    /// The result, and whether the message was looked for.
    fn answer(
        &self,
        recaller: &Recaller,
        handle: &Handle,
        harmless: &mut BTreeMap<AppKey, bool>,
        stop: &AtomicBool,
    ) -> Result<(Answer, bool), RecallError> {
        if self.undo {
            return Ok((recaller.undo(handle)?, false));
        }
        let answer = recaller.recall(handle)?;
        let looks = self.wait
            && answer != Answer::InTime
            && *harmless.entry(handle.app().clone()).or_insert_with(|| self.is_harmless(handle.app()));
        let answer = match looks && self.is_aside(recaller, handle, stop)? {
            true => Answer::InTime,
            false => self.doubted(answer, handle),
        };
        Ok((answer, looks))
    }

    /// Whether looking for a message among the recalled messages removes none.
    fn is_harmless(&self, app: &AppKey) -> bool {
        match Kept::Recalled(app.clone()).check(self.settings, self.topology) {
            Err(
                error @ AdminError::Drain(DrainError::DeliveryLimit { .. } | DrainError::UnknownLimit { .. }),
            ) => {
                aside(format!("cannot find out where messages of `{app}` went: {error}"));
                false
            }
            // Other problems are reported by looking.
            _ => true,
        }
    }

    /// An earlier run, whose answer was lost perhaps, may have been in time, as far as that can be
    /// seen.
    fn doubted(&self, answer: Answer, handle: &Handle) -> Answer {
        let bound = || admin::is_recall_bound(self.settings, self.topology, handle).unwrap_or(false);
        match answer {
            Answer::TooLate if bound() => Answer::Uncertain,
            answer => answer,
        }
    }

    /// Whether a message is among the recalled messages once it is due, or when a signal ends us. A
    /// message with an unknown due time is due after its delay, counted from now, at the latest.
    fn is_aside(&self, recaller: &Recaller, handle: &Handle, stop: &AtomicBool) -> Result<bool, RecallError> {
        let left =
            |until: Timestamp| Duration::try_from(until.duration_since(Timestamp::now())).unwrap_or_default();
        let delay = handle.routing_key().delay.duration(self.topology.settings().unit.duration());
        let latest = Timestamp::now().saturating_add(delay).unwrap_or(Timestamp::MAX);
        let (due, every) = match handle.due() {
            Some(due) => (due.min(latest), LOOK_EVERY),
            None => (latest, LOOK_SELDOM),
        };
        while handle.due().is_some() && !left(due).is_zero() && !stop.load(Ordering::Relaxed) {
            thread::sleep(left(due).min(LOOK_EVERY));
        }
        let end = due.saturating_add(MARGIN + LATE).unwrap_or(Timestamp::MAX);
        loop {
            if recaller.is_recalled(handle)? {
                return Ok(true);
            }
            let next = Timestamp::now().saturating_add(every).unwrap_or(Timestamp::MAX);
            while !left(next).is_zero() {
                if left(end).is_zero() || stop.load(Ordering::Relaxed) {
                    return Ok(false);
                }
                thread::sleep(left(next).min(LOOK_EVERY));
            }
        }
    }

    fn show(
        &self,
        handle: &Handle,
        answer: &Result<Answer, RecallError>,
        output: &mut Output,
    ) -> io::Result<()> {
        let (word, shown) = match (answer, self.undo) {
            (Err(_), _) => ("failed", "failed   ".red().to_string()),
            (Ok(Answer::InTime), false) => ("recalled", "recalled ".green().to_string()),
            (Ok(Answer::InTime), true) => ("undone", "undone   ".green().to_string()),
            (Ok(Answer::TooLate), _) => ("too-late", "too late ".red().to_string()),
            (Ok(_), _) => ("uncertain", "uncertain".yellow().to_string()),
        };
        let error = answer.as_ref().err().map(ToString::to_string);
        let key = handle.routing_key().encode();
        if output.json {
            return output.json(&Line { handle: key, due: handle.due(), answer: word, error });
        }
        let due = handle.due().map_or_else(|| "unknown".into(), date);
        let more = error.map_or_else(|| format!(" (due {due})"), |error| format!(": {error}"));
        output.line(format!("{shown} {key}{more}"))
    }
}

impl Tally {
    fn note(&mut self, answer: &Result<Answer, RecallError>) {
        match answer {
            Ok(Answer::InTime) => self.done += 1,
            Ok(_) => self.open += 1,
            Err(_) => self.failed += 1,
        }
    }
}

/// The connection is lost, or the broker answers nothing.
fn broken(error: &RecallError, left: usize) -> Failure {
    match left {
        1 => Failure::new(Code::Broker, error),
        left => Failure::new(
            Code::Broker,
            format!("{error}; {} handles failed or are uncertain: recall them again", grouped(left as u64)),
        ),
    }
}
