//! On what all this was measured.

use std::{fs, thread};

use serde::{Deserialize, Serialize};

use super::{inbox::PREFETCH, outbox::WINDOW, phase::BODY, scale::Scale};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Conditions {
    pub date: String,
    pub rabbitmq: String,
    /// `dead_letter_worker_consumer_prefetch`, if not the default of 32.
    pub prefetch: Option<u32>,
    pub cpu: String,
    pub cores: usize,
    pub kernel: String,
    /// The machine's load average before the broker was started.
    pub load_before: String,
    /// And when all was measured.
    pub load_after: String,
    /// The CPU seconds that the broker takes per second with nothing to do; they are
    /// not counted.
    pub idle_cpu: f64,
    /// The CPU seconds that the rest of the machine took per second before or after, the
    /// larger of both, while this one had nothing to do.
    pub foreign_cpu: f64,
    pub body_bytes: usize,
    pub window: usize,
    pub consumer_prefetch: u16,
    pub durability: String,
    pub client: String,
    pub kombu: Option<String>,
    pub seconds: f64,
    pub scale: Scale,
}

impl Conditions {
    pub fn new(scale: &Scale) -> Self {
        Self {
            date: jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string(),
            rabbitmq: String::new(),
            prefetch: None,
            cpu: cpu(),
            cores: thread::available_parallelism().map_or(0, usize::from),
            kernel: read("/proc/sys/kernel/osrelease"),
            load_before: load(),
            load_after: String::new(),
            idle_cpu: 0.0,
            foreign_cpu: 0.0,
            body_bytes: BODY,
            window: WINDOW,
            consumer_prefetch: PREFETCH,
            durability: "persistent messages, durable queues, a confirm and an acknowledgement for each"
                .into(),
            client: format!(
                "amiquip, as delayline {} uses it{}",
                env!("CARGO_PKG_VERSION"),
                if cfg!(debug_assertions) { ", in an unoptimised build" } else { "" }
            ),
            kombu: None,
            seconds: 0.0,
            scale: scale.clone(),
        }
    }
}

fn read(file: &str) -> String {
    fs::read_to_string(file).unwrap_or_default().trim().to_owned()
}

fn cpu() -> String {
    let text = read("/proc/cpuinfo");
    let line = text.lines().find_map(|line| line.strip_prefix("model name"));
    line.unwrap_or("unknown").trim_start_matches([' ', '\t', ':']).to_owned()
}

/// The load averages of the last 1, 5 and 15 minutes.
pub fn load() -> String {
    read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" ")
}
