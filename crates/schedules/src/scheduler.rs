//! Publishing occurrences ahead, and recalling those of changed schedules.
//!
//! Several daemons may run. They consume the same queue, which has a single active consumer. The daemon that
//! holds a message of it publishes. A daemon that loses its connection loses its turn. It may publish some
//! more messages before it notices that: they have the ids that its successor's have.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use log::{info, warn};

use delayline_amqp::{AmqpError, Session};
use delayline_client::recall::{RecallError, Recaller};
use delayline_core::{
    backoff::wait,
    codec::{AppKey, Delay},
    message::Wire,
    topology::Topology,
};
use delayline_settings::Settings;

use crate::{
    book::{Batch, Book, Entry, Record, Sent, State, Through},
    definition::{Times, jitter_ms},
    error::{ScheduleError, doing},
    line::{Line, base},
    name::{ScheduleName, message_id},
    plan::{Rules, plan},
    stats::{ScheduleLine, ScheduleStats},
    store::{Follower, Writer, asked, is_recallable, size},
};

/// How often it looks whether to stop, or whether it is a schedule's time.
const TICK: Duration = Duration::from_millis(200);

/// How often it looks for the first schedule; how soon it connects again.
const LOOK_EVERY: Duration = Duration::from_secs(5);
const LOOK_RARELY: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_secs(2);

/// How many messages are published between two confirms, and recalled between two looks at the stream.
const CHUNK: usize = 1_000;
const RECALLS: usize = 200;

/// How often a daemon takes its turn anew. A broker closes the channel of a consumer that holds a message for
/// half an hour.
const RENEW_EVERY: Duration = Duration::from_secs(600);

/// How long it relies on what it knows of an application.
const KNOWN_FOR: Duration = Duration::from_secs(30);

/// How old the delays of messages may be when these are published. Older ones are computed anew.
const FRESH: SignedDuration = SignedDuration::from_secs(5);

/// For how long messages that were due are kept in mind.
const KEPT: SignedDuration = SignedDuration::from_mins(10);

/// How soon a schedule is planned again that cannot be.
const FAULTY: SignedDuration = SignedDuration::from_mins(1);

/// Publishes the occurrences of all schedules of a set.
#[derive(Debug)]
pub struct Scheduler {
    settings: Settings,
    topology: Topology,
    stats: Arc<ScheduleStats>,
    /// Whether messages of an application can be recalled, and when that was asked.
    recallable: HashMap<AppKey, (bool, Instant)>,
    /// The times of each revision; `None` if they cannot be computed here.
    times: HashMap<ScheduleName, (u64, Option<Times>)>,
    /// When each revision is planned next.
    again: BTreeMap<ScheduleName, (u64, Timestamp)>,
    /// How many messages were published, and how many occurrences were missed.
    totals: BTreeMap<ScheduleName, (u64, u64)>,
    complained: Option<String>,
}

/// An occurrence that is to be published.
struct Due {
    name: ScheduleName,
    rev: u64,
    at: Timestamp,
    recall: bool,
}

impl Scheduler {
    /// For the set of the settings; nothing is asked yet.
    #[must_use]
    pub fn new(settings: Settings, stats: Arc<ScheduleStats>) -> Self {
        let topology = Topology::new(settings.topology.clone());
        let (recallable, times) = (HashMap::new(), HashMap::new());
        let (again, totals) = (BTreeMap::new(), BTreeMap::new());
        Self { settings, topology, stats, recallable, times, again, totals, complained: None }
    }

