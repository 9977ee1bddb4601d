//! `--watch`: the same look again and again.

use std::{
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use owo_colors::OwoColorize;

use crate::{
    Code, Failure, Output, args,
    ending::{self, Looking},
    time::clock,
};

/// How often an end is looked for between two looks.
const TICK: Duration = Duration::from_millis(100);

/// The flag of commands that people watch.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(super) struct Again {
    /// Look again every so many seconds, until Ctrl-C
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        default_missing_value = "2",
        value_parser = args::whole::<u32>(1..=86_400)
    )]
    watch: Option<u32>,
}

impl Again {
    /// The pause between two looks; `None` to look once.
    pub(super) fn every(self) -> Option<Duration> {
        self.watch.map(|seconds| Duration::from_secs(seconds.into()))
    }
}

/// Looks until somebody ends it, which is its only end: what is wrong now may be right at the
/// next look. Only wrong usage stays wrong.
pub(super) fn run(
    every: Duration,
    output: &mut Output,
    mut look: impl FnMut(&mut Output) -> Result<Code, Failure>,
) -> Result<Code, Failure> {
    let stop = ending::on_signal_or_without_reader()?;
    let _looking = Looking::begin(output.json, None)?;
    while !stop.load(Ordering::Relaxed) {
        let next = Instant::now() + every;
        if !output.json {
            let seconds = every.as_secs();
            let head = format!("{}, every {seconds} s; Ctrl-C ends it", clock(Timestamp::now()));
            output.next_screen(head.dimmed());
        }
        match look(output) {
            Ok(_) => {}
            Err(failure) if failure.is_for_good() => return Err(failure),
            Err(failure) => failure.say(output.json),
        }
        while Instant::now() < next && !stop.load(Ordering::Relaxed) {
            thread::sleep(TICK.min(next.saturating_duration_since(Instant::now())));
        }
    }
    Ok(Code::Done)
}
