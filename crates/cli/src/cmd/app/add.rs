//! `delayline app add`

use std::num::NonZeroU32;

use delayline_admin::{self as admin, AppRequest, AppRequestError, AppSpec, ByteSize, Delivery, Export};
use delayline_amqp::broker::Secret;
use delayline_core::{
    codec::Delay,
    topology::{NativeRetry, Rejected, Topology},
};
use delayline_settings::Settings;

use crate::{cmd::set::export, values};
use delayline_term::{Code, Failure, Output};

use super::{
    Powers, Who,
    handout::{Handout, Wanted},
    print,
    programs::Names,
};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    who: Who,
    /// Leave users and permissions alone
    #[arg(long, conflicts_with = "replace_permissions")]
    no_user: bool,
    /// The queue already exists; use it as it is
    #[arg(long)]
    existing: bool,
    /// Let the retry service retry rejected messages; `none` parks them, for a framework with its own
    /// retries
    #[arg(long, value_name = "none", num_args = 0..=1, default_missing_value = "service", value_parser = values::retry)]
    retry: Option<Rejected>,
    /// With --retry, on RabbitMQ 4.3 or later: the queue itself delays redelivery after a consumer
    /// crash, from the shortest to the longest of these delays, before the retry service is used
    #[arg(hide_short_help = true, long, value_name = "SHORTEST..LONGEST", value_parser = values::parsed::<NativeRetry>)]
    native_retry: Option<NativeRetry>,
    /// How often the queue itself redelivers a message [default: 5]
    #[arg(hide_short_help = true, long, value_name = "N", value_parser = values::whole::<u32>(1..))]
    native_attempts: Option<u32>,
    /// Put a landing queue between dispatch and the application's queue; `--landing false` removes it
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", hide_possible_values = true, help_heading = "Bulkhead")]
    landing: Option<bool>,
    /// Put a landing queue in front of this queue, which must exist
    #[arg(long, value_name = "NAME", help_heading = "Bulkhead")]
    to_queue: Option<String>,
    /// Put a landing queue in front of this exchange, which must exist (with --queue, the
    /// user may also consume that queue, which must exist)
    #[arg(long, value_name = "NAME", help_heading = "Bulkhead")]
    to_exchange: Option<String>,
    /// The routing key that messages get there [default: unchanged]
    #[arg(hide_short_help = true, long, value_name = "KEY", help_heading = "Bulkhead")]
    to_key: Option<String>,
    /// Let its messages be recalled until they are due, by their id
    #[arg(long, help_heading = "Recall")]
    recall: bool,
    /// How long recalled messages are kept after they were due [default: 30d]
    #[arg(hide_short_help = true, long, value_name = "AGE", help_heading = "Recall", value_parser = values::delay)]
    keep_recalled: Option<Delay>,
    /// The most recalled messages that are kept [default: 100000]
    #[arg(hide_short_help = true, long, value_name = "N", help_heading = "Recall", value_parser = values::whole::<u32>(1..))]
    max_recalled: Option<u32>,
    /// Also keep a journal of scheduled messages, for this long after publishing
    #[arg(long, value_name = "AGE", help_heading = "Recall", value_parser = values::delay)]
    journal: Option<Delay>,
    /// The most bytes that the journal keeps, such as 500MB [default: 10GB]
    #[arg(hide_short_help = true, long, value_name = "SIZE", help_heading = "Recall", value_parser = values::bytes)]
    journal_bytes: Option<ByteSize>,
    /// Replace the user's permissions in this vhost, whatever they are
    #[arg(hide_short_help = true, long, help_heading = "What its user may do")]
    replace_permissions: bool,
    /// Print the objects for another tool, and change nothing
    #[arg(hide_short_help = true, long, value_name = "FORMAT", conflicts_with = "dry_run")]
    print: Option<export::Format>,
    #[command(flatten)]
    wanted: Wanted,
    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,
    // Last, because its heading applies to all later arguments.
    #[command(flatten)]
    powers: Powers,
}

impl Args {
    fn spec(&self, password: Option<Secret>) -> Result<AppSpec, Failure> {
        let Powers { may_publish, max_delay, may_bind, may_retry, schedules, may_recall, publish_only } =
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
            schedules,
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
                    format!("{} and {} exclude each other; omit either", flag(one), flag(other))
                }
                AppRequestError::Alone(one, other) => {
                    format!("{} has no effect without {}; use both or neither", flag(one), flag(other))
                }
                other => other.to_string(),
            })
        })
    }
}

pub(super) fn run(
    args: &Args,
    settings: &Settings,
    topology: &Topology,
    output: &mut Output,
) -> Result<Code, Failure> {
    let spec = args.spec(settings.app_password.clone())?;
    spec.check(topology).map_err(Failure::usage)?;
    if let Some(format) = args.print {
        let export = Export::new(&settings.broker.vhost).with_app(topology, &spec);
        return export::print(&export, format, output);
    }
    let others = spec.user.iter().flat_map(|user| user.may_publish.iter().chain(&user.may_recall));
    let others = others.filter(|_| spec.delivery == Delivery::Nothing).map(ToString::to_string);
    let names = Names {
        sends_to: others.collect(),
        recall: spec.recall.is_some(),
        app: spec.app.to_string(),
        queue: spec.queue_name().map(str::to_owned),
        exchange: topology.names().entry(),
    };
    let unlimited = spec.user.as_ref().is_some_and(|user| user.max_delay.is_none());
    let user = spec.user.as_ref().map(|user| user.name.clone());
    let handout = Handout::new(names, user, settings, &args.wanted)?;
    let report = admin::add_app(settings, topology, &spec, args.replace_permissions, args.dry_run)?;
    print::added(settings, &report, &handout, unlimited, output)
}