    /// Publishes until `stop` is set, through restarts of the broker.
    pub fn run(mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let pause = match self.connected(stop) {
                // Without a management API, the broker logs each look as an error.
                Ok(()) => {
                    if self.settings.management.is_some() {
                        LOOK_EVERY
                    } else {
                        LOOK_RARELY
                    }
                }
                Err(error) => {
                    let text = format!("schedules are not published: {error}");
                    if self.complained.as_ref() != Some(&text) {
                        warn!("{text}");
                    }
                    self.complained = Some(text);
                    AGAIN
                }
            };
            self.stats.lock().leads = false;
            wait(stop, pause);
        }
    }

    /// Works on one connection, until it is lost or `stop` is set. Ends if there is no schedule yet.
    fn connected(&mut self, stop: &AtomicBool) -> Result<(), ScheduleError> {
        if let Some((false, _)) = asked(&self.settings, &self.topology)? {
            return Ok(());
        }
        let mut follower = match Follower::open(&self.settings, &self.topology) {
            Ok(Some(follower)) => follower,
            Ok(None) | Err(ScheduleError::NoSet { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let queue = self.topology.names().schedules_turn();
        let turn = follower.session.consume(&queue, 10).map_err(doing("waiting for the turn to publish"))?;
        let mut writer = Writer::open(&self.settings, &self.topology)?;
        writer.join()?;
        let mut line = Line { follower, writer, turn, held: None, recaller: None };
        let (mut renewed, mut counted) = (Instant::now(), Instant::now());
        while !stop.load(Ordering::Relaxed) {
            if line.takes_turn()? {
                // Whatever the daemon before wrote is read before anything is done.
                line.follower.catch_up(&mut line.writer)?;
                self.again.clear();
                self.stats.lock().leads = true;
                info!("schedules are published here");
            }
            let mut next = line.follower.next(TICK)?;
            while next.is_some() {
                next = line.follower.next(Duration::ZERO)?;
            }
            if line.held.is_some() {
                self.lead(&mut line, stop)?;
                self.complained = None;
            }
            if renewed.elapsed() > RENEW_EVERY && line.held.is_some() {
                renewed = Instant::now();
                line.writer.join()?;
            }
            if counted.elapsed() > TICK * 5 {
                counted = Instant::now();
                line.follower.book.forget_before(Timestamp::now() - KEPT);
                self.count(&line.follower.book);
            }
        }
        Ok(())
    }

    fn lead(&mut self, line: &mut Line, stop: &AtomicBool) -> Result<(), ScheduleError> {
        let (due, skipped) = self.due(line)?;
        if !skipped.is_empty() {
            let record = Record::Published(skipped);
            line.writer.write(&[&record])?;
            line.follower.book.enter(&record);
        }
        for chunk in due.chunks(CHUNK) {
            if stop.load(Ordering::Relaxed) || line.takes_turn()? {
                break;
            }
            // Of a schedule that was changed meanwhile, nothing more is published.
            while line.follower.next(Duration::ZERO)?.is_some() {}
            self.publish(line, chunk)?;
            self.recall(line)?;
        }
        // After what takes their place is published: at worst, both arrive.
        self.recall(line)?;
        let keeps = Topology::SCHEDULES_BYTES;
        let now = Timestamp::now();
        if line.follower.book.is_copy_due(keeps, 0)
            && line.follower.book.is_copy_due(keeps, size(&line.follower.book, now))
        {
            self.copy(line, now)?;
        }
        Ok(())
    }

    /// Recalls messages of changed schedules.
    fn recall(&mut self, line: &mut Line) -> Result<(), ScheduleError> {
        let now = Timestamp::now();
        for (revision, sent, handle) in line.follower.book.to_recall(RECALLS) {
            let over = handle.due().is_some_and(|due| due <= now);
            if !over && self.is_recallable(handle.app(), &mut line.follower.session)? {
                let recaller = match &line.recaller {
                    Some(recaller) => recaller,
                    None => {
                        let connected = Recaller::connect(self.settings.target());
                        line.recaller.insert(connected.map_err(ScheduleError::Connection)?)
                    }
                };
                match recaller.recall(&handle) {
                    Ok(_) | Err(RecallError::NotOffered { .. }) => {}
                    Err(RecallError::Amqp(error)) => {
                        return Err(doing("recalling messages of schedules")(error));
                    }
                    Err(error) => {
                        // It is delivered, although its schedule was changed.
                        warn!("schedule {}: {error}", revision.0);
                    }
                }
            }
            line.follower.book.recalled(&revision, &sent);
        }
        let done = line.follower.book.all_recalled();
        if !done.is_empty() {
            let record = Record::Recalled(done);
            line.writer.write(&[&record])?;
            line.follower.book.enter(&record);
        }
        Ok(())
    }

    /// The occurrences to publish now, in their order, and the schedules whose occurrences were all left out.
    fn due(&mut self, line: &mut Line) -> Result<(Vec<Due>, Vec<Through>), ScheduleError> {
        let now = Timestamp::now();
        let unit = self.settings.topology.unit;
        let (mut due, mut skipped) = (Vec::new(), Vec::new());
        let Follower { session, book, .. } = &mut line.follower;
        for entry in book.schedules() {
            let again = self.again.get(&entry.definition.name);
            if again.is_some_and(|(rev, again)| *rev == entry.definition.rev && *again > now) {
                continue;
            }
            let definition = &entry.definition;
            let (name, rev) = (definition.name.clone(), definition.rev);
            if definition.state != State::Active {
                self.again.insert(name, (rev, Timestamp::MAX));
                continue;
            }
            let recall = self.is_recallable(&definition.spec.app, session)?;
            let Some(times) = self.times_of(entry) else {
                self.again.insert(name, (rev, now + FAULTY));
                continue;
            };
            let plan = plan(entry, times, Rules { now, unit, recall });
            if plan.missed > 0 {
                warn!("schedule {name}: {} occurrences were missed and are not published", plan.missed);
                self.totals.entry(name.clone()).or_default().1 += plan.missed;
            }
            if let (true, Some(through)) = (plan.publish.is_empty(), plan.through) {
                skipped.push(Through { name: name.clone(), rev, through });
            }
            due.extend(plan.publish.into_iter().map(|at| Due { name: name.clone(), rev, at, recall }));
            self.again.insert(name, (rev, plan.again.unwrap_or(Timestamp::MAX)));
        }
        due.sort_by_key(|due| due.at);
        Ok((due, skipped))
    }

    /// Publishes messages. Their handles are on record before, and that they were published after.
    fn publish(&mut self, line: &mut Line, chunk: &[Due]) -> Result<(), ScheduleError> {
        let unit = self.settings.topology.unit;
        let base = base(unit);
        let (mut batches, mut through) = (BTreeMap::new(), BTreeMap::new());
        let (mut wires, mut bodies) = (Vec::new(), BTreeMap::new());
        for due in chunk {
            let Some(entry) = line.follower.book.get(&due.name).filter(|it| it.definition.rev == due.rev)
            else {
                continue;
            };
            let spec = &entry.definition.spec;
            let Some((_, Some(times))) = self.times.get(&due.name) else { continue };
            let late = jitter_ms(spec, &due.name, due.at, unit);
            let left = due.at.duration_since(base) + SignedDuration::from_millis(late);
            let left = Duration::try_from(left).unwrap_or(Duration::ZERO);
            let Ok(delay) = Delay::at_least_units(left, unit.duration()) else { continue };
            let mut message = spec.message(&due.name, due.at, times.zone(), delay);
            bodies.entry(&due.name).or_insert_with(|| std::mem::take(&mut message.body));
            message.body = Vec::new();
            if due.recall {
                message = message.with_id(message_id(&due.name, due.at, due.rev));
            }
            match Wire::at(&message, unit, base) {
                Ok(wire) => wires.push((&due.name, wire)),
                Err(error) => warn!("schedule {}: {error}", due.name),
            }
            let (app, messages) = (spec.app.clone(), Vec::new());
            let batch = Batch { name: due.name.clone(), rev: due.rev, app, messages };
            let batch = batches.entry(&due.name).or_insert(batch);
            batch.messages.push(Sent(due.at.as_millisecond(), late, delay));
            let so_far = Through { name: due.name.clone(), rev: due.rev, through: due.at };
            through.insert(&due.name, so_far);
        }
        if wires.is_empty() {
            return Ok(());
        }
        let record = Record::Ahead(batches.into_values().collect());
        line.writer.write(&[&record])?;
        line.follower.book.enter(&record);
        if Timestamp::now().duration_since(base) > FRESH {
            let reason = "this machine stood still, so the delays of messages are computed anew".into();
            return Err(doing("publishing occurrences")(AmqpError::Lost { reason }));
        }
        let entry = self.topology.names().entry();
        for (name, wire) in wires {
            let body = bodies.get(name).map(Vec::as_slice).unwrap_or_default();
            line.writer.push(&entry, wire.routing_key, (wire.properties, wire.headers), body);
            self.totals.entry(name.clone()).or_default().0 += 1;
        }
        line.writer.confirm().map_err(doing("publishing occurrences"))?;
        let record = Record::Published(through.into_values().collect());
        line.writer.write(&[&record])?;
        line.follower.book.enter(&record);
        Ok(())
    }

    /// Writes everything valid again, so that the broker can drop the oldest part of the stream.
    fn copy(&self, line: &mut Line, now: Timestamp) -> Result<(), ScheduleError> {
        let records = line.follower.book.copy(now);
        let bytes = size(&line.follower.book, now);
        for records in records.chunks(CHUNK) {
            line.writer.write(&records.iter().collect::<Vec<_>>())?;
        }
        line.writer.write(&[&Record::Copied(bytes)])?;
        info!("the {} records of schedules were written again ({bytes} bytes)", records.len());
        // It is read before the next one could be due.
        line.follower.catch_up(&mut line.writer)
    }

    fn is_recallable(&mut self, app: &AppKey, session: &mut Session) -> Result<bool, ScheduleError> {
        if let Some((known, at)) = self.recallable.get(app)
            && at.elapsed() < KNOWN_FOR
        {
            return Ok(*known);
        }
        let found = is_recallable(&self.settings, &self.topology, app, session)?;
        self.recallable.insert(app.clone(), (found, Instant::now()));
        Ok(found)
    }

    fn times_of(&mut self, entry: &Entry) -> Option<&Times> {
        let definition = &entry.definition;
        let unit = self.settings.topology.unit;
        let known = self.times.get(&definition.name).is_some_and(|(rev, _)| *rev == definition.rev);
        if !known {
            let times = Times::of(&definition.spec, unit)
                .inspect_err(|error| warn!("schedule {} is not published: {error}", definition.name))
                .ok();
            self.times.insert(definition.name.clone(), (definition.rev, times));
        }
        self.times.get(&definition.name)?.1.as_ref()
    }

    fn count(&mut self, book: &Book) {
        let now = Timestamp::now();
        let lines: Vec<_> = book
            .schedules()
            .map(|entry| {
                let active = entry.definition.state == State::Active;
                let next =
                    entry.next_ahead(now).or_else(|| self.times_of(entry)?.next(entry.published_through()));
                (entry.definition.name.to_string(), entry, next.filter(|_| active))
            })
            .collect();
        let mut counts = self.stats.lock();
        counts.schedules.clear();
        for (name, entry, next) in lines {
            let (published, missed) = self.totals.get(&entry.definition.name).copied().unwrap_or_default();
            let (app, state) = (entry.definition.spec.app.to_string(), entry.definition.state);
            counts.schedules.insert(name, ScheduleLine { app, state, next, published, missed });
        }
    }
}
