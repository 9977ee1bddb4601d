//! Finding messages in a journal: the flags that select them, and the preview of a change.

use clap::ArgGroup;
use jiff::Timestamp;
use serde::Serialize;

use delayline_admin::{self as admin, HeaderFilter, ScheduleFilter, ScheduleList, ScheduledMessage};
use delayline_core::{
    codec::{AppKey, MessageId},
    message::Handle,
    topology::Topology,
};
use delayline_settings::Settings;

use crate::values;
use delayline_term::{
    Code, Failure, Output, consent::Consent, findings, output::aside, output::counted, output::dry_run,
    output::grouped, time, time::date,
};

use super::{
    journal::reading,
    list::{messages, told},
    recall::unknown,
};

/// The most messages that one run changes.
const AT_ONCE: usize = 100_000;

/// How many of them a preview lists.
const SHOWN: usize = 10;

/// Which messages of a journal.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Filter {
    /// Only messages that are due at this time or later [default: now]
    #[arg(long, value_name = "TIME", value_parser = time::instant)]
    due_after: Option<Timestamp>,
    /// Only messages that are due before this time
    #[arg(long, value_name = "TIME", value_parser = time::instant)]
    due_before: Option<Timestamp>,
    /// Only messages with this id, and their retries
    #[arg(long, value_name = "ID", value_parser = values::id)]
    id: Option<MessageId>,
    /// Only messages with this header; given twice, with both
    #[arg(long, value_name = "KEY=VALUE", value_parser = values::parsed::<HeaderFilter>)]
    header: Vec<HeaderFilter>,
}

impl Filter {
    pub(super) fn admin(&self) -> Result<ScheduleFilter, Failure> {
        time::in_order(self.due_after, self.due_before)?;
        Ok(ScheduleFilter::default()
            .with_due_after(self.due_after)
            .with_due_before(self.due_before)
            .with_id(self.id.clone())
            .with_headers(self.header.clone()))
    }

    /// The same as parameters of the daemon's API.
    pub(super) fn query(&self, app: Option<&AppKey>) -> Vec<(&'static str, String)> {
        let one = |name, value: Option<String>| value.map(|value| (name, value));
        let after = one("due_after", self.due_after.map(|it| it.to_string()));
        let before = one("due_before", self.due_before.map(|it| it.to_string()));
        let id = one("id", self.id.as_ref().map(ToString::to_string));
        let headers = self.header.iter().map(|it| ("header", format!("{}={}", it.name, it.value)));
        let app = one("app", app.map(ToString::to_string));
        [app, after, before, id].into_iter().flatten().chain(headers).collect()
    }

    /// The id, if nothing else selects.
    fn only_id(&self) -> Option<&MessageId> {
        let alone = self.due_after.is_none() && self.due_before.is_none() && self.header.is_empty();
        self.id.as_ref().filter(|_| alone)
    }
}

/// All flags of a [`Search`] that select.
pub(super) const SEARCHING: [&str; 6] = ["app", "due_after", "due_before", "id", "header", "all"];

/// Which messages of a journal are changed.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("which").args(["due_after", "due_before", "id", "header", "all"]).multiple(true).requires("app"))]
pub(super) struct Search {
    /// Find the messages in the journal of this application
    #[arg(long, value_name = "APP", value_parser = values::app, requires = "which")]
    pub(super) app: Option<AppKey>,
    #[command(flatten)]
    filter: Filter,
    /// All messages that wait
    #[arg(long, conflicts_with_all = ["due_after", "due_before", "id", "header"])]
    all: bool,
    #[command(flatten)]
    consent: Consent,
}

/// The change to the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Recall,
    Unrecall,
    Reschedule,
}

impl Change {
    /// The participle.
    pub(super) const fn done(self) -> &'static str {
        match self {
            Self::Recall => "recalled",
            Self::Unrecall => "undone",
            Self::Reschedule => "rescheduled",
        }
    }
}

/// The messages to change.
pub(super) struct Selected {
    /// Those that have an id.
    pub(super) list: ScheduleList,
    /// Their handles, in the same order.
    pub(super) handles: Vec<Handle>,
    /// How many more are not changed.
    pub(super) left: u64,
}

/// What a change by filters would do.
#[derive(Serialize, schemars::JsonSchema)]
pub(crate) struct Preview<'a> {
    /// Nothing was changed.
    #[schemars(extend("const" = true))]
    dry_run: bool,
    /// The application.
    app: &'a str,
    /// How many messages would be changed.
    messages: u64,
    /// How many others cannot be changed, since they have no id.
    without_id: u64,
    /// How many others are left out, since their headers cannot be read.
    unreadable: u64,
    /// How many more the next run would change.
    more: u64,
    /// When the first of them is due.
    first_due: Option<Timestamp>,
    /// When the last of them is due.
    last_due: Option<Timestamp>,
    /// The checks that were not possible, and why.
    unchecked: &'a [String],
}

impl Search {
    /// Refuses a dry run of a change that is not made by filters.
    ///
    /// # Errors There is a `--dry-run`.
    pub(super) fn refuse_dry_run(&self) -> Result<(), Failure> {
        match self.consent.dry_run {
            true => Err(Failure::usage("--dry-run needs --app and a filter; a HANDLE is one message")),
            false => Ok(()),
        }
    }

