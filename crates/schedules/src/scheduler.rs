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
use delayline_core::{backoff::wait, codec::AppKey, topology::Topology};
use delayline_settings::Settings;

use crate::{
    book::{Batch, Book, Entry, Record, State, Through},
    definition::{Times, name::ScheduleName},
    due::Due,
    error::{ScheduleError, doing},
    follower::Follower,
    line::{ByOwner, Line, base, by_owner},
    place::{asked, is_recallable, owners, session},
    plan::{Rules, plan},
    stats::{ScheduleLine, ScheduleStats},
    writer::Writer,
};

/// How often it looks whether to stop, or whether it is a schedule's time.
const TICK: Duration = Duration::from_millis(200);

/// How often it looks for the first schedule; how soon it connects again.
const LOOK_EVERY: Duration = Duration::from_secs(5);
const LOOK_RARELY: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_secs(2);

/// How often it looks for applications that manage their schedules themselves, and how soon again for one
/// whose stream was lost.
const LOOK_FOR_APPS: Duration = Duration::from_secs(20);
const LOST_FOR: Duration = Duration::from_secs(60);

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
    /// When the streams of applications were lost.
    lost: HashMap<AppKey, Instant>,
    complained: Option<String>,
}

impl Scheduler {
    /// For the set of the settings; nothing is asked yet.
    #[must_use]
    pub fn new(settings: Settings, stats: Arc<ScheduleStats>) -> Self {
        let topology = Topology::new(settings.topology.clone());
        let (recallable, times) = (HashMap::new(), HashMap::new());
        let (again, totals, lost) = (BTreeMap::new(), BTreeMap::new(), HashMap::new());
        Self { settings, topology, stats, recallable, times, again, totals, lost, complained: None }
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
        if let Some((false, _)) = asked(&self.settings, &self.topology, None)? {
            return Ok(());
        }
        let mut session = session(&self.settings)?;
        let follower = match Follower::open(&self.settings, &self.topology, &mut session, None) {
            Ok(Some(follower)) => follower,
            Ok(None) | Err(ScheduleError::NoSet { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let queue = self.topology.names().schedules_turn();
        let turn = session.consume(&queue, 10).map_err(doing("waiting for the turn to publish"))?;
        let mut writer = Writer::open(&self.settings, &self.topology)?;
        writer.join()?;
        let book = Book::default();
        let (of_apps, lost, held, recaller) = (Vec::new(), Vec::new(), None, None);
        let mut line = Line { session, book, follower, of_apps, lost, writer, turn, held, recaller };
        let worked = self.work(&mut line, stop);
        self.lost.extend(line.lost.into_iter().map(|app| (app, Instant::now())));
        worked
    }

    fn work(&mut self, line: &mut Line, stop: &AtomicBool) -> Result<(), ScheduleError> {
        let (mut renewed, mut counted, mut looked) = (Instant::now(), Instant::now(), None::<Instant>);
        while !stop.load(Ordering::Relaxed) {
            if looked.is_none_or(|at| at.elapsed() > LOOK_FOR_APPS) {
                looked = Some(Instant::now());
                self.look_for_apps(line);
            }
            if line.takes_turn()? {
                // Whatever the daemon before wrote is read before anything is done.
                line.catch_up()?;
                self.again.clear();
                self.stats.lock().leads = true;
                info!("schedules are published here");
            }
            line.read(TICK)?;
            if line.held.is_some() {
                self.lead(line, stop)?;
                self.complained = None;
            }
            if renewed.elapsed() > RENEW_EVERY && line.held.is_some() {
                renewed = Instant::now();
                line.writer.join()?;
            }
            if counted.elapsed() > TICK * 5 {
                counted = Instant::now();
                line.book.forget_before(Timestamp::now() - KEPT);
                line.of_apps.iter_mut().for_each(|follower| follower.weigh(&line.book));
                self.count(&line.book);
            }
        }
        Ok(())
    }

    /// Begins to read the schedules of applications that manage them themselves since a moment.
    fn look_for_apps(&mut self, line: &mut Line) {
        self.lost.extend(line.lost.drain(..).map(|app| (app, Instant::now())));
        self.lost.retain(|_, at| at.elapsed() < LOST_FOR);
        let apps = owners(&self.settings, &self.topology).unwrap_or_else(|error| {
            // The known ones are published.
            warn!("applications that manage their schedules are not noticed: {error}");
            Vec::new()
        });
        for app in apps {
            let is_known = line.of_apps.iter().any(|follower| follower.owner.as_ref() == Some(&app));
            if !is_known && !self.lost.contains_key(&app) {
                line.follow(&self.topology, &app);
            }
        }
    }

    fn lead(&mut self, line: &mut Line, stop: &AtomicBool) -> Result<(), ScheduleError> {
        let (due, skipped) = self.due(line)?;
        line.write(skipped, Record::Published)?;
        for chunk in due.chunks(CHUNK) {
            if stop.load(Ordering::Relaxed) || line.takes_turn()? {
                break;
            }
            // Of a schedule that was changed meanwhile, nothing more is published.
            line.read(Duration::ZERO)?;
            self.publish(line, chunk)?;
            self.recall(line)?;
        }
        // After what takes their place is published: at worst, both arrive.
        self.recall(line)?;
        line.copy(Timestamp::now())
    }

    /// Recalls messages of changed schedules.
    fn recall(&mut self, line: &mut Line) -> Result<(), ScheduleError> {
        let now = Timestamp::now();
        for (revision, sent, handle) in line.book.to_recall(RECALLS) {
            let over = handle.due().is_some_and(|due| due <= now);
            if !over && self.is_recallable(handle.app(), &mut line.session)? {
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
            line.book.recalled(&revision, &sent);
        }
        let done = line.book.all_recalled();
        line.write(by_owner(done.iter().map(|it| (&it.0, it.clone()))), Record::Recalled)
    }

    /// The occurrences to publish now, in their order, and the schedules whose occurrences were all left out.
    fn due(&mut self, line: &mut Line) -> Result<(Vec<Due>, ByOwner<Through>), ScheduleError> {
        let now = Timestamp::now();
        let unit = self.settings.topology.unit;
        let (mut due, mut skipped) = (Vec::new(), ByOwner::new());
        let Line { session, book, .. } = line;
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
                let through = Through { name: name.clone(), rev, through };
                skipped.entry(name.owner()).or_default().push(through);
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
            let Some(entry) = line.book.get(&due.name).filter(|it| it.definition.rev == due.rev) else {
                continue;
            };
            let spec = &entry.definition.spec;
            let Some((_, Some(times))) = self.times.get(&due.name) else { continue };
            let so_far = Through { name: due.name.clone(), rev: due.rev, through: due.at };
            through.insert(&due.name, so_far);
            let (wire, sent) = match due.message(spec, times.zone(), unit, base) {
                Ok(message) => message,
                Err(error) => {
                    warn!("schedule {}: its occurrence at {} is not published: {error}", due.name, due.at);
                    self.totals.entry(due.name.clone()).or_default().1 += 1;
                    continue;
                }
            };
            wires.push((&due.name, wire));
            bodies.entry(&due.name).or_insert_with(|| spec.body.clone());
            let (app, messages) = (spec.app.clone(), Vec::new());
            let batch = Batch { name: due.name.clone(), rev: due.rev, app, messages };
            batches.entry(&due.name).or_insert(batch).messages.push(sent);
        }
        line.write(by_owner(batches), Record::Ahead)?;
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
        line.write(by_owner(through), Record::Published)
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
            let times = Times::checked(&definition.spec, unit)
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
