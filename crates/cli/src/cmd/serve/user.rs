//! `delayline serve user`

use delayline_admin::{self as admin, Applied};
use delayline_core::topology::Topology;
use delayline_settings::Settings;

use delayline_term::{Code, Failure, Output, change};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  DELAYLINE_APP_PASSWORD=... delayline serve user delayline-serve
  delayline serve user delayline-serve --dry-run
  delayline serve user delayline-serve --print     the commands for an administrator
  delayline serve user delayline-serve --pause-blocking

The rights are for all parts of the daemon and for the gateways that exist now; run it again
after `gateway add`. With --pause-blocking they are also for `serve --pause-blocking` and the
applications that are bound now: the user can then copy the messages of every application and
publish to every queue. Run it again after `app add`; --pause-blocking false ends it. The tag `policymaker` lets the daemon unstick queues: give it to no
application, since its holder can drop the messages of every queue.")]
pub(super) struct Args {
    /// The user's name
    #[arg(value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    name: String,
    /// Let the daemon pause applications that block a level, or not with `--pause-blocking false`
    /// [default: as the user has it]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pause_blocking: Option<bool>,
    /// Print rabbitmqctl commands that make the same user, and change nothing
    #[arg(long, conflicts_with = "dry_run")]
    print: bool,
    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,
}

/// Commands that make the daemon's user.
#[derive(serde::Serialize, schemars::JsonSchema)]
pub(crate) struct Commands {
    /// Each with its arguments, quoted for a shell.
    commands: Vec<String>,
}

pub(super) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let topology = Topology::new(settings.topology.clone());
    let Args { name, pause_blocking, print, dry_run } = args;
    if *print {
        let pausing = *pause_blocking == Some(true);
        let commands = admin::daemon_user_commands(settings, &topology, name, pausing)?;
        if output.json {
            output.json(&Commands { commands })?;
        } else {
            commands.iter().try_for_each(|command| output.line(command))?;
        }
        return Ok(Code::Done);
    }
    let who = (name.as_str(), settings.app_password.clone());
    let report = admin::add_daemon_user(settings, &topology, who, *pause_blocking, *dry_run)?;
    let code = if report.outcome == Applied::Conflict { Code::Problem } else { Code::Done };
    if output.json {
        output.json(&report)?;
        return Ok(code);
    }
    let found = (report.outcome, &report.steps[..], &report.conflicts[..]);
    change::made(&format!("user `{name}` of the daemon"), "made", found, output)?;
    Ok(code)
}
