//! Canaries, in the set and in the levels of others, and routers.

use std::fmt::Error;

use delayline_client::router::{Counts, Stats};

use crate::canary::{CanaryState, ProbeFigures, Watched};

use super::{Exposition, Labels, Out, f, flag, histogram, number};

impl Exposition {
    /// Each canary that is not off. That of the set has no layout.
    fn flying(&self) -> Vec<(Labels, &Watched)> {
        let of_set = self.inside.canary.iter().map(|(watched, _)| (vec![], &**watched));
        let of_layouts = self.inside.layouts.iter();
        let of_layouts =
            of_layouts.map(|(layout, canary)| (vec![("layout", layout.to_string())], &*canary.watched));
        of_set.chain(of_layouts).filter(|(_, watched)| watched.state() != CanaryState::Off).collect()
    }

    pub(super) fn canaries(&self, out: &mut Out<'_>) -> Result<(), Error> {
        let all = self.flying();
        let running = all.iter().map(|(labels, watched)| {
            (labels.clone(), flag(matches!(watched.state(), CanaryState::Running(_))))
        });
        out.samples(f::CANARY_RUNNING, running)?;
        let mut metric = out.family(f::CANARY_LATENESS)?;
        for (labels, watched) in &all {
            for (probe, counted) in &watched.lateness() {
                histogram(&mut metric.encode_family(&with(labels, "levels", probe.to_string()))?, counted)?;
            }
        }
        let all: Vec<_> = all.into_iter().map(|(labels, watched)| (labels, watched.figures())).collect();
        for (family, of) in [
            (f::CANARY_SENT, (|figures| figures.sent) as fn(&ProbeFigures) -> u64),
            (f::CANARY_ARRIVED, |figures| figures.arrived),
            (f::CANARY_TWICE, |figures| figures.twice),
            (f::CANARY_LOST, |figures| figures.ever_missing),
            (f::CANARY_OVERDUE, |figures| figures.overdue),
            (f::CANARY_MISSING, |figures| figures.missing),
        ] {
            let samples = all.iter().flat_map(|(labels, figures)| {
                let probes = figures.probes.iter();
                probes
                    .map(|(probe, figures)| (with(labels, "levels", probe.to_string()), number(of(figures))))
            });
            out.samples(family, samples)?;
        }
        let oldest = all
            .into_iter()
            .map(|(labels, figures)| (labels, figures.oldest_overdue.unwrap_or_default().as_secs_f64()));
        out.samples(f::CANARY_OLDEST, oldest)
    }

    pub(super) fn routers(&self, out: &mut Out<'_>) -> Result<(), Error> {
        let router = |name: &str, stats: &Stats| (vec![("router", name.to_owned())], stats.counts());
        let retry = self.inside.retry.iter().map(|(_, stats)| router("retry", stats));
        let canary = self.inside.canary.iter().map(|(_, stats)| router("canary", stats));
        let of_layouts = self.inside.layouts.iter().map(|(layout, canary)| {
            let (labels, counts) = router("canary", &canary.stats);
            (with(&labels, "layout", layout.to_string()), counts)
        });
        let routers: Vec<_> = retry.chain(canary).chain(of_layouts).collect();
        for (family, of) in [
            (f::PUBLISHED, (|counts| counts.published) as fn(&Counts) -> u64),
            (f::CONFIRMED, |counts| counts.confirmed),
            (f::NACKED, |counts| counts.nacked),
            (f::RETURNED, |counts| counts.returned),
            (f::REJECTED, |counts| counts.rejected),
            (f::RECONNECTS, |counts| counts.reconnects),
        ] {
            out.samples(family, routers.iter().map(|(labels, counts)| (labels.clone(), number(of(counts)))))?;
        }
        let mut metric = out.family(f::CONFIRM_TIME)?;
        for (labels, counts) in &routers {
            histogram(&mut metric.encode_family(labels)?, &counts.confirm)?;
        }
        Ok(())
    }
}

fn with(labels: &Labels, name: &'static str, value: String) -> Labels {
    labels.iter().cloned().chain([(name, value)]).collect()
}
