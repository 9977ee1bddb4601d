//! Reading a journal from its beginning to its end.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use delayline_amqp::{AmqpError, Consumer, Delivery, Next, STREAM_OFFSET, Session, StreamStart};
use delayline_core::{codec::AppKey, message::Value, topology::Topology};
use delayline_settings::Settings;

use crate::{error::AdminError, error::JournalUnread, error::doing, error::refuse_without_set};

use super::{
    entry::{Copy, Entry},
    timeline::{SKEW, Timeline},
};

/// How many messages the broker delivers ahead of us. Together with the size of a message, this is the
/// memory for reading.
const PREFETCH: u16 = 1_000;

/// How many messages are acknowledged at once.
const ACK_EVERY: u16 = PREFETCH / 4;

/// How long the broker may take to deliver the counted messages.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long it may take for the first message of a journal that may have none. The same for the next
/// message if the last one is unknown.
const EMPTY: Duration = Duration::from_secs(3);

/// The age of the broker's count of messages at most: it counts every five seconds.
const COUNTED: Duration = Duration::from_secs(6);

/// If no message follows for this long, a message is the last. If this is too short, only messages
/// published in the last moment are missed.
const LAST: Duration = Duration::from_millis(250);

/// How many probes find out when messages were published: for a list, and for an estimate.
const PROBES: usize = 1_000;
const FEW_PROBES: usize = 64;

/// How many messages are read one by one, and how far apart they are.
const FEW: usize = 100;
const FAR: u64 = 1_000;

/// How often the stop flag of the caller is checked.
const TICK: Duration = Duration::from_millis(100);

/// Whether all messages of a journal were cut off, if the broker counts `copies` and delivers none. Each
/// file of a stream that follows another begins with an entry of the broker, which is counted and never
/// delivered. Without a message, only the last of several files is left.
pub const fn is_emptied(copies: u64) -> bool {
    copies == 1
}

/// How far a journal was read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct JournalRead {
    /// The stream.
    pub queue: String,
    /// How many messages were read.
    pub read: u64,
    /// How many older ones its limits of age and size cut off. It is unknown which of them still wait.
    pub cut_off: u64,
    /// Whether its limits cut off all its messages, as they do with a message that is larger than the
    /// journal may be. Then `cut_off` is 0, since their number is unknown.
    pub emptied: bool,
    /// How many entries are no delayed messages of this application, such as an entry with a malformed
    /// routing key. Such a message exists nowhere else, and is not delivered.
    pub odd: u64,
    /// How many messages were left out because their headers cannot be read, if headers select.
    pub unreadable: u64,
    /// Whether it was interrupted, so that later ones are missing.
    pub interrupted: bool,
}

/// The parameters of reading, and the stop flag.
pub(super) struct Reading<'a> {
    pub(super) settings: &'a Settings,
    pub(super) topology: &'a Topology,
    pub(super) app: &'a AppKey,
    pub(super) stop: &'a AtomicBool,
}

