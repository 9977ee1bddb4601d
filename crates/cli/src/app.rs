//! `delayline app`

use std::num::NonZeroU32;

use clap::Subcommand;

use delayline_admin::{
    self as admin, AppQueue, AppRequest, AppRequestError, AppSpec, AppUser, ByteSize, Delivery, Export,
    RemoveOptions,
};
use delayline_amqp::broker::Secret;
use delayline_core::{
    codec::{AppKey, Delay},
    topology::{JournalSettings, NativeRetry, RecallSettings, Topology},
};
use delayline_settings::Settings;

use crate::{
    Code, Failure, Output,
    again::Again,
    app_programs::{self, Handout, Wanted},
    app_show, args, ending, export,
    kept::follow,
    output::aside,
    programs::Names,
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline app add billing                        queue, binding, permissions of user `billing`
  delayline app list
  delayline app show billing --for python          what its team needs, and programs
  delayline app check billing --app-password-file pw
  delayline app remove billing")]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

impl Args {
    /// Whether it changes nothing.
    pub(super) fn looks(&self) -> bool {
        matches!(self.command, Command::List(_) | Command::Show(_) | Command::Check(_))
    }

    /// Whether to look again and again.
    pub(super) fn again(&self) -> Again {
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
  delayline app add billing --retry --native-retry 1s..30s
  delayline app add billing --queue billing-in --retry --for python
  delayline app add billing --landing
  delayline app add billing --recall --keep-recalled 90d
  delayline app add billing --recall --journal 90d --journal-bytes 10GB
  delayline app add billing --to-exchange billing.events --to-key invoice.due --queue invoices
  delayline app add shop --publish-only --may-publish billing,orders --may-recall mail
  delayline app add billing --print terraform > billing.tf.json

The user gets permission to publish the application's own key and to consume its queue,
and nothing else. A user that does not exist is created with the password in
DELAYLINE_APP_PASSWORD or --app-password-file. Adding again changes nothing. If something
else is in the way, the command names it, changes nothing and exits with 1.")]
    Add(Box<Add>),
    /// Remove an application: binding, permissions, landing queue, queue
    #[command(after_help = "\
Examples:
  delayline app remove billing --dry-run
  delayline app remove billing --user svc-billing
  delayline app remove billing --keep-queue --no-user
  delayline app remove billing --delete-user --force
  delayline app remove billing --recall

Refuses, with exit code 1, while messages wait in its queues or somebody consumes them. A
queue that `app add` did not declare is left alone. The binding is removed first; six
seconds later the messages are counted again, and if there are any, the binding is
restored. Messages that are still delayed end up in the unroutable queue; with --recall,
those with an id do.")]
    Remove(Remove),
    /// Discard an application's messages that still wait in the levels
    #[command(
        visible_alias = "purge",
        after_help = "\
Examples:
  delayline app discard billing --dry-run
  delayline app discard billing

Use it after a publisher went wrong, for example when the header CC or BCC multiplies its
messages. Take away its right to publish first. The command reads every level, from the
highest to the lowest, and repeats until nothing is left. Other applications' messages are
put back; they may be late by as long as that takes. The user needs the right to read the
levels, which the user who installs the set has, and RabbitMQ 4 needs a temporary policy:
docs/security.md has the commands."
    )]
    Discard(Discard),
    /// Show who is registered: binding, queue, consumers, users, permissions
    #[command(after_help = "\
Examples:
  delayline app list
  delayline app list -o wide                    with the patterns of bindings and permissions
  delayline app list --json | jq '.apps[] | select(.consumers == 0) | .app'

To see permissions, log in as a user with the tag `administrator`.")]
    List(Again),
    /// Show what an application's team needs, and programs to begin with
    Show(app_programs::Args),
    /// Prove what an application's user may do, by trying it as that user
    #[command(after_help = "\
Examples:
  delayline app check billing --app-password-file pw
  DELAYLINE_APP_PASSWORD=… delayline app check billing --user svc-billing
  delayline app check billing --may-publish orders --max-delay 30d --json

Give the same flags as to `app add`; without --queue, it checks the queue that is bound.
Nothing is published, bound, consumed or declared: each attempt has an error in it that the
broker notices only after it has checked the permission. Exits with 1 if the user may do
more or less than it should.")]
    Check(Check),
}

