//! The doctor's findings, for the page and the metrics.

use std::{
    sync::{Arc, Mutex, PoisonError, atomic::AtomicBool},
    time::{Duration, Instant},
};

use jiff::Timestamp;

use delayline_admin::{self as admin, AdminError, DoctorOptions, Index, RecallStats};
use delayline_broker::Survey;
use delayline_core::{backoff::wait, supervise, topology::Topology};
use delayline_settings::Settings;
use delayline_watch::picture::Checkup;

/// How often the doctor runs, and the limit of its share of time: with 300, a 300th.
const EVERY: (Duration, u32) = (Duration::from_secs(120), 300);

/// How old its findings may become for that reason.
const MOST: Duration = Duration::from_secs(600);

/// How old the answers of the broker may be: the comparison of the set asks as well, at least this often.
const AGE: Duration = MOST;

/// How soon it runs again after a failure.
const AGAIN: Duration = Duration::from_secs(10);

/// Runs the doctor at intervals until `stop` is set.
pub(crate) fn start(
    (settings, survey): (Settings, Arc<Survey>),
    (recalls, index): (Option<Arc<RecallStats>>, Option<Arc<Index>>),
    found: Arc<Mutex<Option<Checkup>>>,
    stop: Arc<AtomicBool>,
) {
    // The thread is never joined: it changes nothing.
    supervise::start("doctor", move || {
        let topology = Topology::new(settings.topology.clone());
        let mut pause = Duration::ZERO;
        while wait(&stop, pause) {
            // Reading leaves messages where they are, however often it is done.
            let recalls = recalls.as_ref().map(|recalls| recalls.counts());
            let index = index.as_ref().map(|index| index.journals()).unwrap_or_default();
            let options = DoctorOptions { sample: 0, recalls, index, ..DoctorOptions::default() };
            let began = Instant::now();
            let looked = look(&settings, &topology, &options, &survey);
            pause = if looked.is_ok() { survey.rest(began.elapsed(), EVERY, MOST) } else { AGAIN };
            let checkup = looked
                .unwrap_or_else(|error| Checkup { unchecked: vec![error.to_string()], ..Checkup::default() });
            *found.lock().unwrap_or_else(PoisonError::into_inner) = Some(checkup);
        }
    });
}

/// The doctor's findings about the set, and about the watched layouts.
fn look(
    settings: &Settings,
    topology: &Topology,
    options: &DoctorOptions,
    survey: &Survey,
) -> Result<Checkup, AdminError> {
    let report = admin::doctor_seen(settings, topology, options, (survey, AGE))?;
    let mut checkup =
        Checkup { at: Some(Timestamp::now()), findings: report.findings, unchecked: report.unchecked };
    for layout in &settings.layouts {
        match admin::doctor_layout(settings, topology, layout, options) {
            Ok(report) => {
                checkup.findings.extend(report.findings);
                checkup.unchecked.extend(report.unchecked);
            }
            Err(error) => checkup.unchecked.push(format!("layout `{layout}`: {error}")),
        }
    }
    checkup.findings.sort();
    Ok(checkup)
}
