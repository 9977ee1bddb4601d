//! Commands on messages that a set keeps: `parked`, `recalled` and `unroutable` are three ways to
//! give them.

mod print;

pub(super) use print::{escaped as printable_line, sample};

use indicatif::ProgressBar;

use jiff::Timestamp;

use delayline_admin::{Kept, KeptReport, Selection, drain::Progress};
use delayline_core::{
    codec::{AppKey, Delay},
    topology::Topology,
};
use delayline_settings::Settings;

use crate::{Code, Failure, Output, again::Again, args, ending::on_signal, output};

pub(super) use print::Words;

/// What to do with kept messages.
pub(super) enum Action {
    List(Limit),
    Show(Selection, Size),
    /// Whether to check that somebody is bound.
    Replay(Selection, bool),
    /// Whether to count only what would be discarded.
    Discard(Selection, DryRun),
}

#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct DryRun {
    /// Only count what would be discarded
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct Limit {
    /// Examine the first N messages
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = args::whole::<u64>(0..))]
    limit: u64,
    #[command(flatten)]
    pub(super) again: Again,
}

#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct Size {
    /// Show at most N messages
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = args::whole::<usize>(0..))]
    count: usize,
    /// Show the first N bytes of each body
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = args::whole::<usize>(0..))]
    body_bytes: usize,
}

#[derive(Debug, Clone, clap::Args)]
pub(super) struct Select {
    /// Only messages for this application
    #[arg(long, value_name = "KEY", value_parser = args::app)]
    app: Option<AppKey>,
    /// Only messages with this id
    #[arg(long, value_name = "ID")]
    message_id: Option<String>,
}

impl Select {
    pub(super) fn selection(&self) -> Selection {
        let Self { app, message_id } = self.clone();
        Selection { app, message_id, ..Selection::default() }
    }
}

/// A selection of a command that changes something: everything only if `all` says so. `how`
/// names the action and the flags that select.
pub(super) fn deliberate(selection: Selection, all: bool, how: &str) -> Result<Selection, Failure> {
    match selection.is_everything() && !all {
        true => Err(Failure::usage(format!("say what to {how}, or --all for everything"))),
        false => Ok(selection),
    }
}

pub(super) fn run(
    kept: &Kept,
    action: Action,
    settings: &Settings,
    output: &mut Output,
) -> Result<Code, Failure> {
    let topology = Topology::new(settings.topology.clone());
    match action {
        Action::List(limit) => list(std::slice::from_ref(kept), Words::of(kept), limit, settings, output),
        Action::Show(selection, Size { count, body_bytes }) => {
            let mut messages = Vec::new();
            let size = (count, body_bytes);
            let drained = kept.messages(settings, &topology, &selection, size, |it| messages.push(it))?;
            print::show(kept, &messages, &drained, output)
        }
        Action::Replay(selection, check) => {
            let stop = on_signal()?;
            let done = output.following("replaying", |bar| {
                kept.replay(settings, &topology, &selection, check, &stop, |at| follow(bar, at))
            });
            match done? {
                Ok(report) => print::replayed(kept, &report, output),
                Err(refusal) => Err(Failure::new(Code::Problem, refusal)),
            }
        }
        Action::Discard(selection, DryRun { dry_run: true }) => {
            let stop = on_signal()?;
            let (selected, drained) = output.following("counting", |bar| {
                kept.count_selected(settings, &topology, &selection, &stop, |at| follow(bar, at))
            })?;
            print::would_discard(selected, &drained, output)
        }
        Action::Discard(selection, _) => {
            let stop = on_signal()?;
            let drained = output.following("discarding", |bar| {
                kept.discard(settings, &topology, &selection, &stop, |at| follow(bar, at))
            })?;
            print::discarded(&drained, output)
        }
    }
}

/// Lists the messages of these queues in one table.
pub(super) fn list(
    all: &[Kept],
    words: Words,
    Limit { limit, .. }: Limit,
    settings: &Settings,
    output: &mut Output,
) -> Result<Code, Failure> {
    let topology = Topology::new(settings.topology.clone());
    let report = output.following("looking", |bar| {
        all.iter().try_fold(KeptReport::new((0, 0), Vec::new()), |report, kept| {
            let left = limit.saturating_sub(report.examined);
            kept.list(settings, &topology, left, |at| follow(bar, at)).map(|next| report.and(next))
        })
    })?;
    print::list(words, &report, output)
}

/// The time that is so long ago.
pub(super) fn ago(age: Delay) -> Timestamp {
    let age = jiff::SignedDuration::from_secs(age.seconds().into());
    Timestamp::now().saturating_sub(age).unwrap_or(Timestamp::MIN)
}

pub(super) fn follow(bar: &ProgressBar, at: Progress) {
    output::at(bar, at.settled, at.total);
}