impl Reading<'_> {
    /// Hands each delayed message of the application to `each`, from the oldest to the last at the start.
    /// `progress` gets the number of read messages, and their total, from time to time.
    pub(super) fn run(
        &self,
        mut each: impl FnMut(Entry, &Delivery),
        mut progress: impl FnMut(u64, u64),
    ) -> Result<JournalRead, AdminError> {
        let queue = self.topology.names().journal(self.app);
        let mut report = JournalRead { queue: queue.clone(), ..JournalRead::default() };
        let begin = || {
            let end = self.end(&queue)?;
            if end == End::Empty {
                return Ok(None);
            }
            let mut session = self.open()?;
            let consumer = self.consume(&mut session, &queue, StreamStart::First)?;
            Ok::<_, AdminError>(Some((end, session, consumer)))
        };
        let Some(mut reading) = begin()? else { return Ok(report) };
        let (mut first, mut unacknowledged, mut again) = (None, 0, true);
        let mut at = None;
        let mut dates = Dates::new(self, &queue, PROBES);
        loop {
            let (end, _, consumer) = &reading;
            let (limit, is_over) = match *end {
                End::At(end) if at >= Some(end) => (LAST, true),
                End::Unknown { .. } if at.is_some() => (EMPTY, true),
                _ => (PATIENCE, false),
            };
            let Some(delivery) = self.next(consumer, &queue, limit)? else {
                report.interrupted = self.stop.load(Ordering::Relaxed);
                if report.interrupted || is_over {
                    return Ok(report);
                }
                if report.read == 0 && matches!(*end, End::Unknown { copies } if is_emptied(copies.into())) {
                    report.emptied = true;
                    return Ok(report);
                }
                // The file to be read may have been cut off just then. RabbitMQ 3.10 does not go on with
                // the next file, and there may be none.
                if report.read == 0 && again {
                    again = false;
                    let Some(anew) = begin()? else { return Ok(report) };
                    reading = anew;
                    continue;
                }
                return Err(JournalUnread::Withheld {
                    queue,
                    read: report.read,
                    seconds: PATIENCE.as_secs(),
                }
                .into());
            };
            // A message with unreadable headers has no known place: it counts as behind the last.
            let here = offset(&delivery).unwrap_or_else(|| at.map_or(0, |at| at + 1));
            at = Some(here);
            let first = *first.get_or_insert(here);
            report.cut_off = first;
            report.read += 1;
            unacknowledged += 1;
            match dates.entry(&delivery, here)? {
                Some(entry) => each(entry, &delivery),
                None => report.odd += 1,
            }
            if unacknowledged >= ACK_EVERY {
                consumer.ack_up_to(delivery).map_err(doing(format!("reading `{queue}`")))?;
                unacknowledged = 0;
                progress(report.read, end.place().map_or(report.read, |end| (end + 1).saturating_sub(first)));
            }
            // Messages that are published meanwhile are not read forever.
            if end.place().is_some_and(|end| here > end.saturating_add(u64::from(PREFETCH))) {
                return Ok(report);
            }
        }
    }

    /// Hands the oldest messages to `each`, `most` at most, of a journal that has any. Returns how many
    /// older ones were cut off; `None` if the broker delivered none.
    pub(super) fn beginning(
        &self,
        most: u64,
        mut each: impl FnMut(Entry),
    ) -> Result<Option<u64>, AdminError> {
        let queue = self.topology.names().journal(self.app);
        let mut session = self.open()?;
        let consumer = self.consume(&mut session, &queue, StreamStart::First)?;
        let mut dates = None;
        let (mut first, mut limit) = (None, PATIENCE);
        // More are delivered only after some are acknowledged.
        for _ in 0..most.min(PREFETCH.into()) {
            let Some(delivery) = self.next(&consumer, &queue, limit)? else { break };
            let here = offset(&delivery).unwrap_or(0);
            first = first.or(Some(here));
            // The times matter only if older ones were cut off.
            let probes = if here == 0 { 0 } else { FEW_PROBES };
            let dates = dates.get_or_insert_with(|| Dates::new(self, &queue, probes));
            dates.entry(&delivery, here)?.into_iter().for_each(&mut each);
            limit = LAST;
        }
        Ok(first)
    }

    /// Hands the messages at these places to `each`, in this order, until `each` fails. Messages that the
    /// journal's limits cut off meanwhile are left out.
    pub(super) fn at<E: From<AdminError>>(
        &self,
        places: &BTreeSet<u64>,
        mut each: impl FnMut(u64, &Delivery) -> Result<(), E>,
    ) -> Result<(), E> {
        let (Some(first), Some(last)) = (places.first(), places.last()) else { return Ok(()) };
        let queue = self.topology.names().journal(self.app);
        let mut session = self.open()?;
        // Few that are far apart are read one by one.
        let apart = places.len() <= FEW && last - first > FAR;
        let runs = match apart {
            true => places.iter().map(|place| (*place, *place)).collect(),
            false => vec![(*first, *last)],
        };
        for (first, last) in runs {
            let prefetch = u16::try_from(last - first + 1).unwrap_or(PREFETCH).min(PREFETCH);
            let consumer = self.consume_few(&mut session, &queue, StreamStart::Place(first), prefetch)?;
            let (mut at, mut unacknowledged) = (None, 0);
            while at < Some(last) {
                let Some(delivery) = self.next(&consumer, &queue, PATIENCE)? else { break };
                let here = offset(&delivery).unwrap_or_else(|| at.map_or(first, |at| at + 1));
                at = Some(here);
                if places.contains(&here) {
                    each(here, &delivery)?;
                }
                unacknowledged += 1;
                if unacknowledged >= prefetch / 4 {
                    consumer.ack_up_to(delivery).map_err(doing(format!("reading `{queue}`")))?;
                    unacknowledged = 0;
                }
            }
        }
        Ok(())
    }

    /// The place of the first message after each of these starts, if one is delivered at once.
    pub(super) fn first_places(
        &self,
        queue: &str,
        starts: &[StreamStart],
    ) -> Result<Vec<Option<u64>>, AdminError> {
        let mut session = self.open()?;
        let consumers = starts.iter().map(|start| self.consume_few(&mut session, queue, *start, 1));
        let consumers = consumers.collect::<Result<Vec<_>, _>>()?;
        let mut limit = LAST;
        let places = consumers.iter().map(|consumer| {
            let delivery = self.next(consumer, queue, limit)?;
            // The others had the same time.
            if delivery.is_none() {
                limit = Duration::ZERO;
            }
            Ok(delivery.as_ref().and_then(offset))
        });
        places.collect()
    }

    /// Where it ends now.
    fn end(&self, queue: &str) -> Result<End, AdminError> {
        let mut session = self.open()?;
        let depth = session.queue_depth(queue).map_err(doing(format!("examining `{queue}`")))?;
        let Some(depth) = depth else {
            refuse_without_set(&mut session, self.topology)?;
            return Err(JournalUnread::NoJournal { app: self.app.to_string() }.into());
        };
        let consumer = self.consume(&mut session, queue, StreamStart::Last)?;
        let (mut end, mut copies) = (None, depth.ready);
        let mut limit = EMPTY;
        let began = Instant::now();
        // A journal that is published to without a pause has no end.
        while end.is_none() || began.elapsed() < PATIENCE {
            if let Some(delivery) = self.next(&consumer, queue, limit)? {
                end = offset(&delivery).or_else(|| end.map(|end| end + 1)).or(Some(0));
                limit = LAST;
                consumer.ack_up_to(delivery).map_err(doing(format!("reading `{queue}`")))?;
                continue;
            }
            if end.is_some() || copies > Some(0) || self.stop.load(Ordering::Relaxed) {
                break;
            }
            // A broker that is slow to deliver may have counted by now.
            let depth = session.queue_depth(queue).map_err(doing(format!("examining `{queue}`")))?;
            copies = depth.map_or(Some(0), |depth| depth.ready);
            if began.elapsed() >= COUNTED {
                break;
            }
        }
        Ok(match end {
            Some(end) => End::At(end),
            None if copies == Some(0) => End::Empty,
            None => End::Unknown { copies: copies.unwrap_or(0) },
        })
    }

    fn open(&self) -> Result<Session, AdminError> {
        Session::open_for(&self.settings.broker, "journal").map_err(AdminError::Connection)
    }

    fn consume(&self, session: &mut Session, queue: &str, from: StreamStart) -> Result<Consumer, AdminError> {
        self.consume_few(session, queue, from, PREFETCH)
    }

    fn consume_few(
        &self,
        session: &mut Session,
        queue: &str,
        from: StreamStart,
        prefetch: u16,
    ) -> Result<Consumer, AdminError> {
        session.read_stream(queue, from, prefetch).map_err(doing(format!("reading `{queue}`")))
    }

    /// The next message; `None` if none comes in time, or the caller stopped.
    fn next(
        &self,
        consumer: &Consumer,
        queue: &str,
        limit: Duration,
    ) -> Result<Option<Delivery>, AdminError> {
        let deadline = Instant::now() + limit;
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match consumer.next(left.min(TICK)) {
                Next::Delivery(delivery) => return Ok(Some(delivery)),
                Next::Timeout if left.is_zero() => return Ok(None),
                Next::Timeout => {}
                Next::Ended(cause) => {
                    let ended = || AmqpError::Lost { reason: "the consumer ended".into() };
                    return Err(doing(format!("reading `{queue}`"))(cause.unwrap_or_else(ended)));
                }
            }
        }
    }
}

