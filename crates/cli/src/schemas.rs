//! docs/schemas: the JSON Schemas of everything that is printed with `--json`, generated from the
//! types that are printed. `DELAYLINE_WRITE_SCHEMAS=1` lets the test write the files.

mod generate;

use schemars::JsonSchema;

use delayline_admin::{
    AppCounts, AppList, ApplyReport, DaemonUserReport, DiscardReport, DoctorReport, FoundMessage,
    GatewayAdded, GatewayEntry, GatewayList, GuardReport, InstallReport, KeptMessage, KeptReport,
    LayoutStatus, PauseReport, PendingRecalls, Refusal, RemoveRefusal, RemoveReport, ReplayReport,
    ScheduleCount, ScheduleList, SweepReport, TransferReport, Unguarded, UninstallReport, UnstickReport,
    VerifyReport,
};
use delayline_schedules::{AllSchedules, ScheduleChange, ScheduleDetails};
use delayline_watch::{picture::Picture, web::Health};

use generate::Printed;

use crate::{
    cmd::app, cmd::completions, cmd::demo, cmd::dev, cmd::doctor, cmd::held::Discarded, cmd::held::OfKind,
    cmd::key, cmd::listen, cmd::man, cmd::schedule, cmd::scheduled, cmd::send, cmd::serve,
    cmd::set::export::Exported, cmd::version, help,
};
use delayline_term::{change::Refused, failure, output::Problem, output::SCHEMA_VERSION};

macro_rules! printed {
    ($($name:literal, $description:literal, [$($shape:ty),+];)*) => {
        const ALL: &[Printed] = &[
            $(($name, $description, |generator| vec![$(<$shape>::json_schema(generator)),+])),*
        ];
    };
}

printed! {
    "app-add", "A report of `app add`; with `--print`, a document for another tool.",
        [app::Added<'static>, Exported];
    "app-check", "The permissions of an application's user.", [app::Checked<'static>];
    "app-discard", "The messages that `app discard` discarded.", [DiscardReport];
    "app-list", "The applications of a set.", [AppList];
    "app-pause", "A report of `app pause`.", [PauseReport];
    "app-remove", "A report of `app remove`, or why it removed nothing.",
        [RemoveReport, Refused<'static, RemoveRefusal>];
    "app-resume", "A report of `app resume`.", [PauseReport];
    "app-show", "The values that the team of an application needs.", [app::Shown<'static>];
    "apply", "The changes of `apply`; with `--dry-run`, those that it would make.", [ApplyReport];
    "completions", "A script for a shell.", [completions::Script];
    "demo", "The lateness of the demonstration's messages.", [demo::Report];
    "dev", "A private broker and its applications.", [dev::Ready];
    "diff", "The changes that `apply` would make.", [ApplyReport];
    "doctor", "The findings of the doctor; with a code, its meaning.", [DoctorReport, doctor::Explained];
    "error", "Why a command failed; on standard error.", [failure::Said<'static>];
    "export", "A document for another tool.", [Exported];
    "gateway-add", "A report of `gateway add`.", [GatewayAdded];
    "gateway-check", "A gateway.", [GatewayEntry];
    "gateway-list", "The gateways of a set.", [GatewayList];
    "gateway-remove", "A report of `gateway remove`, or why it removed nothing.",
        [RemoveReport, Refused<'static, RemoveRefusal>];
    "guard-add", "A report of `guard add`.", [GuardReport];
    "guard-remove", "A report of `guard remove`.", [Unguarded];
    "held-discard", "A report of `held discard`.", [Discarded<'static>];
    "held-list", "The held messages of a kind, by application and reason; an object for each kind.",
        [OfKind<'static, KeptReport>];
    "held-replay", "A report of `held replay`.", [ReplayReport];
    "held-show", "A held message, one line for each; `send --jsonl` reads it.", [OfKind<'static, KeptMessage>];
    "help", "The help for a command or for the settings.", [help::Text];
    "install", "A report of `install`.", [InstallReport];
    "key-decode", "The parts of a routing key.", [key::Decoded];
    "key-encode", "A routing key.", [key::Encoded];
    "listen", "A message that arrived; one line for each.", [listen::Arrival];
    "man", "A manual page, or the files that were written.", [man::Page, man::Pages];
    "schedule-add", "A report of `schedule add`.", [ScheduleChange];
    "schedule-list", "The schedules of a set.", [AllSchedules];
    "schedule-pause", "A report of `schedule pause`.", [ScheduleChange];
    "schedule-remove", "A report of `schedule remove`.", [ScheduleChange];
    "schedule-resume", "A report of `schedule resume`.", [ScheduleChange];
    "schedule-run", "The message that `schedule run` published.", [schedule::Ran<'static>];
    "schedule-show", "A schedule, with its next occurrences.", [ScheduleDetails];
    "scheduled-count", "The number of messages of an application's journal, by due time; with `--by app`, of \
        each application.", [ScheduleCount, AppCounts];
    "scheduled-list", "The messages of an application's journal; with `--recalls`, the pending recalls.",
        [ScheduleList, PendingRecalls];
    "scheduled-recall", "The result for one handle, one line for each; with `--dry-run`, what would be done.",
        [scheduled::Line, scheduled::Preview<'static>, scheduled::Unknown, Problem<'static>];
    "scheduled-reschedule", "The message that takes the place of another one, or why nothing was changed; one \
        line for each. With `--dry-run`, what would be done.",
        [scheduled::Rescheduled, scheduled::NotRescheduled, scheduled::Preview<'static>, scheduled::Unknown,
            Problem<'static>];
    "scheduled-show", "A message of a journal, one line for each; `send --jsonl` reads it.", [FoundMessage];
    "scheduled-sweep", "A report of the sweep.", [SweepReport];
    "scheduled-unrecall", "The result for one handle, one line for each; with `--dry-run`, what would be done.",
        [scheduled::Line, scheduled::Preview<'static>, scheduled::Unknown, Problem<'static>];
    "send", "A report of `send`. With `--handles`, one line for each handle comes before it.",
        [send::Report, send::Recallable];
    "serve-check", "Whether the running daemon is ready.", [Health];
    "serve-user", "A report of `serve user`; with `--print`, the commands.",
        [DaemonUserReport, serve::user::Commands];
    "status", "A set at one moment; with `--layout`, the levels of another layout.", [Picture, LayoutStatus];
    "transfer", "A report of `transfer`.", [TransferReport];
    "uninstall", "A report of `uninstall`, or why it removed nothing.",
        [UninstallReport, Refused<'static, Refusal>];
    "unstick", "The queues that were made to try again, and whether they flow.", [UnstickReport];
    "verify", "A report of `verify`. If `installed` is false, `findings` and `differences` have only what \
        keeps the broker from carrying a set.", [VerifyReport];
    "version", "The version of delayline.", [version::Version];
}

#[test]
fn the_files_are_the_schemas_of_what_is_printed() {
    generate::check(ALL);
}
