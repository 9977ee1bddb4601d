//! The parts of a picture.

use jiff::Timestamp;
use serde::Serialize;

use delayline_admin::{AppBinding, Finding, JournalSchedule};

use super::{LayoutView, Verdict};

/// A set at one moment. Rates are per second.
#[derive(Debug, Clone, PartialEq, Serialize)]
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
    /// Whether the set is as it should be.
    pub verified: SetView,
    /// When the depths were counted; older than `at` while the broker cannot be asked, `None`
    /// if it never could.
    pub counted: Option<Timestamp>,
    /// The levels, from the longest wait to the shortest.
    pub levels: Vec<Level>,
    /// Messages in all levels, without stuck ones; `None` if no level could be counted.
    pub waiting: Option<u64>,
    /// Messages that are due and being passed on, stuck ones included; `None` without the
    /// management API.
    pub handing_on: Option<u64>,
    /// Stuck messages in all levels; `None` without the management API.
    pub stuck: Option<u64>,
    /// What comes in and what goes out.
    pub rates: Rates,
    /// What falls due over the next minute, hour and day.
    pub forecast: Vec<Forecast>,
    /// Messages in the unroutable queue; `None` if unknown.
    pub unroutable: Option<u64>,
    /// By how many it grew over the last minute, or since the first look.
    pub unroutable_last_minute: Option<i64>,
    /// Since when the oldest has been there, as far as it says, or since when there has been
    /// one; `None` if there is none, or if [`Sources::ages`](super::Sources) is off.
    pub unroutable_oldest: Option<Timestamp>,
    /// Messages in the parked queue; `None` if unknown.
    pub parked: Option<u64>,
    /// By how many it grew over the last minute, or since the first look.
    pub parked_last_minute: Option<i64>,
    /// Since when the oldest has been there, likewise.
    pub parked_oldest: Option<Timestamp>,
    /// Failed messages that no retry service has taken yet; `None` if unknown.
    pub retry: Option<u64>,
    /// What the retry service of this process did, by app, the busiest first; `None` without
    /// one.
    pub retries: Option<Vec<AppRetries>>,
    /// What the canary of this process saw; `None` without one.
    pub canary: Option<CanaryView>,
    /// The last check of the whole broker; `None` if there was none yet.
    pub checkup: Option<Checkup>,
    /// Who is bound to the dispatch exchange; `None` without the management API, or if
    /// [`Sources::apps`](super::Sources) is off.
    pub apps: Option<Vec<AppBinding>>,
    /// Recalls, and what was recalled, of applications whose messages can be; `None` without
    /// the management API.
    pub recalls: Option<Vec<RecallView>>,
    /// The gateways of the set; `None` without the management API.
    pub gateways: Option<Vec<GatewayView>>,
    /// The delays of others that are watched as well; none unless somebody asked for it.
    pub layouts: Vec<LayoutView>,
    /// What could not be checked, and why.
    pub unchecked: Vec<String>,
    /// What all this means, in words.
    pub verdict: Verdict,
}

/// Whether the broker answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BrokerView {
    /// Whether it does.
    pub reachable: bool,
    /// Since when that has been so.
    pub since: Option<Timestamp>,
    /// Why it does not answer.
    pub problem: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// The address it was looked for at.
    pub address: String,
}

/// Whether the set is as it should be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SetView {
    /// Whether nothing differs; `None` if it was not compared yet.
    pub ok: Option<bool>,
    /// Whether anything of the set is there; `None` if it was not compared yet.
    pub installed: Option<bool>,
    /// Whether there is none and nobody misses it: the delays of others are watched, and no
    /// set was there since this process began.
    pub awaited: bool,
    /// When it was compared last.
    pub at: Option<Timestamp>,
    /// Whether bindings were compared too: only the management API knows them.
    pub bindings_compared: bool,
    /// What differs.
    pub problems: Vec<String>,
    /// What could not be compared, and why.
    pub unchecked: Vec<String>,
    /// Whether some of that can be compared in a few seconds.
    #[serde(skip)]
    pub unchecked_for_now: bool,
}

