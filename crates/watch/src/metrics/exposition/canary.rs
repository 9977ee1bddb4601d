//! The canary and the routers.

use std::fmt::Error;

use delayline_client::router::{Counts, Stats};

use crate::canary::{CanaryState, ProbeFigures};

use super::{Exposition, Out, f, flag, histogram, number};

impl Exposition {
    pub(super) fn canary(&self, out: &mut Out<'_>) -> Result<(), Error> {
        let watched = self.inside.canary.as_ref().map(|(watched, _)| watched);
        let watched = watched.filter(|watched| watched.state() != CanaryState::Off);
        let running = watched.map(|watched| flag(matches!(watched.state(), CanaryState::Running(_))));
        out.number(f::CANARY_RUNNING, running)?;
        let mut metric = out.family(f::CANARY_LATENESS)?;
        for (probe, counted) in watched.map(|watched| watched.lateness()).unwrap_or_default() {
            histogram(&mut metric.encode_family(&[("levels", probe.to_string())])?, &counted)?;
        }
        let figures = watched.map(|watched| watched.figures());
        for (family, of) in [
            (f::CANARY_SENT, (|figures| figures.sent) as fn(&ProbeFigures) -> u64),
            (f::CANARY_ARRIVED, |figures| figures.arrived),
            (f::CANARY_TWICE, |figures| figures.twice),
            (f::CANARY_LOST, |figures| figures.ever_missing),
            (f::CANARY_OVERDUE, |figures| figures.overdue),
            (f::CANARY_MISSING, |figures| figures.missing),
        ] {
            let probes = figures.iter().flat_map(|figures| &figures.probes);
            out.labelled(family, "levels", probes.map(|(probe, it)| (probe.to_string(), number(of(it)))))?;
        }
        let oldest = figures.map(|figures| figures.oldest_overdue.unwrap_or_default().as_secs_f64());
        out.number(f::CANARY_OLDEST, oldest)
    }

    pub(super) fn routers(&self, out: &mut Out<'_>) -> Result<(), Error> {
        let router = |name: &str, stats: &Stats| (name.to_owned(), stats.counts());
        let retry = self.inside.retry.iter().map(|(_, stats)| router("retry", stats));
        let canary = self.inside.canary.iter().map(|(_, stats)| router("canary", stats));
        let routers: Vec<_> = retry.chain(canary).collect();
        for (family, of) in [
            (f::PUBLISHED, (|counts| counts.published) as fn(&Counts) -> u64),
            (f::CONFIRMED, |counts| counts.confirmed),
            (f::NACKED, |counts| counts.nacked),
            (f::RETURNED, |counts| counts.returned),
            (f::REJECTED, |counts| counts.rejected),
            (f::RECONNECTS, |counts| counts.reconnects),
        ] {
            let counts = routers.iter().map(|(name, counts)| (name.clone(), number(of(counts))));
            out.labelled(family, "router", counts)?;
        }
        let mut metric = out.family(f::CONFIRM_TIME)?;
        for (name, counts) in &routers {
            histogram(&mut metric.encode_family(&[("router", name.as_str())])?, &counts.confirm)?;
        }
        Ok(())
    }
}
