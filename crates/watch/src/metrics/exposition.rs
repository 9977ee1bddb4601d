//! One scrape.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{Error, Write},
    sync::Arc,
};

use jiff::Timestamp;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, text::encode},
    metrics::{MetricType, exemplar::Exemplar},
    registry::{Registry, Unit},
};

use crate::{
    canary::Watched,
    picture::{Checkup, LayoutView, Level, Picture, RecallView},
};
use delayline_admin::{Index, RecallStats, Severity, UnstickStats};
use delayline_client::{
    gateway::{GatewayCounters, GatewayCounts},
    retry::RetryStats,
    router::Stats,
};
use delayline_core::histogram::Counted;
use delayline_schedules::{ScheduleStats, State};

use super::{
    Kind,
    families::{self as f, Family},
    process,
};

/// The label of all apps that have no series of their own.
const OTHER: &str = "other";

/// The most schedules with series of their own, the first by name.
const MOST_SCHEDULES: usize = 1_000;

/// The counters of this process; each part is optional.
#[derive(Debug, Clone, Default)]
pub struct Inside {
    /// When the process started.
    pub started: Option<Timestamp>,
    /// The decisions of the retry service, and the counters of its routers.
    pub retry: Option<(Arc<RetryStats>, Arc<Stats>)>,
    /// The results of the canary, and the counters of its routers.
    pub canary: Option<(Arc<Watched>, Arc<Stats>)>,
    /// How often stuck queues were made to try again.
    pub unstick: Option<Arc<UnstickStats>>,
    /// The results of the sweeper.
    pub recalls: Option<Arc<RecallStats>>,
    /// The counters of gateways.
    pub gateways: Option<Arc<GatewayCounters>>,
    /// The schedules.
    pub schedules: Option<Arc<ScheduleStats>>,
    /// The index of scheduled messages.
    pub index: Option<Arc<Index>>,
}

/// The data of a scrape.
#[derive(Debug, Clone)]
pub struct Exposition {
    /// The latest picture.
    pub picture: Picture,
    /// The counters of this process.
    pub inside: Inside,
}

impl Exposition {
    /// The text, in the format of OpenMetrics 1.0.
    #[must_use]
    pub fn text(self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &registry);
        text
    }
}

impl Collector for Exposition {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut out = Out(encoder);
        self.broker(&mut out)?;
        self.levels(&mut out)?;
        self.layouts(&mut out)?;
        self.unstick(&mut out)?;
        self.gateways(&mut out)?;
        self.kept(&mut out)?;
        self.recalls(&mut out)?;
        self.schedules(&mut out)?;
        self.index(&mut out)?;
        self.retries(&mut out)?;
        self.canary(&mut out)?;
        self.routers(&mut out)?;
        self.process(&mut out)
    }
}

impl Exposition {
    fn broker(&self, out: &mut Out<'_>) -> Result<(), Error> {
        let Picture { set, vhost, broker, verified, unit_ms, .. } = &self.picture;
        out.info(f::BUILD, &[("version", &self.picture.version)])?;
        out.info(
            f::SET,
            &[
                ("set", set),
                ("vhost", vhost),
                ("unit_ms", &unit_ms.to_string()),
                ("broker", &broker.address),
                ("broker_version", broker.version.as_deref().unwrap_or_default()),
            ],
        )?;
        // A partial comparison without differences proves nothing, and an awaited set is not
        // missed.
        let proves = broker.reachable && !verified.is_partial() && !verified.awaited;
        let compared = verified.ok.filter(|_| proves);
        out.number(f::SET_VERIFIED, compared.map(flag))?;
        out.number(f::SET_PROBLEMS, compared.map(|_| count(verified.problems.len())))?;
        // A check that could not look has found nothing out.
        let looked = self.picture.checkup.as_ref();
        let looked = looked.filter(|checkup| checkup.at.is_some() && broker.reachable);
        let findings = looked.map(|checkup| {
            [Severity::Problem, Severity::Advice].map(|severity| {
                let found = checkup.findings.iter().filter(|finding| finding.severity == severity).count();
                (severity.to_string(), count(found))
            })
        });
        out.labelled(f::FINDINGS, "severity", findings.into_iter().flatten())?;
        let mut metric = out.family(f::FOUND)?;
        for (code, app) in looked.map(kinds).unwrap_or_default() {
            write(f::FOUND, &mut metric.encode_family(&[("code", code), ("app", app)])?, 1.0)?;
        }
        out.number(f::REACHABLE, Some(flag(broker.reachable)))?;
        out.number(f::REACHABLE_SINCE, broker.since.map(seconds))?;
        out.number(f::READ, self.picture.read.map(seconds))?;
        out.number(f::COUNTED, self.picture.counted.map(seconds))
    }

