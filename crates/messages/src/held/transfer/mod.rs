//! Moving waiting messages from one set to another, or from a layout to a set, with their remaining delay.

mod due;
mod recalled;
mod report;
mod site;

use std::{
    cell::RefCell,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use jiff::Timestamp;

use crate::{
    drain::Decision, drain::Drain, drain::DrainError, drain::Outgoing, drain::past, error::AdminError,
    error::connect, error::doing, held::Bound, held::Kept, unstick::without_limit,
};
use delayline_amqp::{Delivery, Session};
use delayline_broker::ManagementApi;
use delayline_core::{
    backoff::Pace,
    codec::{Delay, Level, RoutingKey},
    message::headers::DUE,
    topology::Topology,
};
use delayline_settings::{Layout, Settings};

pub use due::Evidence;
pub use report::{TransferLevel, TransferReport};

use due::Place;
use recalled::RecalledKeys;
use report::{Stay, Tally};
use site::{Site, sites};

/// How often all levels are read at most. A message between two levels is in no readable queue; a later
/// round finds it.
const ROUNDS: u32 = 10;

/// The most messages, and bytes of bodies, that are taken out of a queue at a time. Taken messages wait, so
/// with a rate it is no more than is sent in a second.
const PAGE: (u32, u64) = (1_000, 64 * 1024 * 1024);

/// How many messages of each level a dry run reads.
const SAMPLE: u64 = 1_000;

/// The source of the messages: a set, or a layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransferSource {
    /// The set of the settings.
    Set,
    /// A layout.
    Layout(Layout),
}

/// How to move messages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferOptions {
    /// Also move messages whose remaining delay is unknown. They wait in their level again, so they are
    /// late by up to that time. Otherwise they stay.
    pub allow_late: bool,
    /// Also move messages for apps that no queue is bound for at the destination. Otherwise they stay.
    pub unbound: bool,
    /// Also move messages with an id. Their handles change, so they cannot be recalled by the
    /// old ones. Otherwise they stay. Recalled messages always stay.
    pub new_handles: bool,
    /// The most messages per second.
    pub rate: Option<u32>,
    /// Whether to change nothing.
    pub dry_run: bool,
}

/// The progress of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransferProgress {
    /// Messages that waited at the start.
    pub total: u64,
    /// Messages that were moved.
    pub moved: u64,
}

