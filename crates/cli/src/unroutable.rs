//! `delayline unroutable`

use clap::Subcommand;
use jiff::Timestamp;
use owo_colors::OwoColorize;

use delayline::{codec::AppKey, topology::Topology};
use delayline_admin::{
    self as admin, ReplayReport, Selection, UnroutableMessage, UnroutableReport, holding::Sifted,
};
use delayline_settings::Settings;

use crate::{
    Code, Failure, Output, args,
    ending::on_signal,
    kept::{Cut, age, changed, code, ending, escaped, follow, sample, shown, total},
    output::{aside, counted},
    table::table,
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline unroutable list
  delayline unroutable show --app billing --count 3
  delayline unroutable replay --app billing
  delayline unroutable purge --reason malformed")]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

impl Args {
    /// Whether it changes nothing.
    pub(super) fn looks(&self) -> bool {
        matches!(self.command, Command::List { .. } | Command::Show { .. })
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Count unroutable messages, by app key and reason
    #[command(after_help = "\
Examples:
  delayline unroutable list
  delayline unroutable list --limit 1000000 --json | jq '.groups'

Nothing is removed. Brokers do not record when a message became unroutable, so the times
come from the messages themselves: the last dead-lettering, or else when the message was
due.")]
    List {
        /// Examine the first N messages
        #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = args::whole::<u64>(0..))]
        limit: u64,
    },
    /// Show single messages: key, headers, properties, body
    #[command(after_help = "\
Examples:
  delayline unroutable show
  delayline unroutable show --reason malformed --count 1
  delayline unroutable show --message-id 4711 --body-bytes 100000 --json")]
    Show {
        #[command(flatten)]
        which: Which,
        /// Show at most N messages
        #[arg(long, value_name = "N", default_value_t = 10, value_parser = args::whole::<usize>(0..))]
        count: usize,
        /// Show the first N bytes of each body
        #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = args::whole::<usize>(0..))]
        body_bytes: usize,
    },
    /// Send messages on again, once an application is bound for them
    #[command(after_help = "\
Examples:
  delayline unroutable replay --app billing
  delayline unroutable replay
  delayline unroutable replay --message-id 4711

Each message is removed only after the broker has confirmed its copy, so none is lost
whatever happens. If the command is killed, messages in flight may arrive twice. Ctrl-C
stops it cleanly; run it again to continue. Malformed messages, and messages for which no
application is bound, stay.")]
    Replay {
        #[command(flatten)]
        which: Which,
        /// Do not ask the management API who is bound; messages that nobody is bound for come
        /// back
        #[arg(long)]
        unchecked: bool,
    },
    /// Discard messages for good
    #[command(after_help = "\
Examples:
  delayline unroutable purge --reason malformed
  delayline unroutable purge --app gone
  delayline unroutable purge --all")]
    Purge {
        #[command(flatten)]
        which: Which,
        /// Discard every message
        #[arg(long, conflicts_with_all = ["app", "reason", "message_id"])]
        all: bool,
    },
}

#[derive(Debug, Clone, clap::Args)]
struct Which {
    /// Only messages for this app key
    #[arg(long, value_name = "KEY", value_parser = args::app)]
    app: Option<AppKey>,
    /// Only messages with this reason: nobody-bound, malformed, not-passed-on, foreign
    #[arg(long, value_name = "REASON")]
    reason: Option<admin::Reason>,
    /// Only messages with this id
    #[arg(long, value_name = "ID")]
    message_id: Option<String>,
}

impl Which {
    fn selection(&self) -> Selection {
        let Self { app, reason, message_id } = self.clone();
        Selection { app, reason, message_id }
    }
}

pub(super) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let topology = Topology::new(settings.topology.clone());
    match &args.command {
        Command::List { limit } => {
            let bar = output.progress(Some(0), "looking");
            let report = admin::unroutable(settings, &topology, *limit, |at| follow(&bar, at));
            bar.finish_and_clear();
            list(&report?, output)
        }
        Command::Show { which, count, body_bytes } => {
            let mut messages = Vec::new();
            let (selection, size) = (which.selection(), (*count, *body_bytes));
            let sifted = admin::unroutable_messages(settings, &topology, &selection, size, |message| {
                messages.push(message);
            })?;
            show(&messages, &sifted, output)
        }
        Command::Replay { which, unchecked } => {
            let stop = on_signal()?;
            let bar = output.progress(Some(0), "replaying");
            let done = admin::replay(settings, &topology, &which.selection(), !unchecked, &stop, |at| {
                follow(&bar, at);
            });
            bar.finish_and_clear();
            match done? {
                Ok(report) => replayed(&report, output),
                Err(refusal) => Err(Failure::new(Code::Problem, refusal)),
            }
        }
        Command::Purge { which, all } => {
            let selection = which.selection();
            if selection.is_everything() && !all {
                return Err(Failure::usage(
                    "say what to discard (--app, --reason, --message-id), or --all for everything",
                ));
            }
            let stop = on_signal()?;
            let bar = output.progress(Some(0), "discarding");
            let sifted = admin::purge(settings, &topology, &selection, &stop, |at| follow(&bar, at));
            bar.finish_and_clear();
            let sifted = sifted?;
            changed(&sifted, "discarded", sifted.discarded, output)
        }
    }
}

fn list(report: &UnroutableReport, output: &mut Output) -> Result<Code, Failure> {
    let cut = Cut::new(report.withheld, report.failure.as_ref());
    let code = cut.code();
    if output.json {
        output.json(report)?;
        return Ok(code);
    }
    let now = Timestamp::now();
    let age = |time: Option<Timestamp>| time.map_or_else(|| "?".into(), |time| age(now, time));
    let rows = report.groups.iter().map(|group| {
        let bound = match group.bound {
            Some(true) => "yes",
            Some(false) => "no",
            None => "",
        };
        vec![
            group.diagnosis.app.clone().unwrap_or_else(|| "-".into()),
            group.diagnosis.reason.to_string(),
            group.group.count.to_string(),
            group.group.unreadable.to_string(),
            age(group.group.oldest),
            age(group.group.newest),
            bound.into(),
            escaped(group.diagnosis.detail.as_deref().unwrap_or_default()),
        ]
    });
    if report.waiting == 0 {
        output.line("nothing is unroutable")?;
    } else {
        output.line(table(
            &[
                "app key",
                "reason",
                ">messages",
                ">unreadable",
                ">oldest",
                ">newest",
                "bound now",
                "what is wrong",
            ],
            rows,
        ))?;
        if let Some(other) = &report.other {
            output.line(format!("and {} of other kinds", counted(other.count, "message")))?;
        }
        output.line(total(report.waiting, report.examined, cut, "unroutable"))?;
    }
    for unseen in &report.unseen {
        output.line(format!("not seen: {unseen}"))?;
    }
    if let Some(failure) = &report.failure {
        aside(format!("{} {failure}", "ended early:".red().bold()));
    }
    Ok(code)
}

fn show(messages: &[UnroutableMessage], sifted: &Sifted, output: &mut Output) -> Result<Code, Failure> {
    for message in messages {
        if output.json {
            output.json(message)?;
            continue;
        }
        let detail = escaped(message.diagnosis.detail.as_deref().unwrap_or_default());
        let head = format!("{} {detail}", message.diagnosis.reason);
        output.line(format!("{} {}", "●".yellow(), head.trim().bold()))?;
        sample(&message.sample, output)?;
    }
    shown(!messages.is_empty(), sifted, output)
}

fn replayed(report: &ReplayReport, output: &mut Output) -> Result<Code, Failure> {
    let code = match code(&report.sifted) {
        Code::Done if !report.unbound.is_empty() => Code::Problem,
        code => code,
    };
    if output.json {
        output.json(report)?;
        return Ok(code);
    }
    let sifted = &report.sifted;
    output.line(format!(
        "{} sent on, {} kept",
        counted(sifted.sent, "message"),
        sifted.waiting - sifted.sent
    ))?;
    for (app, count) in &report.unbound {
        output.line(format!(
            "{} {} for `{app}` stay: nobody is bound for it",
            "!".yellow(),
            counted(*count, "message")
        ))?;
    }
    if report.hopeless > 0 {
        output.line(format!(
            "{} stay: no exchange would route their keys (`delayline unroutable list`)",
            counted(report.hopeless, "message")
        ))?;
    }
    ending(sifted, output)?;
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_ended_early_is_a_failure() {
        let report = |failure: Option<&str>| UnroutableReport {
            waiting: 5,
            examined: 2,
            groups: Vec::new(),
            other: None,
            unseen: Vec::new(),
            withheld: 0,
            failure: failure.map(str::to_owned),
        };
        for json in [false, true] {
            let code = |failure| list(&report(failure), &mut Output::new(json)).unwrap();
            assert_eq!(code(None), Code::Done);
            assert_eq!(code(Some("the connection was lost")), Code::Broker);
        }
    }
}