    fn levels(&self, out: &mut Out<'_>) -> Result<(), Error> {
        let by_level = |of: &dyn Fn(&Level) -> Option<f64>| {
            let levels = self.picture.levels.iter().filter(|_| self.picture.broker.reachable);
            levels.filter_map(|level| Some((format!("{:02}", level.level), of(level)?))).collect::<Vec<_>>()
        };
        out.labelled(f::READY, "level", by_level(&|level| level.ready.map(number)))?;
        out.labelled(f::STUCK, "level", by_level(&|level| level.stuck.map(number)))?;
        out.labelled(f::HANDING_ON, "level", by_level(&|level| level.handing_on.map(number)))?;
        out.labelled(f::HELD_UP, "level", by_level(&|level| held_up(level, self.picture.at)))
    }

    fn layouts(&self, out: &mut Out<'_>) -> Result<(), Error> {
        let all = &self.picture.layouts;
        let name = |view: &LayoutView| view.layout.to_string();
        let counted = all.iter().filter_map(|view| Some((name(view), seconds(view.counted?))));
        out.labelled(f::LAYOUT_COUNTED, "layout", counted)?;
        let looked = all.iter().filter(|view| view.counted.is_some() || view.problem.is_some());
        let looked: Vec<_> = looked.filter(|_| self.picture.broker.reachable).collect();
        let shown = looked.iter().map(|view| (name(view), flag(view.problem.is_none())));
        out.labelled(f::LAYOUT_SEEN, "layout", shown)?;
        let seen: Vec<_> = looked.into_iter().filter(|view| view.problem.is_none()).collect();
        for (family, of) in [
            (f::LAYOUT_READY, (|level, _| level.ready.map(number)) as fn(&Level, Timestamp) -> Option<f64>),
            (f::LAYOUT_STUCK, |level, _| level.stuck.map(number)),
            (f::LAYOUT_HANDING_ON, |level, _| level.handing_on.map(number)),
            (f::LAYOUT_HELD_UP, held_up),
        ] {
            let samples = seen.iter().flat_map(|view| {
                let labels =
                    |level: &Level| vec![("layout", name(view)), ("level", format!("{:02}", level.level))];
                let value = move |level| Some((labels(level), of(level, self.picture.at)?));
                view.levels.iter().filter_map(value)
            });
            out.samples(family, samples)?;
        }
        let guarded = seen.iter().map(|view| (name(view), flag(view.guarded == view.exchanges)));
        out.labelled(f::LAYOUT_GUARDED, "layout", guarded)?;
        let kept = seen.iter().filter_map(|view| Some((name(view), number(view.unroutable?))));
        out.labelled(f::LAYOUT_UNROUTABLE, "layout", kept)
    }

    fn unstick(&self, out: &mut Out<'_>) -> Result<(), Error> {
        let stats = self.inside.unstick.as_ref();
        let attempts = stats.map(|stats| stats.attempts()).unwrap_or_default();
        let attempts = attempts.into_iter().map(|(queue, count)| (queue, number(count)));
        out.labelled(f::UNSTICKS, "queue", attempts)?;
        out.number(f::UNSTICK_BLOCKED, stats.and_then(|stats| stats.blocked()).map(count))
    }

    fn gateways(&self, out: &mut Out<'_>) -> Result<(), Error> {
        let all = self.inside.gateways.as_ref().map(|gateways| gateways.counts()).unwrap_or_default();
        for (family, of) in [
            (f::GATEWAY_TAKEN, (|counts| counts.taken) as fn(&GatewayCounts) -> u64),
            (f::GATEWAY_DELAYED, |counts| counts.delayed),
            (f::GATEWAY_DELIVERED, |counts| counts.delivered),
            (f::GATEWAY_SET_ASIDE, |counts| counts.set_aside),
        ] {
            out.labelled(
                family,
                "gateway",
                all.iter().map(|(name, counts)| (name.clone(), number(of(counts)))),
            )?;
        }
        let mut metric = out.family(f::GATEWAY_LATENESS)?;
        for (name, counts) in &all {
            histogram(&mut metric.encode_family(&[("gateway", name.as_str())])?, &counts.late)?;
        }
        Ok(())
    }

