//! `delayline app`

mod add;
mod handout;
mod print;
mod programs;
pub(crate) mod retries;
pub(crate) mod snippets;

use std::time::Duration;

use clap::Subcommand;

use delayline_admin::{self as admin, AppQueue, AppSpec, AppUser, Delivery, Hold, RemoveOptions};
use delayline_amqp::broker::Secret;
use delayline_core::{
    codec::{AppKey, Delay},
    topology::{JournalSettings, RecallSettings, Topology},
};
use delayline_settings::Settings;

use crate::{again::Again, cmd::held::follow, values};
use delayline_term::{Code, Failure, Output, consent::Consent, ending, output::aside};

pub(crate) use handout::address;
pub(crate) use print::landed;

/// How long `app resume` waits until the application's queue has accepted all messages.
const PATIENCE: Duration = Duration::from_secs(60);
#[cfg(test)]
pub(crate) use {
    handout::Shown,
    print::{Added, Checked},
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline app add billing                        queue, binding, permissions of user `billing`
  delayline app list
  delayline app show billing --for python          the data for its team, and programs
  delayline app check billing --app-password-file pw
  delayline app remove billing")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

impl Args {
    /// Whether it changes nothing.
    pub(crate) fn looks(&self) -> bool {
        matches!(self.command, Command::List(_) | Command::Show(_) | Command::Check(_))
    }

    /// Whether to look again and again.
    pub(crate) fn again(&self) -> Again {
        match &self.command {
            Command::List(again) => *again,
            _ => Again::default(),
        }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Register an application: its queue, its binding, its user's permissions
    #[command(after_help = "\
Examples:
  delayline app add billing --dry-run
  delayline app add billing --user svc-billing --queue billing-in --existing
  delayline app add billing --may-publish orders --max-delay 30d --retry
  delayline app add billing --landing
  delayline app add billing --recall --keep-recalled 90d
  delayline app add billing --recall --journal 90d --journal-bytes 10GB
  delayline app add billing --to-exchange billing.events --to-key invoice.due --queue invoices
  delayline app add shop --publish-only --may-publish billing,orders --may-recall mail
  delayline app add billing --print terraform > billing.tf.json

  delayline app add billing --retry --native-retry 1s..30s
  delayline app add billing --queue billing-in --retry --for python

The user gets permission to publish the application's own key and to consume its queue,
and nothing else. A user that does not exist is created with the password in
DELAYLINE_APP_PASSWORD or --app-password-file. Adding again changes nothing. If an object
conflicts, the command names it, changes nothing and exits with 1.")]
    Add(Box<add::Args>),
    /// Remove an application: binding, permissions, landing queue, queue
    #[command(after_help = "\
Examples:
  delayline app remove billing --dry-run
  delayline app remove billing --user svc-billing
  delayline app remove billing --keep-queue --no-user
  delayline app remove billing --delete-user --force --yes
  delayline app remove billing --recall

Refuses, with exit code 1, while its queues have messages or consumers. A queue that
`app add` did not declare is left alone. The binding is removed first. 12 seconds later the
messages are counted again; if there are any, the binding is restored. Messages that are
still delayed become unroutable; with --recall, only messages with an id do. Ctrl-C and
SIGTERM take effect after the removal is complete.")]
    Remove(Remove),
    /// Unbind an application; its due messages wait until it is resumed
    #[command(after_help = "\
Examples:
  delayline app pause billing --dry-run
  delayline app pause billing
  delayline app pause billing --until-accepted

Its due messages wait in a queue of their own, `delay.paused.billing`, in front of the
application's queue, which other applications do not notice. No message is lost, and none is
delivered twice. Use it before you delete or replace the application's queue. With
--until-accepted, each message is passed on as soon as the queue accepts it.")]
    Pause(Pause),
    /// Bind a paused application again, and deliver the messages that waited
    #[command(after_help = "\
Examples:
  delayline app resume billing --dry-run
  delayline app resume billing

New messages can arrive before those that waited. Exits with 1 if the application's queue does
not accept all of them within a minute; they are delivered as soon as it does, and the same
command then removes the empty queue.")]
    Resume(Resume),
    /// Discard an application's messages that wait in the levels
    #[command(after_help = "\
Examples:
  delayline app discard billing --dry-run
  delayline app discard billing
  delayline app discard billing --yes           without a question, for scripts

Use it after a fault in a publisher, for example when the header CC or BCC multiplies its
messages. Remove its permission to publish first. The command reads every level, from the
highest to the lowest, and repeats until no message is left. Other applications' messages
are put back, and may be late by the duration of the command. The user needs read permission
on the levels, like the user who installs the set. On RabbitMQ 4 it also needs the tag
`policymaker`: the command sets a policy, and removes it at the end.")]
    Discard(Discard),
    /// List applications: binding, queue, consumers, users
    #[command(after_help = "\
Examples:
  delayline app list
  delayline app list -o wide                    with the patterns of bindings and permissions
  delayline app list --json | jq '.apps[] | select(.consumers == 0) | .app'

To see permissions, log in as a user with the tag `administrator`.")]
    List(Again),
    /// Show an application's address, queue, retries and programs, for its team
    Show(handout::Args),
    /// Test an application's permissions, by using them as its user
    #[command(after_help = "\
Examples:
  delayline app check billing --app-password-file pw
  DELAYLINE_APP_PASSWORD=… delayline app check billing --user svc-billing
  delayline app check billing --may-publish orders --max-delay 30d --json

Give the same flags as to `app add`; without --queue, it checks the bound queue. Nothing is
published, bound, consumed or declared: each attempt contains an error that the broker
reports only after it has checked the permission. Exits with 1 if the user has too many or
too few permissions.")]
    Check(Check),
}

#[derive(Debug, clap::Args)]
struct Who {
    /// The application
    #[arg(value_name = "APP", value_parser = values::app)]
    app: AppKey,
    /// Its RabbitMQ user [default: the app key]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// The queue that it consumes [default: the app key]
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
}

impl Who {
    fn user_name(&self) -> String {
        self.user.clone().unwrap_or_else(|| self.app.to_string())
    }

    fn queue_name(&self) -> String {
        self.queue.clone().unwrap_or_else(|| self.app.to_string())
    }
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "What its user may do")]
struct Powers {
    /// Also publish the keys of these applications
    #[arg(long, value_name = "APP,…", value_delimiter = ',', value_parser = values::app)]
    may_publish: Vec<AppKey>,
    /// The longest delay it may publish
    #[arg(long, value_name = "DELAY", value_parser = values::delay)]
    max_delay: Option<Delay>,
    /// Bind its queue itself, under its own key; see docs/explanation/security.md
    #[arg(hide_short_help = true, long)]
    may_bind: bool,
    /// Publish to the retry and parked exchanges, under its own key
    #[arg(hide_short_help = true, long)]
    may_retry: bool,
    /// Manage its own schedules, named APP/NAME
    #[arg(long, conflicts_with = "publish_only")]
    schedules: bool,
    /// Also publish messages of these applications with an id, and recall any of them
    #[arg(hide_short_help = true, long, value_name = "APP,…", value_delimiter = ',', value_parser = values::app)]
    may_recall: Vec<AppKey>,
    /// It only publishes and consumes nothing
    #[arg(long)]
    publish_only: bool,
}

impl Powers {
    fn user(&self, name: String, password: Option<Secret>) -> AppUser {
        AppUser {
            name,
            password,
            may_publish: self.may_publish.clone(),
            max_delay: self.max_delay,
            may_bind: self.may_bind,
            may_retry: self.may_retry,
            may_schedule: self.schedules,
            may_recall: self.may_recall.clone(),
        }
    }
}

#[derive(Debug, clap::Args)]
struct Remove {
    #[command(flatten)]
    who: Who,
    /// Remove only the objects for recalls; refuses while recalls are pending or recalled messages are
    /// kept
    #[arg(long, conflicts_with_all = ["user", "delete_user", "queue", "keep_queue"])]
    recall: bool,
    /// Leave users and permissions alone
    #[arg(long, conflicts_with_all = ["user", "delete_user"])]
    no_user: bool,
    /// Delete the user itself, in all vhosts
    #[arg(long)]
    delete_user: bool,
    /// Keep its queue and the messages in it
    #[arg(long)]
    keep_queue: bool,
    /// Remove the queues even if they have consumers or messages; the messages are lost
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    consent: Consent,
}

#[derive(Debug, clap::Args)]
struct Pause {
    /// The application
    #[arg(value_name = "APP", value_parser = values::app)]
    app: AppKey,
    /// Pass its messages on as soon as its queue accepts them
    #[arg(long)]
    until_accepted: bool,
    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, clap::Args)]
