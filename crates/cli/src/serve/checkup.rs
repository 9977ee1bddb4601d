//! The doctor's findings, for the page and the metrics.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;

use delayline::topology::Topology;
use delayline_admin::{self as admin, DoctorOptions, DoctorReport};
use delayline_settings::Settings;
use delayline_watch::picture::{Findings, Note, Severity};

/// How often the doctor runs. It asks the management API for all queues and bindings of the
/// vhost.
const EVERY: Duration = Duration::from_secs(120);

/// How soon it runs again after a failure.
const AGAIN: Duration = Duration::from_secs(10);

/// How often to check whether to stop.
const TICK: Duration = Duration::from_millis(250);

/// Runs the doctor at intervals until `stop` is set.
pub(super) fn start(settings: Settings, found: Arc<Mutex<Option<Findings>>>, stop: Arc<AtomicBool>) {
    // Nobody waits for it to end: it changes nothing.
    thread::spawn(move || {
        let topology = Topology::new(settings.topology.clone());
        // Reading leaves messages where they are, however often it is done.
        let options = DoctorOptions { sample: 0, ..DoctorOptions::default() };
        let mut next = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            if Instant::now() < next {
                thread::sleep(TICK);
                continue;
            }
            let report = admin::doctor(&settings, &topology, &options);
            next = Instant::now() + if report.is_ok() { EVERY } else { AGAIN };
            let findings = match report {
                Ok(report) => findings(report),
                Err(error) => Findings { at: None, notes: Vec::new(), unchecked: vec![error.to_string()] },
            };
            *found.lock().unwrap_or_else(PoisonError::into_inner) = Some(findings);
        }
    });
}

fn findings(report: DoctorReport) -> Findings {
    let mut notes: Vec<_> = report
        .findings
        .into_iter()
        .map(|finding| Note {
            severity: match finding.severity {
                admin::Severity::Problem => Severity::Error,
                admin::Severity::Advice => Severity::Warning,
            },
            code: finding.code.to_string(),
            subject: finding.subject,
            text: finding.what,
            advice: finding.advice,
            apps: finding.apps,
        })
        .collect();
    notes.sort_by_key(|note| note.severity);
    Findings { at: Some(Timestamp::now()), notes, unchecked: report.unchecked }
}