#[derive(Debug, clap::Args)]
struct Who {
    /// The application
    #[arg(value_name = "APP", value_parser = args::app)]
    app: AppKey,
    /// Its RabbitMQ user [default: the app key]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// The queue it consumes [default: the app key]
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
    /// Also let it publish the keys of these applications
    #[arg(long, value_name = "APP,…", value_delimiter = ',', value_parser = args::app)]
    may_publish: Vec<AppKey>,
    /// The longest delay it may publish
    #[arg(long, value_name = "DELAY", value_parser = args::delay)]
    max_delay: Option<Delay>,
    /// Let it bind its queue itself, under its own key; see docs/security.md
    #[arg(long)]
    may_bind: bool,
    /// Let it publish to the retry and parked exchanges, under its own key
    #[arg(long)]
    may_retry: bool,
    /// Also let it publish messages of these applications with an id, and recall any of them
    #[arg(long, value_name = "APP,…", value_delimiter = ',', value_parser = args::app)]
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
            may_recall: self.may_recall.clone(),
        }
    }
}

#[derive(Debug, clap::Args)]
struct Add {
    #[command(flatten)]
    who: Who,
    /// Leave users and permissions alone
    #[arg(long, conflicts_with = "replace_permissions")]
    no_user: bool,
    /// The queue already exists; use it as it is
    #[arg(long)]
    existing: bool,
    /// Declare the queue so that the retry service retries what it rejects
    #[arg(long)]
    retry: bool,
    /// With --retry, on RabbitMQ 4.3 or later: let the queue itself make what a crashed consumer
    /// leaves wait, from the shortest to the longest of these, before the retry service has it
    #[arg(long, value_name = "SHORTEST..LONGEST", value_parser = args::parsed::<NativeRetry>)]
    native_retry: Option<NativeRetry>,
    /// How often a message comes back that way [default: 5]
    #[arg(long, value_name = "N", value_parser = args::whole::<u32>(1..))]
    native_attempts: Option<u32>,
    /// Put a landing queue between dispatch and the application's queue
    #[arg(long, help_heading = "Bulkhead")]
    landing: bool,
    /// Put a landing queue in front of this queue, which must exist
    #[arg(long, value_name = "NAME", help_heading = "Bulkhead")]
    to_queue: Option<String>,
    /// Put a landing queue in front of this exchange, which must exist (with --queue, the
    /// user may also consume that queue, which must exist)
    #[arg(long, value_name = "NAME", help_heading = "Bulkhead")]
    to_exchange: Option<String>,
    /// The routing key that messages get there [default: the one they came with]
    #[arg(long, value_name = "KEY", help_heading = "Bulkhead")]
    to_key: Option<String>,
    /// Let its messages be recalled until they are due, by their id
    #[arg(long, help_heading = "Recall")]
    recall: bool,
    /// How long recalled messages are kept after they were due [default: 30d]
    #[arg(long, value_name = "AGE", help_heading = "Recall", value_parser = args::delay)]
    keep_recalled: Option<Delay>,
    /// The most recalled messages that are kept [default: 100000]
    #[arg(long, value_name = "N", help_heading = "Recall", value_parser = args::whole::<u32>(1..))]
    max_recalled: Option<u32>,
    /// Also keep a journal of what is scheduled, for this long after it was published
    #[arg(long, value_name = "AGE", help_heading = "Recall", value_parser = args::delay)]
    journal: Option<Delay>,
    /// The most bytes that the journal keeps, such as 500MB [default: 10GB]
    #[arg(long, value_name = "SIZE", help_heading = "Recall", value_parser = args::bytes)]
    journal_bytes: Option<ByteSize>,
    #[command(flatten)]
    powers: Powers,
    /// Replace the user's permissions in this vhost, whatever they are
    #[arg(long, help_heading = "What its user may do")]
    replace_permissions: bool,
    /// Print what is to be made for another tool, and change nothing
    #[arg(long, value_name = "FORMAT", conflicts_with = "dry_run")]
    print: Option<export::Format>,
    #[command(flatten)]
    wanted: Wanted,
    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,
}

