//! `delayline-bench probe`

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;

use delayline_cli::program::{
    Code, Failure, Output, counted, grouped, nobody_reads, on_signal_or_without_reader, table, whole,
};
use delayline_client::router::Stats;
use delayline_core::histogram::Counted;
use delayline_settings::Settings;
use delayline_watch::canary::{Canary, CanaryState, Probe, ProbeFigures, Watched};

/// How often the figures are read.
const TICK: Duration = Duration::from_millis(200);

/// How long to wait for a broker that is gone or accepts nothing.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline-bench probe                  one message through each level, and a report
  delayline-bench probe --horizon 3      only up to 2^3 s: done after 20 s or so
  delayline-bench probe --rounds 10 --json | jq .missing
  delayline-bench probe --forever        until Ctrl-C

Sends small messages of its own through each level up to 2^6 s and through combinations of
levels, to an app key that only it uses. Reports the lateness of each, messages that did not
arrive within a minute, and duplicates. Applications never see them. Exits with 1 if a
message was missing, came twice or was later than --max-late, if none could be sent, or if
the broker was unreachable for a minute.")]
pub(crate) struct Args {
    /// How many times to send each message
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u32>(1..))]
    rounds: u32,
    /// Continue until Ctrl-C
    #[arg(long, conflicts_with = "rounds")]
    forever: bool,
    /// The highest level, 0 to 9 [default: canary_horizon, or 6] [env: DELAYLINE_CANARY_HORIZON]
    #[arg(long, value_name = "LEVEL", value_parser = whole::<u8>(0..=9))]
    horizon: Option<u8>,
    /// How late a message may be
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = late)]
    max_late: Duration,
}

