//! All metrics.

/// How a metric behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It grows until the process ends.
    Counter,
    /// It goes up and down.
    Gauge,
    /// It counts durations by length.
    Histogram,
    /// It is always 1; its labels are the information.
    Info,
}

/// A metric: its name without the suffixes for kind and unit, its unit, and its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Family {
    /// The name, without unit and without `_total`.
    pub name: &'static str,
    /// The unit, which follows the name.
    pub unit: Option<&'static str>,
    /// How it behaves.
    pub kind: Kind,
    /// Its meaning; the exposition adds a full stop.
    pub help: &'static str,
}

impl Family {
    /// The name as used in a query; for a histogram, that of its buckets.
    #[must_use]
    pub fn series(&self) -> String {
        let unit = self.unit.map(|unit| format!("_{unit}")).unwrap_or_default();
        let ending = match self.kind {
            Kind::Counter => "_total",
            Kind::Gauge => "",
            Kind::Histogram => "_bucket",
            Kind::Info => "_info",
        };
        format!("{}{unit}{ending}", self.name)
    }
}

macro_rules! families {
    ($($id:ident: $kind:ident $name:literal $unit:expr, $help:literal;)*) => {
        $(pub(super) const $id: Family =
            Family { name: $name, unit: $unit, kind: Kind::$kind, help: $help };)*
        /// All of them.
        pub const NAMES: &[Family] = &[$($id),*];
    };
}