    fn kept(&self, out: &mut Out<'_>) -> Result<(), Error> {
        let Picture { broker, at, unroutable, parked, retry, .. } = &self.picture;
        let Picture { unroutable_oldest, parked_oldest, .. } = &self.picture;
        let known = |depth: &Option<u64>| depth.filter(|_| broker.reachable).map(number);
        let age = |depth: &Option<u64>, oldest: Option<Timestamp>| match known(depth)? {
            depth if depth > 0.0 => oldest.map(|oldest| (seconds(*at) - seconds(oldest)).max(0.0)),
            _ => Some(0.0),
        };
        out.number(f::UNROUTABLE, known(unroutable))?;
        out.number(f::UNROUTABLE_AGE, age(unroutable, *unroutable_oldest))?;
        out.number(f::PARKED, known(parked))?;
        out.number(f::PARKED_AGE, age(parked, *parked_oldest))?;
        out.number(f::RETRY_QUEUE, known(retry))
    }

    fn recalls(&self, out: &mut Out<'_>) -> Result<(), Error> {
        let counts = self.inside.recalls.as_ref().map(|recalls| recalls.counts()).unwrap_or_default();
        let views = self.picture.recalls.iter().flatten().filter(|_| self.picture.broker.reachable);
        let of = |of: fn(&RecallView) -> Option<u64>| {
            let known = views.clone().filter_map(|view| Some((view.app.clone(), number(of(view)?))));
            known.collect::<Vec<_>>()
        };
        out.labelled(f::RECALLED, "app", of(|view| view.recalled))?;
        out.labelled(f::RECALLS_PENDING, "app", of(|view| view.pending))?;
        out.labelled(f::RECALLS_QUOTA, "app", of(|view| Some(view.quota)))?;
        out.labelled(f::RECALLS_OVER, "app", of(|view| view.over))?;
        // Also of applications that are gone: a counter does not shrink.
        let swept = counts.apps.iter().map(|(app, counts)| (app.clone(), number(counts.swept)));
        out.labelled(f::RECALLS_SWEPT, "app", swept)?;
        out.number(f::RECALLS_COUNTED, counts.at.map(seconds))
    }

    fn schedules(&self, out: &mut Out<'_>) -> Result<(), Error> {
        let counts = self.inside.schedules.as_ref().map(|schedules| schedules.counts());
        out.number(f::SCHEDULES_LEADS, counts.as_ref().map(|counts| flag(counts.leads)))?;
        let counts = counts.unwrap_or_default();
        let lines = || counts.schedules.iter().take(MOST_SCHEDULES);
        let now = seconds(Timestamp::now());
        let due = lines().filter_map(|(name, line)| Some((name.clone(), seconds(line.next?) - now)));
        out.labelled(f::SCHEDULE_DUE, "schedule", due)?;
        let paused = lines().map(|(name, line)| (name.clone(), flag(line.state == State::Paused)));
        out.labelled(f::SCHEDULE_PAUSED, "schedule", paused)?;
        let published = lines().map(|(name, line)| (name.clone(), number(line.published)));
        out.labelled(f::SCHEDULE_PUBLISHED, "schedule", published)?;
        let missed = lines().map(|(name, line)| (name.clone(), number(line.missed)));
        out.labelled(f::SCHEDULE_MISSED, "schedule", missed)
    }

    fn retries(&self, out: &mut Out<'_>) -> Result<(), Error> {
        let counts = self.inside.retry.as_ref().map(|(retries, _)| retries.by_app()).unwrap_or_default();
        let mut retries: BTreeMap<String, f64> = BTreeMap::new();
        let mut parked: BTreeMap<(String, String), f64> = BTreeMap::new();
        for (app, counts) in counts {
            let app = if app == RetryStats::OTHER { OTHER.to_owned() } else { app };
            for (reason, count) in &counts.parked {
                *parked.entry((app.clone(), reason.clone())).or_default() += number(*count);
            }
            *retries.entry(app).or_default() += number(counts.retries);
        }
        out.labelled(f::RETRIES, "app", retries)?;
        let mut metric = out.family(f::PARKINGS)?;
        for ((app, reason), count) in parked {
            write(f::PARKINGS, &mut metric.encode_family(&[("app", app), ("reason", reason)])?, count)?;
        }
        Ok(())
    }

