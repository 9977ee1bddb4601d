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

use serde::Serialize;

use crate::{settings::Settings, topology::Topology};

use super::AdminError;

pub use code::{FindingCode, Severity};

/// How thoroughly to look.
#[derive(Debug, Clone, PartialEq)]
pub struct DoctorOptions {
    /// How many unroutable messages are looked at to tell for whom they are; 1,000.
    /// With 0 they are only counted, and nothing is taken down from any queue: then a
    /// look costs some ten requests to the management API, and can be repeated often.
    pub sample: u64,
    /// How many messages per second into the set make the dead-letter prefetch worth a
    /// finding; 2,000.
    pub busy_rate: f64,
    /// Users that are meant to have power over the whole set, such as the one that
    /// installs it: what they may do is no finding. Administrators never need to be
    /// named.
    pub trusted: Vec<String>,
}

impl Default for DoctorOptions {
    fn default() -> Self {
        Self { sample: 1_000, busy_rate: 2_000.0, trusted: Vec::new() }
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

/// Looks at a set, at what is bound to it, and at its broker. Changes nothing, and
/// waits for nothing: what must be seen over time is in the statistics that brokers
/// keep.
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
        findings.extend(access::check(topology, &facts, options, &settings.broker.vhost, &mut unchecked));
    }
    findings.extend(broker::check(topology, &facts));
    findings.sort();
    findings.dedup();
    Ok(DoctorReport { set: topology.settings().set.to_string(), findings, unchecked })
}
