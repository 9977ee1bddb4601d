//! Commands on messages that a set keeps: `parked` and `unroutable` are two ways to give them.

mod print;

use indicatif::ProgressBar;

use delayline::{codec::AppKey, topology::Topology};
use delayline_admin::{Kept, Selection, holding::Progress};
use delayline_settings::Settings;

use crate::{Code, Failure, Output, args, ending::on_signal};

/// What to do with kept messages.
pub(super) enum Action {
    List(Limit),
    Show(Selection, Size),
    /// Whether to check that somebody is bound.
    Replay(Selection, bool),
    Discard(Selection),
}

#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct Limit {
    /// Examine the first N messages
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = args::whole::<u64>(0..))]
    limit: u64,
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
        Action::List(Limit { limit }) => {
            let bar = output.progress(Some(0), "looking");
            let report = kept.list(settings, &topology, limit, |at| follow(&bar, at));
            bar.finish_and_clear();
            print::list(kept, &report?, output)
        }
        Action::Show(selection, Size { count, body_bytes }) => {
            let mut messages = Vec::new();
            let size = (count, body_bytes);
            let drained = kept.messages(settings, &topology, &selection, size, |it| messages.push(it))?;
            print::show(kept, &messages, &drained, output)
        }
        Action::Replay(selection, check) => {
            let stop = on_signal()?;
            let bar = output.progress(Some(0), "replaying");
            let done = kept.replay(settings, &topology, &selection, check, &stop, |at| follow(&bar, at));
            bar.finish_and_clear();
            match done? {
                Ok(report) => print::replayed(kept, &report, output),
                Err(refusal) => Err(Failure::new(Code::Problem, refusal)),
            }
        }
        Action::Discard(selection) => {
            let stop = on_signal()?;
            let bar = output.progress(Some(0), "discarding");
            let drained = kept.discard(settings, &topology, &selection, &stop, |at| follow(&bar, at));
            bar.finish_and_clear();
            print::discarded(&drained?, output)
        }
    }
}

pub(super) fn follow(bar: &ProgressBar, at: Progress) {
    bar.set_length(at.total);
    bar.set_position(at.settled);
}