    fn process(&self, out: &mut Out<'_>) -> Result<(), Error> {
        out.number(f::CPU, Some(process::cpu_seconds()))?;
        out.number(f::MEMORY, process::resident_bytes().map(number))?;
        out.number(f::STARTED, self.inside.started.map(seconds))
    }
}

/// How long messages of a level have been stuck.
fn held_up(level: &Level, now: Timestamp) -> Option<f64> {
    level.stuck?;
    Some(level.stuck_since.map_or(0.0, |since| (seconds(now) - seconds(since)).max(0.0)))
}

/// The labels of a sample.
type Labels = Vec<(&'static str, String)>;

/// Writes families.
struct Out<'a>(DescriptorEncoder<'a>);

impl Out<'_> {
    fn family(&mut self, family: Family) -> Result<MetricEncoder<'_>, Error> {
        let unit: Option<&'static Unit> = match family.unit {
            Some("seconds") => Some(&Unit::Seconds),
            Some("bytes") => Some(&Unit::Bytes),
            Some(_) => Some(&MESSAGES),
            None => None,
        };
        let kind = match family.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
            Kind::Info => MetricType::Info,
        };
        let mut help = String::new();
        write!(help, "{}.", family.help)?;
        self.0.encode_descriptor(family.name, &help, unit, kind)
    }

    fn info(&mut self, family: Family, labels: &[(&str, &str)]) -> Result<(), Error> {
        self.family(family)?.encode_info(&labels)
    }

    fn number(&mut self, family: Family, value: Option<f64>) -> Result<(), Error> {
        let mut metric = self.family(family)?;
        value.map_or(Ok(()), |value| write(family, &mut metric, value))
    }

    fn labelled(
        &mut self,
        family: Family,
        label: &'static str,
        samples: impl IntoIterator<Item = (String, f64)>,
    ) -> Result<(), Error> {
        self.samples(family, samples.into_iter().map(|(value, sample)| (vec![(label, value)], sample)))
    }

    fn samples(
        &mut self,
        family: Family,
        samples: impl IntoIterator<Item = (Labels, f64)>,
    ) -> Result<(), Error> {
        let mut metric = self.family(family)?;
        for (labels, sample) in samples {
            write(family, &mut metric.encode_family(&labels)?, sample)?;
        }
        Ok(())
    }
}

/// The unit that Prometheus has no name for.
static MESSAGES: std::sync::LazyLock<Unit> = std::sync::LazyLock::new(|| Unit::Other("messages".into()));

fn write(family: Family, metric: &mut MetricEncoder<'_>, value: f64) -> Result<(), Error> {
    match family.kind {
        Kind::Counter => metric.encode_counter(&value, None::<&Exemplar<Vec<(String, String)>, f64>>),
        _ => metric.encode_gauge(&value),
    }
}

fn histogram(metric: &mut MetricEncoder<'_>, counted: &Counted) -> Result<(), Error> {
    metric.encode_histogram::<Vec<(String, String)>>(counted.seconds, counted.count, &counted.buckets, None)
}

/// The findings, by code and application; the application is empty if it is unknown.
fn kinds(checkup: &Checkup) -> BTreeSet<(&str, &str)> {
    let findings = checkup.findings.iter();
    findings
        .flat_map(|finding| {
            let unknown = finding.apps.is_empty().then_some("");
            finding.apps.iter().map(String::as_str).chain(unknown).map(|app| (finding.code.as_str(), app))
        })
        .collect()
}

fn flag(yes: bool) -> f64 {
    f64::from(u8::from(yes))
}

fn count(number: usize) -> f64 {
    self::number(number as u64)
}

#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53, as Prometheus has it")]
fn number(count: u64) -> f64 {
    count as f64
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 are exact")]
fn seconds(time: Timestamp) -> f64 {
    time.as_millisecond() as f64 / 1_000.0
}

mod canary;
mod index;
#[cfg(test)]
mod tests;
