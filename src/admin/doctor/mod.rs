//! Looking for what would hurt, with what to do about it.
//!
//! The broker is asked first ([`Facts`]); then each check is a pure function of
//! what it said.

mod access;
mod broker;
mod code;
mod dead_letters;
mod facts;
mod set;
mod targets;
mod unroutable;

use std::time::Duration;

use serde::Serialize;

use crate::{settings::Settings, topology::Topology};

use super::AdminError;

pub use code::{FindingCode, Severity};

/// How thoroughly to look.
#[derive(Debug, Clone, PartialEq)]
pub struct DoctorOptions {
    /// For how long dead letters that are on their way are watched before they count
    /// as stuck; 20 s. Brokers renew their counts every 5 s. No time is spent if
    /// there are none.
    pub watch: Duration,
    /// How many unroutable messages are looked at to tell for whom they are; 1,000.
    pub sample: u64,
    /// How many messages per second into the set make the dead-letter prefetch worth a
    /// finding; 2,000.
    pub busy_rate: f64,
}

impl Default for DoctorOptions {
    fn default() -> Self {
        Self { watch: Duration::from_secs(20), sample: 1_000, busy_rate: 2_000.0 }
    }
}

/// Something that hurts, or would.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct HealthFinding {
    /// How bad it is.
    pub severity: Severity,
    /// What kind of finding; stable.
    pub code: FindingCode,
    /// What it is about: a queue, an exchange, a binding, a user, the broker.
    pub subject: String,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub advice: String,
    /// The applications that are concerned, as far as they are known.
    pub apps: Vec<String>,
}

impl HealthFinding {
    fn new(
        code: FindingCode,
        subject: impl Into<String>,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            severity: code.severity(),
            code,
            subject: subject.into(),
            what: what.into(),
            advice: advice.into(),
            apps: Vec::new(),
        }
    }

    fn about<T: ToString>(mut self, apps: impl IntoIterator<Item = T>) -> Self {
        self.apps = apps.into_iter().map(|app| app.to_string()).collect();
        self.apps.sort();
        self.apps.dedup();
        self
    }
}

/// What was found, and what could not be looked at.
#[derive(Debug, Clone, Serialize)]
pub struct DoctorReport {
    /// The name of the set.
    pub set: String,
    /// The findings, the worst first.
    pub findings: Vec<HealthFinding>,
    /// What could not be checked, and why.
    pub unchecked: Vec<String>,
}

/// Looks at a set, at what is bound to it, and at its broker. Changes nothing.
///
/// # Errors
/// If the broker cannot be asked, over AMQP or through its management API: nearly
/// all that there is to find is only seen there.
pub fn doctor(
    settings: &Settings,
    topology: &Topology,
    options: &DoctorOptions,
) -> Result<DoctorReport, AdminError> {
    let (facts, mut unchecked) = facts::gather(settings, topology, options)?;
    let mut findings = Vec::new();
    findings.extend(set::check(topology, &facts));
    if facts.installed(topology) {
        let targets = targets::targets(topology, &facts.observed);
        findings.extend(dead_letters::check(topology, &facts, &targets, options));
        findings.extend(targets::check(topology, &targets));
        findings.extend(targets::check_bindings(topology, &facts.observed));
        findings.extend(unroutable::check(topology, &facts));
        findings.extend(access::check(topology, &facts, &settings.broker.vhost, &mut unchecked));
    }
    findings.extend(broker::check(topology, &facts));
    findings.sort();
    findings.dedup();
    Ok(DoctorReport { set: topology.settings().set.to_string(), findings, unchecked })
}
