//! Keeping the index as its journals are: reading new ones, following those that were read.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, TryRecvError},
    },
    thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use log::{Level, info, warn};

use delayline_amqp::{AmqpError, Consumer, Next, Session, StreamStart};
use delayline_core::{codec::AppKey, supervise::supervised};

use crate::{
    complaint::Complaint,
    scheduled::journal::{entry::Copy, reader::offset},
};

use super::{
    Index, Journal, State,
    build::{AGAIN, Built, LATER, Last, Unbuilt, build, row, too_large},
};

/// How many journals are read from their beginning at once.
const BUILDERS: usize = 4;

/// How many messages the broker delivers ahead of us, for each journal.
const WINDOW: u16 = 256;

/// How long to wait for new messages: if some arrived last time, and if none did.
const TICK: Duration = Duration::from_millis(20);
const IDLE: Duration = Duration::from_millis(100);

/// How often to find new journals, if they are known, and to measure a store.
const EVERY: Duration = Duration::from_secs(5);

/// How long the broker may have more messages without delivering any.
const PAUSE: Duration = Duration::from_secs(1);

/// How many due messages of a journal are removed at once, and how often.
const REMOVED: usize = 2_000;
const REMOVE: Duration = Duration::from_secs(1);

/// How soon the broker delivers a message that is in its stream.
const PROOF: Duration = Duration::from_secs(5);

/// How old a message may be that arrives, in seconds, unless more were waiting.
const DELIVERY: i64 = 5;

/// Runs until `stop` is set.
pub(super) fn run(index: &Index, journals: impl Fn() -> Option<Vec<String>>, stop: &AtomicBool) {
    thread::scope(|scope| {
        supervised(|| {
            let most = index.settings.index.bytes / BUILDERS as u64;
            let complaint = Complaint::of(module_path!());
            let mut follower = Follower { index, scope, parts: BTreeMap::new(), most, complaint };
            while !stop.load(Ordering::Relaxed) {
                let ended = follower.follow(&journals, stop);
                for part in follower.parts.values_mut() {
                    part.forget_reader();
                }
                let Err(error) = ended else { break };
                follower.set_problem(Some(error.to_string()));
                let until = Instant::now() + AGAIN;
                while Instant::now() < until && !stop.load(Ordering::Relaxed) {
                    thread::sleep(TICK);
                }
            }
            for part in follower.parts.values() {
                part.stop.store(true, Ordering::Relaxed);
            }
        })
    });
}

struct Follower<'scope, 'env> {
    index: &'env Index,
    scope: &'scope thread::Scope<'scope, 'env>,
    parts: BTreeMap<AppKey, Part>,
    /// The most bytes of one store.
    most: u64,
    /// Why the journals cannot be followed now.
    complaint: Complaint,
}

/// A journal and its reading.
struct Part {
    journal: Arc<Journal>,
    phase: Phase,
    /// Ends the thread that reads it.
    stop: Arc<AtomicBool>,
    /// When the broker last had no other messages, in seconds since the epoch.
    live: i64,
    /// When messages that were due are removed next, and when the store is measured.
    remove: Instant,
    measure: Instant,
    /// The size of its store.
    bytes: u64,
    /// How many turns it has missed, because questions were answered.
    missed: u32,
    /// Why it is not indexed.
    complaint: Complaint,
}

enum Phase {
    /// It is read from its beginning at this time.
    Waiting(Instant),
    Building(Receiver<Result<Built, Unbuilt>>),
    /// It was read, and is not followed now.
    Built,
    Following(Reader),
}

struct Reader {
    consumer: Consumer,
    /// The message that has to come first, as proof that this is the stream that was read.
    proof: Option<Last>,
    opened: Instant,
}

impl Part {
    fn new(app: &AppKey) -> Self {
        Self {
            journal: Arc::new(Journal::new(app.clone())),
            phase: Phase::Waiting(Instant::now()),
            stop: Arc::default(),
            live: 0,
            remove: Instant::now(),
            measure: Instant::now(),
            bytes: 0,
            missed: 0,
            complaint: Complaint::of(module_path!()),
        }
    }

    fn forget_reader(&mut self) {
        if matches!(self.phase, Phase::Following(_)) {
            self.phase = Phase::Built;
        }
    }