/// Where a journal ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// It has no message.
    Empty,
    /// The place of the last one.
    At(u64),
    /// The broker counts so many, but the newest file has none, and 3.10 does not search older files for
    /// the last message.
    Unknown { copies: u32 },
}

impl End {
    /// The place of the last message, where it is known.
    fn place(self) -> Option<u64> {
        match self {
            Self::At(place) => Some(place),
            Self::Empty | Self::Unknown { .. } => None,
        }
    }
}

/// Finds the due times of messages. The broker is asked for times only if a message has none of its own, or
/// one that does not fit its place.
struct Dates<'a> {
    reading: &'a Reading<'a>,
    queue: &'a str,
    probes: usize,
    timeline: Option<Timeline>,
    /// When the newest message so far was published, by its own time, in seconds since the epoch.
    newest: i64,
}

impl<'a> Dates<'a> {
    fn new(reading: &'a Reading<'a>, queue: &'a str, probes: usize) -> Self {
        Self { reading, queue, probes, timeline: None, newest: 0 }
    }

    /// The entry of a delivered copy; `None` if it is no delayed message of the application.
    fn entry(&mut self, delivery: &Delivery, place: u64) -> Result<Option<Entry>, AdminError> {
        let unit = self.reading.topology.settings().unit.duration();
        let Some(copy) = Copy::of(delivery, place, self.reading.app, unit) else { return Ok(None) };
        if let Some(published) = copy.claimed_publishing()
            && self.timeline.is_none()
            && published >= self.newest.saturating_sub(SKEW)
            && published <= Timestamp::now().as_second().saturating_add(SKEW)
        {
            self.newest = self.newest.max(published);
            return Ok(Some(copy.at_its_own_time()));
        }
        if self.timeline.is_none() {
            self.timeline = Some(Timeline::probe(self.reading, self.queue, self.probes)?);
        }
        let published = self.timeline.as_ref().map(|it| it.published(place));
        Ok(published.map(|published| copy.dated(published)))
    }
}

pub(super) fn offset(delivery: &Delivery) -> Option<u64> {
    delivery.headers.get(STREAM_OFFSET).and_then(Value::as_i64).and_then(|offset| u64::try_from(offset).ok())
}
