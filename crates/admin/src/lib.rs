//! Operations of a platform team on a set: install, verify, inspect, remove.
//!
//! Each function works on a [`Topology`](delayline_core::topology::Topology) and a broker, and returns
//! plain data for the command line or any other caller to show.

pub use delayline_messages::drain;
pub use delayline_settings::{ForeignKey, ForeignKeyError, Layout, LayoutError};

pub use delayline_inspect::examine::{Conflict, ObjectState};
pub use delayline_inspect::finding::{Finding, FindingCode, Severity, findings};
pub use delayline_inspect::inspect::{
    AppBinding, AppEntry, AppList, AppUserEntry, DoctorOptions, DoctorReport, GatewayEntry, GatewayList,
    JournalEntry, LandingEntry, LayoutDestination, LayoutLevel, LayoutStatus, RecallEntry, VerifyReport,
    apps_of_publisher, doctor, doctor_layout, doctor_seen, gateway_names, gateways_among, layout_status,
    list_apps, list_gateways, queue_of_app, verify, verify_seen,
};
pub use delayline_messages::error::{AdminError, JournalUnread};
pub use delayline_messages::held::{
    Diagnosis, DiscardReport, DiscardedFrom, Evidence, Kept, KeptCause, KeptGroup, KeptMessage, KeptReport,
    Reason, ReplayRefusal, ReplayReport, Selection, TransferLevel, TransferOptions, TransferProgress,
    TransferReport, TransferSource, diagnose, discard_app, transfer,
};
pub use delayline_messages::number::{counted, counted_if_known, grouped, known, named};
pub use delayline_messages::scheduled::{
    AppRecalls, CountBy, Estimated, FoundMessage, JournalRead, PendingCopies, PendingRecall, PendingRecalls,
    RecallCounts, RecallStats, ScheduleCount, ScheduleFilter, ScheduleList, ScheduleSlot, ScheduleState,
    ScheduledMessage, SweepOptions, SweepReport, Sweeper, SweptApp, count_scheduled, find_scheduled,
    is_recall_bound, list_scheduled, pending_recalls, recallable_apps, sweep_recalls,
};
pub use delayline_messages::unstick::{
    Occupied, TouchedQueue, Unstick, UnstickOptions, UnstickReport, unstick,
};
pub use delayline_provision::keeper::{UnstickStats, Unsticker};
pub use delayline_provision::provision::{
    AddReport, AddedStep, AppCheck, AppQueue, AppRequest, AppRequestError, AppSpec, AppSpecError, AppUser,
    Applied, ApplyOptions, ApplyReport, ByteSize, ByteSizeError, DaemonUserReport, Delivery, Export,
    GatewayAdded, GuardOptions, GuardPolicy, GuardReport, Hold, InstallReport, PauseReport, Platform,
    PlatformError, PlatformSet, Probe, PrunedApp, PrunedGateway, Refusal, RemoveOptions, RemoveRefusal,
    RemoveReport, SetReport, Target, Unguarded, UninstallReport, Waiting, add_app, add_daemon_user,
    add_gateway, apply, check_app, daemon_user_commands, guard, install, pause_app, plan_uninstall,
    remove_app, remove_gateway, resume_app, show_management, unguard, uninstall,
};