    /// Forgets everything, and reads it again at this time.
    fn restart(&mut self, at: Instant, problem: Option<String>) {
        *self.journal.lock() = State { problem, ..State::default() };
        self.bytes = 0;
        self.phase = Phase::Waiting(at);
    }
}

impl<'scope, 'env> Follower<'scope, 'env> {
    /// Follows the journals on a connection until `stop` is set or the connection ends.
    fn follow(
        &mut self,
        journals: &impl Fn() -> Option<Vec<String>>,
        stop: &AtomicBool,
    ) -> Result<(), AmqpError> {
        let mut session = Session::open_for(&self.index.settings.broker, "index")?;
        self.set_problem(None);
        let mut next = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            if Instant::now() >= next {
                let found = journals();
                next = Instant::now() + if found.is_some() { EVERY } else { PAUSE };
                self.find(found);
                self.limit();
            }
            let reading = self.parts.values().filter(|part| matches!(part.phase, Phase::Building(_))).count();
            let mut free = BUILDERS.saturating_sub(reading);
            let mut busy = false;
            for part in self.parts.values_mut() {
                match &mut part.phase {
                    Phase::Waiting(at) if free > 0 && *at <= Instant::now() => {
                        free -= 1;
                        let most = self.most;
                        let (index, journal, stop) =
                            (self.index, Arc::clone(&part.journal), Arc::clone(&part.stop));
                        let (sender, receiver) = mpsc::channel();
                        stop.store(false, Ordering::Relaxed);
                        self.scope.spawn(move || {
                            let _ = sender.send(build(index, &journal, most, &stop));
                        });
                        part.phase = Phase::Building(receiver);
                    }
                    Phase::Waiting(_) => {}
                    Phase::Building(receiver) => match receiver.try_recv() {
                        Ok(built) => part.built(built),
                        Err(TryRecvError::Empty) => {}
                        Err(TryRecvError::Disconnected) => {
                            part.built(Err(Unbuilt { reason: "reading it failed".into(), again: AGAIN }))
                        }
                    },
                    Phase::Built => part.open(self.index, &mut session)?,
                    Phase::Following(_) => busy |= part.pass(self.index)?,
                }
            }
            thread::sleep(if busy { TICK } else { IDLE });
        }
        Ok(())
    }

    /// Adds new journals, and removes those that are gone.
    fn find(&mut self, found: Option<Vec<String>>) {
        let Some(found) = found else { return };
        let names = self.index.topology.names();
        let apps: BTreeSet<_> =
            found.iter().filter_map(|queue| AppKey::new(names.app_of_journal(queue)?).ok()).collect();
        self.parts.retain(|app, part| {
            let stays = apps.contains(app);
            if !stays {
                part.stop.store(true, Ordering::Relaxed);
            }
            stays
        });
        for app in apps {
            self.parts.entry(app).or_insert_with_key(Part::new);
        }
        let all = self.parts.iter().map(|(app, part)| (app.clone(), Arc::clone(&part.journal)));
        *self.index.all_locked() = all.collect();
    }

    /// Removes the largest stores if all together are too large.
    fn limit(&mut self) {
        let mut sizes: Vec<_> = self.parts.iter().map(|(app, part)| (part.bytes, app.clone())).collect();
        let mut all: u64 = sizes.iter().map(|(bytes, _)| bytes).sum();
        sizes.sort();
        while let Some((bytes, app)) = sizes.pop()
            && (all > self.index.settings.index.bytes || bytes > self.most)
        {
            all -= bytes;
            let reason = too_large(bytes);
            warn!("the journal of `{app}` is not indexed: {reason}");
            if let Some(part) = self.parts.get_mut(&app) {
                part.restart(Instant::now() + LATER, Some(reason));
            }
        }
    }

    fn set_problem(&mut self, problem: Option<String>) {
        let text =
            |problem| format!("the index of scheduled messages is not renewed: {problem}; trying again");
        self.complaint.tell(Level::Warn, problem.as_ref().map(text));
        *self.index.problem.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }
}

impl Part {
    fn built(&mut self, built: Result<Built, Unbuilt>) {
        match built {
            Ok(built) => {
                self.complaint.tell(Level::Warn, None);
                info!(
                    "the journal of `{}` is indexed: {} messages were read",
                    self.journal.app, built.read.read
                );
                self.live = built.began.as_second();
                let Built { store, read, width, last, .. } = built;
                let progress = (read.read, read.read);
                let mut state = State { store: Some(store), read, width, last, progress, ..State::default() };
                state.measure();
                self.bytes = state.bytes;
                *self.journal.lock() = state;
                self.phase = Phase::Built;
            }
            Err(Unbuilt { reason, again }) => {
                let text = format!("the journal of `{}` is not indexed: {reason}", self.journal.app);
                self.complaint.tell(Level::Warn, Some(text));
                self.restart(Instant::now() + again, Some(reason));
            }
        }
    }