/// Moves all messages that wait in the levels of `from` to the set of `to`, which can be on another broker.
/// Each is acknowledged only after the destination has confirmed its copy, so no message is lost. If this
/// process is killed, up to 256 messages arrive twice, and running it again continues from there. No
/// message is early: the remaining delay is computed when a message is sent, and rounded up.
///
/// # Errors If a broker cannot be asked, the source or destination does not exist, or the management API is
/// missing.
pub fn transfer(
    (from, source): (&Settings, &TransferSource),
    to: &Settings,
    options: &TransferOptions,
    stop: &AtomicBool,
    mut progress: impl FnMut(TransferProgress),
) -> Result<TransferReport, AdminError> {
    let topology = Topology::new(to.topology.clone());
    let destination = topology.names().level_queue(Level::LOWEST);
    let mut session = Session::open(&to.broker).map_err(doing("connecting to the destination"))?;
    if session.queue_depth(&destination).map_err(doing("examining the destination"))?.is_none() {
        let (set, vhost) = (to.topology.set.to_string(), to.broker.vhost.clone());
        return Err(AdminError::NoDestination { set, vhost });
    }
    drop(session);
    let bound = match options.unbound {
        true => None,
        false if to.management.is_none() => {
            return Err(AdminError::NotConfigured { only: "shows the bindings at the destination" });
        }
        false => Some(Kept::Unroutable.bound(to, &topology)?.map_err(|reason| AdminError::NoManagement {
            reason: format!("the bindings at the destination: {reason}"),
        })?),
    };
    let api = site::api(from)?;
    let sites = sites(&api, from, source)?;
    let run = Run { from, source, to, topology: &topology, bound: bound.as_ref(), options, stop };
    let mut report =
        TransferReport::new(source_name(from, source), to.topology.set.to_string(), options.dry_run);
    report.begin(&sites);
    let total = report.waiting;
    if options.dry_run {
        for site in sites.iter().filter(|site| site.ready > Some(0)) {
            run.level(site, &mut report, &mut |_| {})?;
        }
        report.rounds = 1;
        return Ok(report);
    }
    let mut moved = 0;
    while report.rounds < ROUNDS && !report.ended() {
        report.rounds += 1;
        report.uncounted.clear();
        let _lifted = lift(&api, from, &sites)?;
        let before = report.moved;
        let mut counting = connect(&from.broker)?;
        for site in &sites {
            if stop.load(Ordering::Relaxed) {
                report.interrupted = true;
            }
            if report.ended() {
                break;
            }
            // Most levels are empty, and reading one takes connections of its own.
            if !report.stays_in(&site.queue.name) {
                match site.ready_now(&mut counting) {
                    Ok(Some(0)) => continue,
                    Ok(None) => {
                        report.uncounted.push(site.queue.name.clone());
                        continue;
                    }
                    Ok(Some(_)) | Err(_) => {}
                }
            }
            run.level(site, &mut report, &mut |sent| {
                progress(TransferProgress {
                    total: total.unwrap_or(0).max(moved + sent),
                    moved: moved + sent,
                });
            })?;
            moved = report.moved;
        }
        // A message between two levels was in neither when they were read.
        let counted = sites.iter().filter(|site| !report.uncounted.contains(&site.queue.name));
        let there: u64 = counted.filter_map(|site| site.ready_now(&mut counting).ok().flatten()).sum();
        report.unfinished = !report.ended() && (report.moved > before || there > report.stay());
        if !report.unfinished {
            break;
        }
    }
    Ok(report)
}

fn source_name(from: &Settings, source: &TransferSource) -> String {
    match source {
        TransferSource::Set => from.topology.set.to_string(),
        TransferSource::Layout(layout) => layout.to_string(),
    }
}

/// Lifts the delivery limits of the levels until it is dropped. Messages that stay are taken out and given
/// back, and from RabbitMQ 4.0 a queue counts that.
fn lift<'a>(
    api: &'a ManagementApi,
    from: &'a Settings,
    sites: &[Site],
) -> Result<impl Drop + 'a, AdminError> {
    let queues: Vec<_> =
        sites.iter().filter(|site| site.quorum).map(|site| site.queue.name.clone()).collect();
    Ok(without_limit(api, &from.broker.vhost, &queues)?)
}

struct Run<'a> {
    from: &'a Settings,
    source: &'a TransferSource,
    to: &'a Settings,
    topology: &'a Topology,
    bound: Option<&'a Bound>,
    options: &'a TransferOptions,
    stop: &'a AtomicBool,
}

