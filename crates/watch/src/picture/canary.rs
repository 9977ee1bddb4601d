//! The canary's part of a picture.

use std::time::Duration;

use crate::canary::{CanaryState, Watched};

use super::{CanaryView, Lateness, ProbeView};

impl CanaryView {
    /// `None` if there is no canary.
    pub(super) fn of(watched: &Watched) -> Option<Self> {
        let (running, problem) = match watched.state() {
            CanaryState::Off => return None,
            CanaryState::Running(_) => (true, None),
            CanaryState::Paused(reason) => (false, Some(reason)),
        };
        let (figures, last) = (watched.figures(), watched.last());
        let probes = figures.probes.iter().map(|(probe, figures)| ProbeView {
            levels: probe.to_string(),
            late_ms: last.get(probe).copied().map(ms),
            overdue: figures.overdue,
            missing: figures.missing,
        });
        let lateness = watched.history().into_iter().map(|moment| {
            let mut late = moment.late;
            late.sort_unstable();
            Lateness {
                at: moment.at,
                arrived: moment.arrived,
                middle_ms: late.get(late.len() / 2).copied().map(ms),
                worst_ms: (moment.arrived > 0).then(|| ms(moment.latest)),
                overdue_ms: ms(moment.overdue),
            }
        });
        Some(Self {
            running,
            problem,
            sent: figures.total(|probe| probe.sent),
            arrived: figures.total(|probe| probe.arrived),
            overdue: figures.total(|probe| probe.overdue),
            missing: figures.total(|probe| probe.missing),
            twice: figures.total(|probe| probe.twice),
            probes: probes.collect(),
            lateness: lateness.collect(),
        })
    }
}

fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10_000.0).round() / 10.0
}
