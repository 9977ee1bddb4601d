//! The parts of a picture.

use jiff::Timestamp;
use serde::Serialize;

use delayline_admin::{AppBinding, Finding};
use delayline_schedules::State;

use super::{LayoutView, Verdict};

/// A set at one moment. Rates are per second.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct Picture {
    /// When it was taken.
    pub at: Timestamp,
    /// The version of delayline that took it.
    pub version: String,
    /// The name of the set.
    pub set: String,
    /// The vhost it is installed in.
    pub vhost: String,
    /// The length of a unit of delay in ms; 1000 except in tests.
    pub unit_ms: u64,
    /// Whether the broker answers.
    pub broker: BrokerView,
    /// Whether the set matches its definition.
    pub verified: SetView,
    /// When the messages were counted; older than `at` while the broker does not answer, `None` before
    /// the first count.
    pub counted: Option<Timestamp>,
    /// The levels, from the longest wait to the shortest.
    pub levels: Vec<Level>,
    /// Messages in all levels, without stuck messages; `None` if not every level could be counted.
    pub waiting: Option<u64>,
    /// Due messages that are being passed on, including stuck messages; `None` without the management
    /// API, or if it does not report them.
    pub handing_on: Option<u64>,
    /// Due messages that have just come, so that it is not known yet whether they move; `None` likewise.
    pub open: Option<u64>,
    /// Stuck messages in all levels; `None` likewise.
    pub stuck: Option<u64>,
    /// The rates of messages that enter and leave the set.
    pub rates: Rates,
    /// Estimates for the next minute, hour and day.
    pub forecast: Vec<Forecast>,
    /// Messages in the unroutable queue; `None` if unknown.
    pub unroutable: Option<u64>,
    /// Its growth over the last minute, or since the first count.
    pub unroutable_last_minute: Option<i64>,
    /// When the oldest message arrived, as far as its headers show, or since when the queue has had
    /// messages; `None` if it has none, or was not examined.
    pub unroutable_oldest: Option<Timestamp>,
    /// Messages in the parked queue; `None` if unknown.
    pub parked: Option<u64>,
    /// Its growth over the last minute, or since the first count.
    pub parked_last_minute: Option<i64>,
    /// When the oldest message arrived, likewise.
    pub parked_oldest: Option<Timestamp>,
    /// Failed messages that no retry service has taken yet; `None` if unknown.
    pub retry: Option<u64>,
    /// The work of this process's retry service, by app, the busiest first; `None` without it.
    pub retries: Option<Vec<AppRetries>>,
    /// The results of this process's canary; `None` without it.
    pub canary: Option<CanaryView>,
    /// The last check of the whole broker; `None` before the first.
    pub checkup: Option<Checkup>,
    /// The bindings of the dispatch exchange; `None` without the management API, and on the
    /// page of a daemon.
    pub apps: Option<Vec<AppBinding>>,
    /// Landing queues, and queues of paused applications, whose due messages have not moved on; `None` without
    /// the management API.
    pub landings: Option<Vec<LandingView>>,
    /// Recalls and recalled messages, by application; `None` without the management API.
    pub recalls: Option<Vec<RecallView>>,
    /// The gateways of the set; `None` without the management API.
    pub gateways: Option<Vec<GatewayView>>,
    /// Recurring schedules; `None` if this process does not publish any.
    pub schedules: Option<SchedulesView>,
    /// When the counts of the management API were read; `None` if they never were.
    pub read: Option<Timestamp>,
    /// The levels of other layouts, if the daemon watches any.
    pub layouts: Vec<LayoutView>,
    /// Checks that could not be made, with the reasons.
    pub unchecked: Vec<String>,
    /// The meaning of all this, in words.
    pub verdict: Verdict,
}

/// Whether the broker answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct BrokerView {
    /// Whether it answers.
    pub reachable: bool,
    /// When it began to answer, or stopped answering.
    pub since: Option<Timestamp>,
    /// When that changed, or when a queue of the set came or went: anything may have happened then.
    #[serde(skip)]
    pub changed: Option<Timestamp>,
    /// Why it does not answer.
    pub problem: Option<String>,
    /// Nodes that are short of memory or disk space, so that the whole cluster accepts no messages; `None` if
    /// that is not known.
    pub alarms: Option<Vec<String>>,
    /// Its version.
    pub version: Option<String>,
    /// The address that was tried.
    pub address: String,
}

/// Whether the set matches its definition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct SetView {
    /// Whether nothing differs; `None` if it was not compared yet.
    pub ok: Option<bool>,
    /// Whether any object of the set exists; `None` if it was not compared yet.
    pub installed: Option<bool>,
    /// Whether the set is optional: the daemon watches layouts, and the set has never existed.
    pub awaited: bool,
    /// When it was compared last.
    pub at: Option<Timestamp>,
    /// Whether bindings were compared, too: that needs the management API.
    pub bindings_compared: bool,
    /// What differs.
    pub problems: Vec<String>,
    /// Comparisons that could not be made, with the reasons.
    pub unchecked: Vec<String>,
    /// Whether some of that can be compared in a few seconds.
    #[serde(skip)]
    pub unchecked_for_now: bool,
}