fn late(text: &str) -> Result<Duration, String> {
    delayline_core::duration::parse(text).map_err(|_| format!("`{text}` is not a duration, such as `5s`"))
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct Report {
    sent: u64,
    arrived: u64,
    missing: u64,
    twice: u64,
    worst_late_seconds: Option<f64>,
    probes: Vec<Row>,
    /// Why the last message could not be sent, if it could not.
    problem: Option<String>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
struct Row {
    levels: String,
    delay_seconds: u32,
    sent: u64,
    arrived: u64,
    missing: u64,
    twice: u64,
    mean_late_seconds: Option<f64>,
    last_late_seconds: Option<f64>,
    worst_late_seconds: Option<f64>,
}

pub(crate) fn run(args: &Args, mut settings: Settings, output: &mut Output) -> Result<Code, Failure> {
    if let Some(horizon) = args.horizon {
        settings.canary.horizon = horizon;
    }
    // A short interval, so that the command ends soon after the last arrival.
    settings.canary.interval = Duration::from_secs(1);
    let watched = Arc::new(Watched::default());
    let mut canary = Canary::new(settings, Arc::new(Stats::default()), Arc::clone(&watched));
    let probes = canary.plan().probes().to_vec();
    let total = (!args.forever).then(|| u64::from(args.rounds) * probes.len() as u64);
    if !args.forever {
        canary = canary.with_rounds(args.rounds);
    }
    let (stop, interrupted) = (Arc::new(AtomicBool::new(false)), on_signal_or_without_reader()?);
    let bar = output.progress(total, "arrived");
    let running = {
        let stop = Arc::clone(&stop);
        thread::spawn(move || canary.run(&stop))
    };
    let mut was_running = false;
    let mut paused = None;
    let mut down = Down::default();
    while !interrupted.load(Ordering::Relaxed) && !running.is_finished() {
        let figures = watched.figures();
        bar.set_position(figures.total(|probe| probe.arrived));
        match watched.state() {
            CanaryState::Running(_) => was_running = true,
            // A message that was never sent will not arrive by waiting.
            CanaryState::Paused(reason) if !was_running && reason != Canary::UNTRIED => {
                paused = Some(reason);
                break;
            }
            CanaryState::Paused(_) | CanaryState::Off => {}
        }
        // With --forever, it goes on through that, too.
        if was_running && down.for_long(&watched.state(), Instant::now()) && !args.forever {
            break;
        }
        let on_the_way = figures.expected as u64 - figures.total(|probe| probe.missing);
        if total.is_some_and(|total| watched.handed_over() >= total) && on_the_way == 0 {
            break;
        }
        thread::sleep(TICK);
    }
    stop.store(true, Ordering::Relaxed);
    let _ = running.join();
    bar.finish_and_clear();
    if let Some(reason) = paused {
        return Err(Failure::new(Code::Broker, reason));
    }
    if interrupted.load(Ordering::Relaxed) && !was_running {
        // As when it runs: a reader that is gone is no failure.
        return Ok(if nobody_reads() { Code::Done } else { Code::Interrupted });
    }
    let report = Report::new(&probes, &watched);
    output.report(&report, Report::show)?;
    let interrupted = interrupted.load(Ordering::Relaxed);
    Ok(if report.is_bad(args.max_late, !args.forever && !interrupted) {
        Code::Problem
    } else if interrupted && !args.forever {
        Code::Interrupted
    } else {
        Code::Done
    })
}

/// Since when nothing could be sent.
#[derive(Debug, Default)]
struct Down(Option<Instant>);

impl Down {
    fn for_long(&mut self, state: &CanaryState, now: Instant) -> bool {
        match state {
            CanaryState::Paused(_) => now.saturating_duration_since(*self.0.get_or_insert(now)) >= PATIENCE,
            CanaryState::Running(_) | CanaryState::Off => {
                self.0 = None;
                false
            }
        }
    }
}

impl Report {
    fn new(probes: &[Probe], watched: &Watched) -> Self {
        let (figures, lateness, last, worst) =
            (watched.figures(), watched.lateness(), watched.last(), watched.worst());
        let probes: Vec<Row> = probes
            .iter()
            .map(|probe| {
                let ProbeFigures { sent, arrived, missing, twice, .. } =
                    figures.probes.get(probe).copied().unwrap_or_default();
                Row {
                    levels: probe.to_string(),
                    delay_seconds: probe.delay().seconds(),
                    sent,
                    arrived,
                    missing,
                    twice,
                    mean_late_seconds: lateness.get(probe).and_then(mean),
                    last_late_seconds: last.get(probe).map(Duration::as_secs_f64),
                    worst_late_seconds: worst.get(probe).map(Duration::as_secs_f64),
                }
            })
            .collect();
        let sum = |of: fn(&Row) -> u64| probes.iter().map(of).sum();
        Self {
            sent: sum(|row| row.sent),
            arrived: sum(|row| row.arrived),
            missing: sum(|row| row.missing),
            twice: sum(|row| row.twice),
            worst_late_seconds: worst.values().max().map(Duration::as_secs_f64),
            probes,
            problem: match watched.state() {
                CanaryState::Paused(reason) => Some(reason),
                CanaryState::Running(_) | CanaryState::Off => watched.refusal(),
            },
        }
    }

    /// Whether a delay was not kept, or that is unknown. `ended` is whether every message
    /// sent should have arrived.
    fn is_bad(&self, max_late: Duration, ended: bool) -> bool {
        let late = self.worst_late_seconds.is_some_and(|late| late > max_late.as_secs_f64());
        let unknown = self.problem.is_some() || (ended && (self.arrived == 0 || self.arrived < self.sent));
        self.missing + self.twice > 0 || late || unknown
    }

    fn show(&self, output: &mut Output) -> Result<(), Failure> {
        let ms =
            |late: Option<f64>| late.map_or_else(String::new, |late| format!("{:.0} ms", late * 1_000.0));
        let rows = self.probes.iter().map(|row| {
            vec![
                row.levels.clone(),
                format!("{} s", grouped(row.delay_seconds.into())),
                grouped(row.sent),
                grouped(row.arrived),
                grouped(row.missing),
                grouped(row.twice),
                ms(row.mean_late_seconds),
                ms(row.worst_late_seconds),
            ]
        });
        let head = ["levels", ">delay", ">sent", ">arrived", ">missing", ">twice", ">late, mean", ">worst"];
        output.line(table(&head, rows))?;
        let under_way = self.sent.saturating_sub(self.arrived + self.missing);
        let mut line = format!(
            "{}, {} missing, {} twice",
            counted(self.arrived, "arrival"),
            grouped(self.missing),
            grouped(self.twice)
        );
        if under_way > 0 {
            line = format!("{line}, {} still on the way", grouped(under_way));
        }
        output.line(line)?;
        if let Some(problem) = &self.problem {
            output.line(format!("it could not go on: {problem}"))?;
        } else if self.arrived == 0 {
            output.line("nothing was measured: no message was published in time; run it again")?;
        }
        Ok(())
    }
}

fn mean(counted: &Counted) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "a number of messages")]
    (counted.count > 0).then(|| counted.seconds / counted.count as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_came_in_time_is_well() {
        let report = |sent, arrived| Report {
            sent,
            arrived,
            missing: 0,
            twice: 0,
            worst_late_seconds: (arrived > 0).then_some(1.5),
            probes: Vec::new(),
            problem: None,
        };
        let (strict, patient) = (Duration::from_secs(1), Duration::from_secs(5));
        assert!(!report(3, 3).is_bad(patient, true));
        assert!(report(3, 3).is_bad(strict, true));
        assert!(report(0, 0).is_bad(patient, true), "nothing is known");
        assert!(report(3, 2).is_bad(patient, true));
        assert!(!report(3, 2).is_bad(patient, false), "it was stopped before");
        assert!(Report { missing: 1, ..report(3, 2) }.is_bad(patient, false));
        assert!(Report { twice: 1, ..report(3, 3) }.is_bad(patient, true));
        assert!(Report { problem: Some("403".into()), ..report(3, 3) }.is_bad(patient, false));
    }

    #[test]
    fn a_broker_that_is_gone_is_not_waited_for_without_end() {
        let (mut down, start) = (Down::default(), Instant::now());
        let mut long =
            |state: CanaryState, seconds| down.for_long(&state, start + Duration::from_secs(seconds));
        let gone = || CanaryState::Paused("gone".into());
        assert!(!long(gone(), 0) && !long(gone(), 59) && long(gone(), 60));
        assert!(
            !long(CanaryState::Running(0), 61)
                && !long(gone(), 62)
                && !long(gone(), 121)
                && long(gone(), 122)
        );
    }
}