    /// Finds the messages to change, shows them and asks; or returns the code of a failed search. A
    /// single id needs no question.
    pub(super) fn select(
        &self,
        change: Change,
        app: &AppKey,
        (settings, topology): (&Settings, &Topology),
        output: &mut Output,
    ) -> Result<Result<Selected, Code>, Failure> {
        let mut filter = self.filter.admin()?;
        let only_id = self.filter.only_id();
        match (only_id, change) {
            // Messages that were due are found as well, to report that it is too late.
            (Some(_), Change::Recall | Change::Unrecall) => {
                filter.due_after = Some(Timestamp::UNIX_EPOCH);
            }
            (None, Change::Unrecall) => filter = filter.only_recalled(true),
            // Each run takes the next ones.
            _ => filter = filter.only_recalled(false),
        }
        let mut list = reading(output, |stop, at| {
            admin::list_scheduled(settings, topology, app, &filter, 0..AT_ONCE, stop, at)
        })?;
        if list.journal.interrupted {
            return Ok(Err(Code::Interrupted));
        }
        let now = Timestamp::now();
        let all = list.messages.len();
        list.messages.retain(|message| message.id.is_some());
        let without = (all - list.messages.len()) as u64;
        // The next run would find the same ones.
        let over = self.filter.due_after.is_some_and(|after| after < now);
        let again = change != Change::Recall || over || without > 0 || !list.unchecked.is_empty();
        if only_id.is_none() && list.more > 0 && again {
            return Err(Failure::usage(format!(
                "the journal has {} more than the {} that one run takes, and nothing was done; take fewer with \
                 --due-after and --due-before",
                grouped(list.more),
                grouped(AT_ONCE as u64)
            )));
        }
        if only_id.is_some() {
            // A retry is a message that was due before: the waiting message counts.
            let waits = |it: &ScheduledMessage| it.due_latest.unwrap_or(it.due) > now;
            match list.messages.iter().any(waits) {
                true => list.messages.retain(waits),
                false => drop(list.messages.drain(..list.messages.len().saturating_sub(1))),
            }
        }
        let handles: Vec<_> = list.messages.iter().filter_map(|it| it.recallable(now)).collect();
        if handles.is_empty() && without == 0 {
            unknown(self.filter.id.as_ref(), &list, output)?;
            return Ok(Err(Code::Problem));
        }
        if change == Change::Unrecall && only_id.is_some() && handles.len() > 1 {
            output.problem("nothing was changed: several messages with this id wait. Pass a handle:")?;
            for handle in &handles {
                let due = handle.due().map_or_else(|| "unknown".into(), date);
                aside(format!("{} (due {due})", handle.routing_key().encode()));
            }
            return Ok(Err(Code::Problem));
        }
        let preview = |output: &mut Output| {
            preview(change, &list, without, output)?;
            Ok(Code::Done)
        };
        if (self.consent.dry_run || only_id.is_none())
            && let Some(code) = self.consent.ask(output, preview)?
        {
            return Ok(Err(code));
        }
        for (count, what) in [
            (list.more, "more are left for the next run"),
            (without, "have no id: they cannot be recalled or rescheduled"),
            (list.journal.unreadable, "have headers that cannot be read here, and are left out"),
        ] {
            if count > 0 {
                aside(format!("{} {what}", grouped(count)));
            }
        }
        let left = list.more + without + list.journal.unreadable;
        Ok(Ok(Selected { list, handles, left }))
    }
}

fn preview(change: Change, list: &ScheduleList, without_id: u64, output: &mut Output) -> Result<(), Failure> {
    let due = |it: &ScheduledMessage| it.due;
    let (first_due, last_due) = (list.messages.first().map(due), list.messages.last().map(due));
    let count = list.messages.len() as u64;
    if output.json {
        output.json(&Preview {
            dry_run: true,
            app: &list.app,
            messages: count,
            without_id,
            unreadable: list.journal.unreadable,
            more: list.more,
            first_due,
            last_due,
            unchecked: &list.unchecked,
        })?;
        return Ok(());
    }
    if count > 0 {
        output.line(messages(list.messages.iter().take(SHOWN)))?;
        let more = count.saturating_sub(SHOWN as u64);
        if more > 0 {
            output.line(format!("… and {} more", grouped(more)))?;
        }
    }
    let when = match (first_due, last_due) {
        (Some(first), Some(last)) => format!("; due {} to {}", date(first), date(last)),
        _ => String::new(),
    };
    output.line(format!("{} {} would be {}{when}", dry_run(), counted(count, "message"), change.done()))?;
    if without_id > 0 {
        output.line(format!(
            "{} without an id cannot be recalled or rescheduled, and would stay",
            counted(without_id, "message")
        ))?;
    }
    if list.more > 0 {
        output.line(format!("{} more are left for the next run", grouped(list.more)))?;
    }
    told(&list.journal, output)?;
    findings::unchecked(&list.unchecked, output)
}