impl Add {
    fn spec(&self, password: Option<Secret>) -> Result<AppSpec, Failure> {
        let Powers { may_publish, max_delay, may_bind, may_retry, may_recall, publish_only } =
            self.powers.clone();
        let request = AppRequest {
            user: self.who.user.clone(),
            no_user: self.no_user,
            queue: self.who.queue.clone(),
            existing: self.existing,
            retry: self.retry,
            native_retry: self.native_retry,
            native_attempts: self.native_attempts.and_then(NonZeroU32::new),
            landing: self.landing,
            to_queue: self.to_queue.clone(),
            to_exchange: self.to_exchange.clone(),
            to_key: self.to_key.clone(),
            publish_only,
            may_publish,
            max_delay,
            may_bind,
            may_retry,
            may_recall,
            recall: self.recall,
            keep_recalled: self.keep_recalled,
            max_recalled: self.max_recalled.and_then(NonZeroU32::new),
            journal: self.journal,
            journal_bytes: self.journal_bytes,
        };
        request.spec(self.who.app.clone(), password).map_err(|error| {
            let flag = |field: &str| format!("--{}", field.replace('_', "-"));
            Failure::usage(match error {
                AppRequestError::Exclusive(one, other) => {
                    format!("{} and {} exclude each other; leave one of them out", flag(one), flag(other))
                }
                AppRequestError::Alone(one, other) => {
                    format!("{} means nothing without {}; add that, or leave it out", flag(one), flag(other))
                }
                other => other.to_string(),
            })
        })
    }
}

#[derive(Debug, clap::Args)]
struct Remove {
    #[command(flatten)]
    who: Who,
    /// Take away only that its messages can be recalled; refuses while recalls are pending or
    /// recalled messages are kept
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
    /// Remove the queues even if messages wait in them, which are lost, and even if somebody
    /// consumes them
    #[arg(long)]
    force: bool,
    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, clap::Args)]
struct Discard {
    /// The application
    #[arg(value_name = "APP", value_parser = args::app)]
    app: AppKey,
    /// Only count what would be discarded
    #[arg(long)]
    dry_run: bool,
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

pub(super) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let topology = Topology::new(settings.topology.clone());
    match &args.command {
        Command::Add(args) => add(args, settings, &topology, output),
        Command::Remove(args) => {
            let options = RemoveOptions {
                user: (!args.no_user && !args.recall).then(|| args.who.user_name()),
                only_recall: args.recall,
                delete_user: args.delete_user,
                queue: Some(args.who.queue_name()),
                keep_queue: args.keep_queue,
                force: args.force,
                dry_run: args.dry_run,
            };
            let app = &args.who.app;
            let outcome =
                output.spinning("removing", || admin::remove_app(settings, &topology, app, &options))?;
            app_show::removed(app, &outcome, output)
        }
        Command::Discard(args) => {
            let stop = ending::on_signal()?;
            let report = output.following("looking through the levels", |bar| {
                admin::discard_app(settings, &topology, &args.app, args.dry_run, &stop, |at| follow(bar, at))
            })?;
            app_show::discarded(&report, args.dry_run, output)
        }
        Command::List(_) => {
            app_show::list(&topology.settings().set, &admin::list_apps(settings, &topology)?, output)
        }
        Command::Show(args) => app_programs::run(args, settings, &topology, output),
        Command::Check(args) => check(args, settings, &topology, output),
    }
}

fn add(args: &Add, settings: &Settings, topology: &Topology, output: &mut Output) -> Result<Code, Failure> {
    let spec = args.spec(settings.app_password.clone())?;
    spec.check(topology).map_err(Failure::usage)?;
    if let Some(format) = args.print {
        let export = Export::new(&settings.broker.vhost).with_app(topology, &spec);
        return export::print(&export, format, output);
    }
    let report = admin::add_app(settings, topology, &spec, args.replace_permissions, args.dry_run)?;
    let names = Names {
        app: spec.app.to_string(),
        queue: spec.queue_name().map(str::to_owned),
        exchange: topology.names().entry(),
    };
    let unlimited = spec.user.as_ref().is_some_and(|user| user.max_delay.is_none());
    let user = spec.user.map(|user| user.name);
    let handout = Handout::new(names, user, &settings.broker, &args.wanted);
    app_show::added(&report, &handout, unlimited, output)
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
    let code = app_show::checked(&check, output)?;
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