families! {
    BUILD: Info "delayline_build" None, "The version of delayline";
    SET: Info "delayline_set" None, "The set that is watched";
    SET_VERIFIED: Gauge "delayline_set_verified" None,
        "1 if every object and binding of the set matches its definition, 0 if not; absent if unknown";
    SET_PROBLEMS: Gauge "delayline_set_problems" None, "Differences between the set and its definition";
    FINDINGS: Gauge "delayline_findings" None, "Findings of a check of the whole broker, by severity";
    FOUND: Gauge "delayline_found" None,
        "1 for each kind of finding of a check of the whole broker, by code and, where known, by application";
    REACHABLE: Gauge "delayline_broker_reachable" None, "1 if the broker answers, 0 if not";
    REACHABLE_SINCE: Gauge "delayline_broker_state_since_timestamp" Some("seconds"),
        "Time at which the broker began to answer, or stopped answering";
    COUNTED: Gauge "delayline_counted_timestamp" Some("seconds"), "Time at which the queues were last counted";
    READY: Gauge "delayline_level_ready" Some("messages"), "Messages that wait in a level";
    STUCK: Gauge "delayline_level_stuck" Some("messages"),
        "Due messages of a level that do not move: the broker has counted them repeatedly";
    HANDING_ON: Gauge "delayline_level_handing_on" Some("messages"),
        "Due messages of a level that the next queue has not confirmed; under load there are always \
         some, each for a moment";
    HELD_UP: Gauge "delayline_level_held_up" Some("seconds"),
        "How long messages of a level have been stuck; 0 if none is";
    READ: Gauge "delayline_management_read_timestamp" Some("seconds"),
        "Time at which the management API was last read";
    LAYOUT_COUNTED: Gauge "delayline_layout_counted_timestamp" Some("seconds"),
        "Time at which a layout was last counted";
    LAYOUT_SEEN: Gauge "delayline_layout_seen" None,
        "1 if a layout could be counted at the last check, 0 if not; absent if unknown";
    LAYOUT_READY: Gauge "delayline_layout_level_ready" Some("messages"),
        "Messages that wait in a level of a layout, by layout and level";
    LAYOUT_STUCK: Gauge "delayline_layout_level_stuck" Some("messages"),
        "Due messages of a layout that do not move, by layout and level";
    LAYOUT_HANDING_ON: Gauge "delayline_layout_level_handing_on" Some("messages"),
        "Due messages of a layout that the next queue has not confirmed, by layout and level";
    LAYOUT_HELD_UP: Gauge "delayline_layout_level_held_up" Some("seconds"),
        "How long messages of a layout have been stuck, by layout and level; 0 if none is";
    LAYOUT_GUARDED: Gauge "delayline_layout_guarded" None,
        "1 if every exchange of a layout has an alternate exchange, 0 if not, by layout";
    LAYOUT_UNROUTABLE: Gauge "delayline_layout_unroutable" Some("messages"),
        "Undeliverable messages that the guard of a layout keeps, by layout; absent without a guard";
    UNSTICKS: Counter "delayline_unsticks" None,
        "Attempts to make a stuck queue try again, by queue";
    UNSTICK_BLOCKED: Gauge "delayline_unstick_blocked" None,
        "Stuck queues that could not be made to try again, for lack of permissions or because of policies";
    GATEWAY_TAKEN: Counter "delayline_gateway_taken" Some("messages"),
        "Messages that publishers sent to a gateway, by gateway";
    GATEWAY_DELAYED: Counter "delayline_gateway_delayed" Some("messages"),
        "Messages of a gateway that were sent to the levels, by gateway";
    GATEWAY_DELIVERED: Counter "delayline_gateway_delivered" Some("messages"),
        "Messages that a gateway sent to its consumers' exchange, by gateway";
    GATEWAY_SET_ASIDE: Counter "delayline_gateway_set_aside" Some("messages"),
        "Messages of a gateway that could not be sent on and became unroutable, by gateway";
    GATEWAY_LATENESS: Histogram "delayline_gateway_lateness" Some("seconds"),
        "How late delayed messages of a gateway came back from the levels, by gateway; 0 if in time";
    UNROUTABLE: Gauge "delayline_unroutable" Some("messages"), "Unroutable messages";
    UNROUTABLE_AGE: Gauge "delayline_unroutable_oldest_age" Some("seconds"),
        "Age of the oldest unroutable message, as far as it is known";
    PARKED: Gauge "delayline_parked" Some("messages"), "Parked messages";
    PARKED_AGE: Gauge "delayline_parked_oldest_age" Some("seconds"),
        "Age of the oldest parked message, as far as it is known";
    RECALLED: Gauge "delayline_recalled" Some("messages"), "Recalled messages that are kept, by application";
    RECALLS_PENDING: Gauge "delayline_recalls_pending" None,
        "Pending recalls, by application, as of the last sweep";
    RECALLS_QUOTA: Gauge "delayline_recalls_quota" None,
        "Recalls that an application may have pending (max_recalls), by application";
    RECALLS_OVER: Gauge "delayline_recalls_over" None,
        "Recalls that could not be swept although their messages were due, by application";
    RECALLS_SWEPT: Counter "delayline_recalls_swept" None,
        "Recalls that this daemon has swept, by application";
    RECALLS_COUNTED: Gauge "delayline_recalls_counted_timestamp" Some("seconds"),
        "Time at which recalls were last counted";
    INDEXED: Gauge "delayline_indexed" Some("messages"),
        "Scheduled messages in the index, recalled ones included, by application; absent until its journal was read";
    INDEX_BEHIND: Gauge "delayline_index_behind" Some("seconds"),
        "Time since the index had all messages of a journal, by application";
    INDEX_BYTES: Gauge "delayline_index" Some("bytes"), "Size of the index";
    SCHEDULES_LEADS: Gauge "delayline_schedules_leads" None,
        "1 if this daemon publishes schedules, 0 if it waits for its turn";
    SCHEDULE_DUE: Gauge "delayline_schedule_next_due" Some("seconds"),
        "Time until the next occurrence, by schedule; negative if it was not published in time";
    SCHEDULE_PAUSED: Gauge "delayline_schedule_paused" None, "1 if a schedule is paused, 0 if not";
    SCHEDULE_PUBLISHED: Counter "delayline_schedule_published" Some("messages"),
        "Messages that this daemon published, by schedule";
    SCHEDULE_MISSED: Counter "delayline_schedule_missed" None,
        "Occurrences that were missed and not published, by schedule";
    RETRY_QUEUE: Gauge "delayline_retry_queue" Some("messages"), "Failed messages that no retry service has taken yet";
    RETRIES: Counter "delayline_retries" None, "Failed messages that were sent back to be tried again";
    PARKINGS: Counter "delayline_parkings" None, "Failed messages that were parked, by reason";
    CANARY_RUNNING: Gauge "delayline_canary_running" None,
        "1 if the canary can send and receive and gets confirms, 0 if not";
    CANARY_LATENESS: Histogram "delayline_canary_lateness" Some("seconds"),
        "How late canary messages arrived, by the levels they pass through";
    CANARY_SENT: Counter "delayline_canary_sent" None, "Canary messages that the broker confirmed";
    CANARY_ARRIVED: Counter "delayline_canary_arrived" None,
        "Canary messages that arrived, duplicates not counted";
    CANARY_TWICE: Counter "delayline_canary_duplicates" None, "Canary messages that arrived again";
    CANARY_LOST: Counter "delayline_canary_missing" None,
        "Canary messages that were missing for a minute, even if they came later";
    CANARY_OVERDUE: Gauge "delayline_canary_overdue" Some("messages"),
        "Canary messages that were due 5 s ago or more and have not arrived";
    CANARY_MISSING: Gauge "delayline_canary_missing" Some("messages"),
        "Canary messages that were due a minute ago or more and have not arrived";
    CANARY_OLDEST: Gauge "delayline_canary_oldest_overdue" Some("seconds"),
        "How long the oldest overdue canary message has been overdue; 0 if none is";
    PUBLISHED: Counter "delayline_router_published" None, "Messages written to the broker, repetitions included";
    CONFIRMED: Counter "delayline_router_confirmed" None, "Messages that the broker confirmed";
    NACKED: Counter "delayline_router_nacked" None, "Messages that the broker refused to store";
    RETURNED: Counter "delayline_router_returned" None, "Messages that were routed to no queue";
    REJECTED: Counter "delayline_router_rejected" None, "Messages for which the broker closed the channel";
    RECONNECTS: Counter "delayline_router_reconnects" None, "Reconnections";
    CONFIRM_TIME: Histogram "delayline_router_confirm_duration" Some("seconds"),
        "From writing a message to its confirm";
    CPU: Counter "process_cpu" Some("seconds"), "CPU time of this process";
    MEMORY: Gauge "process_resident_memory" Some("bytes"), "Resident memory of this process";
    STARTED: Gauge "process_start_time" Some("seconds"), "When this process started";
}