struct Resume {
    /// The application
    #[arg(value_name = "APP", value_parser = values::app)]
    app: AppKey,
    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, clap::Args)]
struct Discard {
    /// The application
    #[arg(value_name = "APP", value_parser = values::app)]
    app: AppKey,
    #[command(flatten)]
    consent: Consent,
}

#[derive(Debug, clap::Args)]
struct Check {
    #[command(flatten)]
    who: Who,
    /// Its messages can be recalled
    #[arg(long, conflicts_with = "publish_only")]
    recall: bool,
    /// It has a journal
    #[arg(long, requires = "recall")]
    journal: bool,
    #[command(flatten)]
    powers: Powers,
}

pub(crate) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let topology = Topology::new(settings.topology.clone());
    match &args.command {
        Command::Add(args) => add::run(args, settings, &topology, output),
        Command::Remove(args) => {
            let app = &args.who.app;
            let stop = ending::on_signal()?;
            let remove = |dry_run| {
                let options = RemoveOptions {
                    user: (!args.no_user && !args.recall).then(|| args.who.user_name()),
                    only_recall: args.recall,
                    delete_user: args.delete_user,
                    queue: Some(args.who.queue_name()),
                    keep_queue: args.keep_queue,
                    force: args.force,
                    dry_run,
                };
                admin::remove_app(settings, &topology, app, &options, &stop)
            };
            let plan = |output: &mut Output| print::removed(settings, app, &remove(true)?, output);
            if let Some(code) = args.consent.ask(output, plan)? {
                return Ok(code);
            }
            print::removed(settings, app, &output.spinning("removing", || remove(false))?, output)
        }
        Command::Pause(Pause { app, until_accepted, dry_run }) => {
            let hold = if *until_accepted { Hold::UntilAccepted } else { Hold::UntilResumed };
            let pause = || admin::pause_app(settings, &topology, app, hold, *dry_run);
            print::paused(settings, &output.spinning("pausing", pause)?, output)
        }
        Command::Resume(Resume { app, dry_run }) => {
            let stop = ending::on_signal()?;
            let resume = || admin::resume_app(settings, &topology, app, PATIENCE, *dry_run, &stop);
            print::resumed(&output.spinning("resuming", resume)?, output)
        }
        Command::Discard(args) => {
            let discard = |dry_run, output: &mut Output| {
                let stop = ending::on_signal()?;
                let report = output.following("looking through the levels", |bar| {
                    admin::discard_app(settings, &topology, &args.app, dry_run, &stop, |at| follow(bar, at))
                })?;
                print::discarded(&report, dry_run, output)
            };
            match args.consent.ask(output, |output| discard(true, output))? {
                Some(code) => Ok(code),
                None => discard(false, output),
            }
        }
        Command::List(_) => print::list(settings, &admin::list_apps(settings, &topology)?, output),
        Command::Show(args) => handout::run(args, settings, &topology, output),
        Command::Check(args) => check(args, settings, &topology, output),
    }
}