/// One level.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Level {
    /// 27 to 0: the bit.
    pub level: u8,
    /// The name of its queue.
    pub queue: String,
    /// How long a message waits here, in ms.
    pub wait_ms: u64,
    /// Messages that wait; `None` if the queue is missing or unknown.
    pub ready: Option<u64>,
    /// Messages whose time is up and that the next queue has not confirmed. Under load there
    /// are always some, each for a moment, and many when many fall due together. `None`
    /// without the management API.
    pub handing_on: Option<u64>,
    /// Those among them that do not move: the broker counted them repeatedly, for 15 s at
    /// least. `None` without the management API.
    pub stuck: Option<u64>,
    /// Since when it has had messages that do not move, as far as that was seen.
    pub stuck_since: Option<Timestamp>,
    /// Messages that enter per second: the mean over the level's own time, or over ten
    /// seconds if that is shorter.
    pub in_per_s: Option<f64>,
    /// Messages that leave per second, likewise; `None` until it was watched for that long.
    pub out_per_s: Option<f64>,
    /// Messages that publishers send into this level, over half a minute, as far as the
    /// broker says.
    pub published_per_s: Option<f64>,
    /// Messages that pass from this level or a higher one to a lower one or out: what was
    /// published there less what the depths grew by, over half a minute.
    pub passing_per_s: Option<f64>,
    /// The change of the depth, over the last minute.
    pub change_per_s: Option<f64>,
}

/// What comes in and what goes out.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Rates {
    /// Messages published to the entry exchange, including those without a delay; as far as
    /// the broker says.
    pub entry_per_s: Option<f64>,
    /// Messages that leave the levels for their destination.
    pub dispatch_per_s: Option<f64>,
}

/// What falls due within some time. Stuck messages are not included: they are due already.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Forecast {
    /// `minute`, `hour`, `day`.
    pub within: String,
    /// The same in seconds.
    pub seconds: u64,
    /// Not fewer than this, if nothing is held up.
    pub at_least: u64,
    /// An estimate, as if ages and delays were spread evenly.
    pub estimate: u64,
    /// Not more than this.
    pub at_most: u64,
}

/// What happened to an app's failed messages since this process started.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AppRetries {
    /// The app key, or `(other)`, or `(unreadable)`.
    pub app: String,
    /// Messages that are tried again.
    pub retries: u64,
    /// Those of the last minute.
    pub last_minute: u64,
    /// Messages that were parked.
    pub parked: u64,
}

/// A gateway for `x-delay`. What is wrong with it is among the findings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GatewayView {
    /// Its name, which is also that of the exchange that consumers are bound to.
    pub gateway: String,
    /// Messages that no daemon has taken yet.
    pub waiting: u64,
    /// Messages that came back from the levels, and that daemons hold or have not taken yet.
    pub due: u64,
    /// How many channels of daemons take messages; a daemon has several.
    pub channels: u64,
}

/// Recalls of an application, and what was recalled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RecallView {
    /// The app key.
    pub app: String,
    /// Recalls that are there, as of the last sweep of this process; `None` without one.
    pub pending: Option<u64>,
    /// Those of them that are over and were not swept up.
    pub over: Option<u64>,
    /// Recalls that this process has swept up.
    pub swept: Option<u64>,
    /// How many may be pending: `max_recalls`.
    pub quota: u64,
    /// Messages that were recalled and are kept.
    pub recalled: u64,
    /// Its journal, if it has one.
    pub journal: Option<JournalView>,
}

/// The journal of an application: copies of what was published, whether it still waits or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct JournalView {
    /// How many copies it has.
    pub copies: u64,
    /// How many older ones its limits have cut off, as of the last look at both of its ends;
    /// `None` before, and if it was all that were in it.
    pub cut_off: Option<u64>,
    /// When the oldest copy was published.
    pub oldest: Option<Timestamp>,
    /// When the last one was published, as of that look.
    pub newest: Option<Timestamp>,
    /// What is scheduled, as of that look; `None` before, or if the journal is too long to be read
    /// each time.
    pub schedule: Option<JournalSchedule>,
}

/// What a canary saw.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
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
#[derive(Debug, Clone, PartialEq, Serialize)]
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
#[derive(Debug, Clone, PartialEq, Serialize)]
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Checkup {
    /// When the check was done; `None` if it failed.
    pub at: Option<Timestamp>,
    /// What was found, the worst first.
    pub findings: Vec<Finding>,
    /// What could not be checked, and why.
    pub unchecked: Vec<String>,
}