    /// Begins to follow the journal behind the last message that was read.
    fn open(&mut self, index: &Index, session: &mut Session) -> Result<(), AmqpError> {
        let proof = self.journal.lock().last;
        let from = proof.map_or(StreamStart::First, |last| StreamStart::Place(last.place));
        let queue = index.topology.names().journal(&self.journal.app);
        match session.read_stream(&queue, from, WINDOW) {
            Ok(consumer) => self.phase = Phase::Following(Reader { consumer, proof, opened: Instant::now() }),
            Err(error) if error.is_connection() => return Err(error),
            Err(error) => self.restart(Instant::now() + AGAIN, Some(error.to_string())),
        }
        Ok(())
    }

    /// Takes the messages that arrived. Returns whether there were any.
    fn pass(&mut self, index: &Index) -> Result<bool, AmqpError> {
        let Phase::Following(reader) = &mut self.phase else { return Ok(false) };
        let (now, unit) = (Timestamp::now(), index.topology.settings().unit.duration());
        let published = (self.live - DELIVERY, now.as_second() + 1);
        let (mut rows, mut arrived, mut acked, mut ended) = (Vec::new(), 0, None, None);
        let Some(mut state) = self.journal.turn(&mut self.missed) else { return Ok(false) };
        while arrived < WINDOW {
            let delivery = match reader.consumer.next(Duration::ZERO) {
                Next::Delivery(delivery) => delivery,
                Next::Timeout => break,
                Next::Ended(cause) => {
                    ended = Some(cause);
                    break;
                }
            };
            arrived += 1;
            let place = offset(&delivery).unwrap_or_else(|| state.last.map_or(0, |last| last.place + 1));
            let last = Last::of(place, &delivery);
            if let Some(proof) = reader.proof.take() {
                if proof != last {
                    drop(state);
                    self.restart(Instant::now(), None);
                    return Ok(true);
                }
            } else {
                state.read.read += 1;
                state.last = Some(last);
                match Copy::of(&delivery, place, &self.journal.app, unit).map(|copy| copy.dated(published)) {
                    None => state.read.odd += 1,
                    Some(entry) => rows.extend(row(entry, &delivery, &index.settings.index.headers, now)),
                }
            }
            acked = Some(delivery);
        }
        let width = rows.iter().map(super::store::Row::width).max().unwrap_or(0);
        state.width = state.width.max(width);
        let Some(store) = &mut state.store else { return Ok(false) };
        let mut stored = if rows.is_empty() { Ok(()) } else { store.add(&mut rows) };
        if stored.is_ok() && self.remove <= Instant::now() {
            let removed = store.remove_due(now, REMOVED);
            if removed.as_ref().is_ok_and(|removed| *removed < REMOVED) {
                self.remove = Instant::now() + REMOVE;
            }
            stored = removed.map(drop);
        }
        if let Err(error) = stored {
            drop(state);
            self.built(Err(error.into()));
            return Ok(true);
        }
        if self.measure <= Instant::now() {
            self.measure = Instant::now() + EVERY;
            state.measure();
            self.bytes = state.bytes;
        }
        // Only now: all messages that arrived before are stored.
        match ended {
            Some(Some(error)) if error.is_connection() => return Err(error),
            Some(_) => {
                drop(state);
                // The stream was deleted, or has another leader.
                self.phase = Phase::Built;
                return Ok(true);
            }
            None => {}
        }
        if reader.proof.is_some() {
            if reader.opened.elapsed() > PROOF {
                drop(state);
                self.restart(Instant::now(), None);
            }
            return Ok(false);
        }
        // The broker would have delivered more if it had more.
        if arrived < WINDOW / 2 && reader.opened.elapsed() > PAUSE {
            state.caught_up = Some(Instant::now());
            self.live = now.as_second();
        }
        drop(state);
        acked.map_or(Ok(()), |delivery| reader.consumer.ack_up_to(delivery))?;
        Ok(arrived > 0)
    }
}