fn check(
    args: &Check,
    settings: &Settings,
    topology: &Topology,
    output: &mut Output,
) -> Result<Code, Failure> {
    let Some(password) = &settings.app_password else {
        return Err(Failure::usage(
            "the check logs in as the user and needs its password: set DELAYLINE_APP_PASSWORD or \
             --app-password-file",
        ));
    };
    let user = args.powers.user(args.who.user_name(), None);
    let delivery = match args.powers.publish_only {
        true => Delivery::Nothing,
        false => {
            let bound = || admin::queue_of_app(settings, topology, &args.who.app);
            let queue = args.who.queue.clone().or_else(bound).unwrap_or_else(|| args.who.queue_name());
            Delivery::Direct(AppQueue::new(queue))
        }
    };
    let mut spec = AppSpec::new(args.who.app.clone(), delivery);
    spec.recall = args.recall.then(|| match args.journal {
        true => RecallSettings::default().with_journal(JournalSettings::default()),
        false => RecallSettings::default(),
    });
    spec.check(topology).map_err(Failure::usage)?;
    let check = admin::check_app(settings, topology, &spec, &user, password)?;
    let code = print::checked(&check, output)?;
    // Only the management API tells.
    let offered = || admin::recallable_apps(settings, topology).is_ok_and(|apps| apps.contains(&spec.app));
    if !check.passed() && !args.recall && offered() {
        aside(format!(
            "messages of `{}` can be recalled here: give --recall, and --journal if it has one, to check for \
             that",
            spec.app
        ));
    }
    Ok(code)
}
