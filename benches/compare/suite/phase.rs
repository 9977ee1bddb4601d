//! Publishing some messages and waiting for them, once.

use std::{
    collections::{BTreeSet, HashMap},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use delayline_core::{message::Value, topology::ExchangeKind};
use delayline_measure::ledger::Summary;

use super::{
    Fallible,
    broker::{FILL, Vhost},
    inbox::{Arrival, Inbox, write_id},
    layouts::Layout,
    ledger::{self, Sent},
    outbox::{Address, Outbox},
};

/// The bytes of a body.
pub const BODY: usize = 256;

/// How often what goes when it is not used is made again.
const RENEWAL: Duration = Duration::from_secs(1);

/// How long duplicates are waited for when everything has come.
const SPARE: Duration = Duration::from_millis(200);

/// What to do.
pub struct Phase<'a> {
    /// The delay of each message, in units.
    pub delay: &'a dyn Fn(u64) -> u64,
    pub most: u64,
    /// Publishing ends then, in any case.
    pub limit: Duration,
    /// Messages per second; as fast as they are confirmed if `None`.
    pub rate: Option<f64>,
    /// Past the entry, straight into the queue in which a message waits first.
    pub fill: bool,
    /// How long after the last is due they are waited for; nobody consumes if `None`.
    pub patience: Option<Duration>,
}

/// What came of it.
pub struct PhaseFigures {
    pub sums: Summary,
    /// How long the headers of a message were when it arrived, on average.
    pub header_bytes: f64,
    /// Messages confirmed per second, from the first publish to the last confirm.
    pub published_per_s: f64,
    /// Messages per second, from the first arrival to the last.
    pub arrived_per_s: f64,
    /// The time between those two.
    pub arriving: Duration,
    /// CPU seconds of the broker, without what it takes when idle.
    pub cpu: f64,
}

/// Runs it.
pub fn run(vhost: &mut Vhost<'_>, layout: &mut dyn Layout, plan: &Phase<'_>) -> Fallible<PhaseFigures> {
    static PHASES: AtomicU32 = AtomicU32::new(1);
    let phase = PHASES.fetch_add(1, Ordering::Relaxed);
    let inbox = plan.patience.map(|_| Inbox::open(&vhost.settings.broker, phase)).transpose()?;
    let mut outbox = Outbox::open(&vhost.settings.broker)?;
    let mut addresses = Addresses::new(plan, layout, vhost)?;
    let cpu = vhost.broker.cpu();
    let started = Instant::now();
    let (mut sent, mut body) = (Vec::new(), vec![b'x'; BODY]);
    let mut longest = started;
    for id in 0..plan.most {
        if let Some(rate) = plan.rate {
            keep_pace(&mut outbox, started + Duration::from_secs_f64(id as f64 / rate))?;
        }
        outbox.make_room()?;
        let at = Instant::now();
        if at - started >= plan.limit {
            break;
        }
        let delay = (plan.delay)(id);
        let address = addresses.of(delay, layout, vhost)?;
        write_id(&mut body, phase, id);
        let at = Instant::now();
        let delay = if layout.rounded(delay) == 0 { 0 } else { delay };
        sent.push(Sent { at, delay: vhost.unit() * u32::try_from(delay)? });
        longest = longest.max(at + vhost.unit() * u32::try_from(layout.rounded(delay.max(1)))?);
        match address.due_header {
            Some(name) => {
                let due = super::layouts::now_ms() + i64::try_from(delay * vhost.unit_ms)?;
                let mut headers = address.headers.clone();
                headers.insert(name.into(), Value::I64(due));
                outbox.publish(address, &headers, &body)
            }
            None => outbox.publish(address, &address.headers, &body),
        };
    }
    outbox.finish()?;
    let publishing = started.elapsed();
    let arrivals = match (inbox, plan.patience) {
        (Some(inbox), Some(patience)) => await_all(inbox, sent.len(), longest + patience)?,
        _ => Vec::new(),
    };
    let cpu = vhost.broker.cpu() - cpu - vhost.broker.idle * started.elapsed().as_secs_f64();
    if outbox.returned > 0 {
        return Err(format!("{} messages were returned: no queue took them", outbox.returned).into());
    }
    let arriving = match (arrivals.first(), arrivals.last()) {
        (Some(first), Some(last)) => last.at - first.at,
        _ => Duration::ZERO,
    };
    let bytes: usize = arrivals.iter().map(|arrival| arrival.header_bytes).sum();
    Ok(PhaseFigures {
        sums: ledger::sums(&sent, outbox.answers(), &arrivals),
        header_bytes: bytes as f64 / arrivals.len().max(1) as f64,
        published_per_s: per_second(sent.len(), publishing),
        arrived_per_s: per_second(arrivals.len(), arriving),
        arriving,
        cpu: cpu.max(0.0),
    })
}

/// Takes answers until it is time for the next message.
fn keep_pace(outbox: &mut Outbox, planned: Instant) -> Fallible<()> {
    while let Some(ahead) = planned.checked_duration_since(Instant::now()).filter(|ahead| !ahead.is_zero()) {
        if outbox.in_flight() == 0 {
            thread::sleep(ahead);
        } else {
            outbox.settle(0, planned)?;
        }
    }
    Ok(())
}

/// Waits until all have come, or it is too late.
fn await_all(inbox: Inbox, count: usize, until: Instant) -> Fallible<Vec<Arrival>> {
    while inbox.count() < count && Instant::now() < until && inbox.is_running() {
        thread::sleep(Duration::from_millis(10));
    }
    thread::sleep(SPARE);
    inbox.close()
}

pub fn per_second(count: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

/// The address of each delay, asked for as rarely as its users would.
struct Addresses {
    known: HashMap<u64, (Address, Instant)>,
    fill: bool,
    /// Exchanges that lead past the entry.
    fills: BTreeSet<String>,
}

impl Addresses {
    fn new(plan: &Phase<'_>, layout: &mut dyn Layout, vhost: &mut Vhost<'_>) -> Fallible<Self> {
        let mut addresses = Self { known: HashMap::new(), fill: plan.fill, fills: BTreeSet::new() };
        if plan.fill {
            // Nothing is to be declared while it fills.
            for id in 0..plan.most.min(1_000) {
                addresses.of((plan.delay)(id), layout, vhost)?;
            }
        }
        Ok(addresses)
    }

    fn of(&mut self, delay: u64, layout: &mut dyn Layout, vhost: &mut Vhost<'_>) -> Fallible<&Address> {
        let is_fresh =
            |(_, since): &(Address, Instant)| self.fill || !layout.is_renewed() || since.elapsed() < RENEWAL;
        if !self.known.get(&delay).is_some_and(is_fresh) {
            let mut address = layout.address(vhost, delay)?;
            if self.fill
                && let Some(queue) = layout.first_queue(delay)
            {
                let exchange = format!("{FILL}{queue}");
                if self.fills.insert(exchange.clone()) {
                    vhost.exchange(&exchange, ExchangeKind::Fanout)?;
                    vhost.bind_queue(&exchange, &queue, "")?;
                }
                address = Address { exchange, ..address };
            }
            self.known.insert(delay, (address, Instant::now()));
        }
        Ok(&self.known[&delay].0)
    }
}