/// One level.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct Level {
    /// 27 to 0: the bit.
    pub level: u8,
    /// The name of its queue.
    pub queue: String,
    /// How long a message waits here, in ms.
    pub wait_ms: u64,
    /// Messages that wait, including those in shortcuts whose highest bit is this one; `None` if the queue is
    /// missing, or does not answer.
    pub ready: Option<u64>,
    /// Due messages that the next queue has not confirmed. Under load there are always some, each for a
    /// moment. `None` without the management API, or if it does not report them.
    pub handing_on: Option<u64>,
    /// Due messages that have just come, so that it is not known yet whether they move; `None` likewise.
    pub open: Option<u64>,
    /// Due messages that do not move: the broker counted them repeatedly, for at least 15 s. `None`
    /// likewise.
    pub stuck: Option<u64>,
    /// Since when it has had stuck messages, as far as that was observed.
    pub stuck_since: Option<Timestamp>,
}

/// The rates of messages that enter and leave the set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct Rates {
    /// Messages published to the entry exchange, including messages without a delay; `None` if unknown.
    pub entry_per_s: Option<f64>,
    /// Messages that leave the levels for their destination.
    pub dispatch_per_s: Option<f64>,
}

/// Messages that are due within a period. Stuck messages are not included: they are due already.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Forecast {
    /// `minute`, `hour`, `day`.
    pub within: String,
    /// The same in seconds.
    pub seconds: u64,
    /// Not fewer than this, if no message is stuck.
    pub at_least: u64,
    /// An estimate, as if ages and delays were spread evenly.
    pub estimate: u64,
}

/// An app's failed messages since this process started.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct AppRetries {
    /// The app key, or `(other)`, or `(unreadable)`.
    pub app: String,
    /// Messages that were sent back to be tried again.
    pub retries: u64,
    /// Messages that were tried again in the last minute.
    pub last_minute: u64,
    /// Messages that were parked.
    pub parked: u64,
}

/// A landing queue, or the queue of a paused application, with due messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct LandingView {
    /// The app key.
    pub app: String,
    /// The name of the queue.
    pub queue: String,
    /// Due messages that have just come, so that it is not known yet whether they move.
    pub open: u64,
    /// Due messages that do not move: the application's queue or exchange does not accept them.
    pub stuck: u64,
    /// Since when it has had stuck messages, as far as that was observed.
    pub stuck_since: Option<Timestamp>,
}

/// A gateway for `x-delay`. Its problems are among the findings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct GatewayView {
    /// Its name, and the name of its consumers' exchange.
    pub gateway: String,
    /// Messages that no daemon has taken yet; this and the next two are `None` if the broker does not
    /// report them.
    pub waiting: Option<u64>,
    /// Messages that came back from the levels, and that daemons hold or have not taken yet.
    pub due: Option<u64>,
    /// How many channels of daemons take messages; a daemon has several.
    pub channels: Option<u64>,
}

/// Recurring schedules, as this process has read them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct SchedulesView {
    /// Whether this process publishes; others wait for their turn.
    pub leads: bool,
    /// How many there are.
    pub number: usize,
    /// The first of them, those that are due next first.
    pub first: Vec<ScheduleView>,
}

/// A recurring schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct ScheduleView {
    /// Its name.
    pub schedule: String,
    /// Its application.
    pub app: String,
    /// What it does.
    pub state: State,
    /// Its next occurrence; in the past if it was not published in time, `None` if there is none.
    pub next: Option<Timestamp>,
    /// How many occurrences were missed and not published since this process started.
    pub missed: u64,
}

/// Recalls and recalled messages of an application.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct RecallView {
    /// The app key.
    pub app: String,
    /// Pending recalls, as of the last sweep of this process; `None` without a sweep.
    pub pending: Option<u64>,
    /// Expired recalls that were not swept up.
    pub over: Option<u64>,
    /// Recalls that this process has swept up.
    pub swept: Option<u64>,
    /// How many may be pending: `max_recalls`.
    pub quota: u64,
    /// Messages that were recalled and are kept; `None` if the broker does not report them.
    pub recalled: Option<u64>,
}

/// The results of a canary.
#[derive(Debug, Clone, Default, PartialEq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct CanaryView {
    /// Whether it runs.
    pub running: bool,
    /// Why it does not run.
    pub problem: Option<String>,
    /// Messages it sent.
    pub sent: u64,
    /// Messages that came back.
    pub arrived: u64,
    /// Messages that are overdue now.
    pub overdue: u64,
    /// Messages that are missing now.
    pub missing: u64,
    /// Messages that came twice, ever.
    pub twice: u64,
    /// The lateness of the last message of each route through the levels.
    pub probes: Vec<ProbeView>,
    /// The lateness over time, the oldest first.
    pub lateness: Vec<Lateness>,
}

/// One route through the levels.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct ProbeView {
    /// The levels it passes through: `06+04+02+00`.
    pub levels: String,
    /// How late its last message was, in ms.
    pub late_ms: Option<f64>,
    /// Messages that are overdue now.
    pub overdue: u64,
    /// Messages that are missing now.
    pub missing: u64,
}

/// The lateness of canary messages in ten seconds.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct Lateness {
    /// When these ten seconds began.
    pub at: Timestamp,
    /// How many arrived.
    pub arrived: u64,
    /// The median lateness, in ms; `None` if none arrived.
    pub middle_ms: Option<f64>,
    /// The largest lateness, in ms.
    pub worst_ms: Option<f64>,
    /// How long the oldest missing message was overdue, in ms; 0 if none was.
    pub overdue_ms: f64,
}

/// The result of a check of the whole broker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Checkup {
    /// When the check was done; `None` if it failed.
    pub at: Option<Timestamp>,
    /// The findings, the worst first.
    pub findings: Vec<Finding>,
    /// Checks that could not be made, with the reasons.
    pub unchecked: Vec<String>,
}
