//! `--watch`: the same look again and again.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use owo_colors::OwoColorize;

use delayline_core::{backoff::wait, codec::Delay};

use crate::values;
use delayline_term::{Code, Failure, Output, ending, looking::Looking, text::span, time::clock};

/// The flag of commands that people watch.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(crate) struct Again {
    /// Look again after each pause, until Ctrl-C
    #[arg(
        long,
        value_name = "DURATION",
        num_args = 0..=1,
        default_missing_value = "2s",
        value_parser = values::pause
    )]
    watch: Option<Delay>,
}

impl Again {
    /// The pause between two looks; `None` to look once.
    pub(crate) fn every(self) -> Option<Duration> {
        self.watch.map(|pause| Duration::from_secs(pause.seconds().into()))
    }
}

/// Looks again and again until a signal ends it: a problem may be gone at the next look. Only
/// wrong usage ends it at once.
pub(crate) fn run(
    every: Duration,
    output: &mut Output,
    mut look: impl FnMut(&mut Output) -> Result<Code, Failure>,
) -> Result<Code, Failure> {
    let stop = ending::on_signal_or_without_reader()?;
    let _looking = Looking::begin(output.json, None)?;
    while !stop.load(Ordering::Relaxed) {
        let next = Instant::now() + every;
        if !output.json {
            let every = span(every.as_secs() * 1_000);
            let head = format!("{}, every {every}; Ctrl-C ends it", clock(Timestamp::now()));
            output.next_screen(head.dimmed());
        }
        match look(output) {
            Ok(_) => {}
            Err(failure) if failure.is_for_good() => return Err(failure),
            Err(failure) => failure.say(output.json),
        }
        wait(&stop, next.saturating_duration_since(Instant::now()));
    }
    Ok(Code::Done)
}