impl Run<'_> {
    /// Moves the messages that wait in one level now.
    fn level(
        &self,
        site: &Site,
        report: &mut TransferReport,
        sent: &mut dyn FnMut(u64),
    ) -> Result<(), AdminError> {
        let tally = RefCell::new(Tally::default());
        // Read anew for each level, since an application may recall messages meanwhile.
        let recalled = RefCell::new(RecalledKeys::of(self.from));
        let mut pace = Pace::new(self.options.rate);
        let page = self.options.rate.unwrap_or(PAGE.0).clamp(1, PAGE.0);
        let limit = if self.options.dry_run { SAMPLE } else { u64::MAX };
        let passed = past(self.from, &site.queue, limit, || {
            tally.borrow_mut().begin();
            let mut decided = 0;
            let drained = Drain::new(self.from, &site.queue)
                .to(self.to)
                .at_most(limit)
                .in_pages(u16::try_from(page).unwrap_or(u16::MAX), PAGE.1)
                .until(self.stop)
                .run(
                    |delivery| {
                        let decision =
                            self.decide(site, delivery, &mut recalled.borrow_mut(), &mut tally.borrow_mut());
                        if matches!(decision, Decision::Send(_)) {
                            decided += 1;
                            sent(decided);
                            pace.wait();
                        }
                        decision
                    },
                    |_| {},
                )?;
            Ok((drained, ()))
        });
        let mut passed = match passed {
            Ok(passed) => passed,
            // A dry run may only count here.
            Err(DrainError::DeliveryLimit { .. }) if self.options.dry_run => {
                report.not_examined(&site.queue.name);
                return Ok(());
            }
            Err(DrainError::Unanswered { queue, .. }) => {
                report.uncounted.push(queue);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        passed.aside.refuse(&mut passed.drained, |_| true);
        let checked = recalled.into_inner().checked();
        report.note(&site.queue.name, &passed.drained, tally.into_inner());
        checked
    }

    /// What happens to a message.
    fn decide(
        &self,
        site: &Site,
        delivery: &Delivery,
        recalled: &mut RecalledKeys<'_>,
        tally: &mut Tally,
    ) -> Decision {
        let key = match self.read(&delivery.routing_key) {
            Ok(key) => key,
            Err(reason) => return tally.malformed(reason),
        };
        let place = Place {
            hop: site.hop,
            delay: key.delay,
            key: &delivery.routing_key,
            unit: site.unit,
            before: &site.before(key.delay),
            nservicebus: matches!(self.source, TransferSource::Layout(layout) if layout.is_nservicebus()),
        };
        if !place.is_right() {
            return tally.malformed(format!("its key does not lead through `{}`", site.queue.name));
        }
        // With a new key the recalled message would be delivered.
        match recalled.has(&key) {
            Some(false) => {}
            Some(true) => return tally.stays(Stay::Recalled),
            None => return Decision::Keep,
        }
        if self.bound.is_some_and(|bound| !bound.has(key.app.as_str())) {
            return tally.stays(Stay::Unbound(key.app.to_string()));
        }
        if key.id().is_some() && !self.options.new_handles {
            return tally.stays(Stay::WithId);
        }
        let now = Timestamp::now();
        let (due, by) = place.due(&delivery.headers, now);
        if by == Evidence::Nothing && !self.options.allow_late {
            return tally.stays(Stay::Untold);
        }
        let ahead = Duration::try_from(due.duration_since(now)).unwrap_or_default();
        let unit = self.to.topology.unit.duration();
        let Ok(delay) = Delay::at_least_units(ahead, unit) else {
            return tally.malformed("its remaining delay is longer than the destination can wait".into());
        };
        let mut onward = RoutingKey::new(delay, key.app.clone());
        if let Some(id) = key.id() {
            match onward.with_id(id.clone()) {
                Ok(with_id) => onward = with_id,
                Err(error) => return tally.malformed(error.to_string()),
            }
        }
        let mut outgoing = Outgoing::of(delivery, self.topology.names().entry(), onward.encode());
        outgoing.headers.insert(DUE.into(), due.as_millisecond().into());
        let stay = site.unit * site.hop.units();
        tally.moved(by, if by == Evidence::Nothing { stay } else { Duration::ZERO });
        match self.options.dry_run {
            true => Decision::Keep,
            false => Decision::Send(outgoing.into()),
        }
    }

    /// The delay and the app that a key of the source means.
    fn read(&self, key: &str) -> Result<RoutingKey, String> {
        match self.source {
            TransferSource::Set => {
                key.parse().map_err(|error: delayline_core::codec::RoutingKeyError| error.to_string())
            }
            TransferSource::Layout(layout) => {
                let read = layout.read(key).map_err(|error| error.to_string())?;
                let app = delayline_core::codec::AppKey::new(read.destination);
                let app = app.map_err(|error| format!("its destination cannot be an app key: {error}"))?;
                Ok(RoutingKey::new(read.delay, app))
            }
        }
    }
}
