//! Reading a journal from its beginning to its end.

use std::{
    ops::ControlFlow,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use serde::Serialize;

use delayline_amqp::{AmqpError, Consumer, Delivery, Next, STREAM_OFFSET, Session, StreamStart};
use delayline_core::{codec::AppKey, message::Value, topology::Topology};
use delayline_settings::Settings;

use crate::{AdminError, doing, refuse_without_set};

/// How many messages the broker hands out ahead of us. Together with the size of a message,
/// this is what reading takes of memory.
const PREFETCH: u16 = 1_000;

/// How many messages are acknowledged at once.
const ACK_EVERY: u16 = PREFETCH / 4;

/// How long the broker may take to hand out what it says it has.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long it may take for the first message of a journal that may have none, since its count
/// is some seconds old; and for the next one if it is not known which is the last.
const EMPTY: Duration = Duration::from_secs(3);

/// How long nothing may come behind a message for it to be the last. Too short costs nothing
/// but what was published in the last moment.
const LAST: Duration = Duration::from_millis(250);

/// How often the caller's wish to stop is looked at.
const TICK: Duration = Duration::from_millis(100);

/// Whether all that was in a journal was cut off, if it hands out nothing although the broker
/// counts so many: each file of a stream that follows another begins with an entry of the
/// broker's own, which is counted and handed out to nobody. Without a message, that is the last
/// file of those that there were.
pub(crate) const fn is_emptied(copies: u64) -> bool {
    copies == 1
}

/// How far a journal was read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct JournalRead {
    /// The stream.
    pub queue: String,
    /// How many messages were read.
    pub read: u64,
    /// How many older ones its limits of age and size cut off. Those of them that still wait
    /// are not known.
    pub cut_off: u64,
    /// Whether its limits cut off all that was in it, as they do with a message that is larger
    /// than the journal may be. Then `cut_off` is 0, since nothing says how many those were.
    pub emptied: bool,
    /// How many entries are no delayed messages of this application, such as one with a
    /// malformed routing key: such a message is nowhere else, and is not delivered.
    pub odd: u64,
    /// Whether it was interrupted, so that later ones are missing.
    pub interrupted: bool,
}

/// Why a journal was not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JournalUnread {
    /// The application has none.
    #[error(
        "`{app}` has no journal: run `delayline app add {app} --recall --journal 90d`, and publish its \
         messages journalled (docs/recall.md)"
    )]
    NoJournal {
        /// The application.
        app: String,
    },
    /// The broker does not hand out what it has.
    #[error(
        "the broker handed out {read} messages of `{queue}` and then nothing for {} s, although there are \
         more; see whether the stream has a leader (rabbitmq-queues quorum_status, rabbitmq-streams \
         stream_status {queue})", PATIENCE.as_secs()
    )]
    Withheld {
        /// The stream.
        queue: String,
        /// How many came.
        read: u64,
    },
}

/// What reads a journal, and what stops it.
pub(super) struct Reading<'a> {
    pub(super) settings: &'a Settings,
    pub(super) topology: &'a Topology,
    pub(super) app: &'a AppKey,
    pub(super) stop: &'a AtomicBool,
}

impl Reading<'_> {
    /// Hands each message to `each`, from the oldest to the last one that was there when it
    /// began, unless that asks for an end before. `progress` gets how many were read, and how
    /// many there are, every now and then.
    pub(super) fn run(
        &self,
        mut each: impl FnMut(&Delivery) -> ControlFlow<(), Taken>,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<JournalRead, AdminError> {
        let queue = self.topology.names().journal(self.app);
        let mut report = JournalRead { queue: queue.clone(), ..JournalRead::default() };
        let begin = || {
            let end = self.end(&queue, |_| {})?;
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
                // The file that was to be read may have been cut off just then: RabbitMQ 3.10 does
                // not go on with the next one, and there may be none.
                if report.read == 0 && again {
                    again = false;
                    let Some(anew) = begin()? else { return Ok(report) };
                    reading = anew;
                    continue;
                }
                return Err(JournalUnread::Withheld { queue, read: report.read }.into());
            };
            // One whose headers cannot be read does not say where it is: behind the last.
            let here = offset(&delivery).unwrap_or_else(|| at.map_or(0, |at| at + 1));
            at = Some(here);
            let first = *first.get_or_insert(here);
            report.cut_off = first;
            report.read += 1;
            unacknowledged += 1;
            match each(&delivery) {
                ControlFlow::Continue(Taken::Yes) => {}
                ControlFlow::Continue(Taken::Odd) => report.odd += 1,
                ControlFlow::Break(()) => return Ok(report),
            }
            if unacknowledged >= ACK_EVERY {
                consumer.ack_up_to(delivery).map_err(doing(format!("reading `{queue}`")))?;
                unacknowledged = 0;
                progress(report.read, end.place().map_or(report.read, |end| (end + 1).saturating_sub(first)));
            }
            // Nobody reads what is published meanwhile for ever.
            if end.place().is_some_and(|end| here > end.saturating_add(u64::from(PREFETCH))) {
                return Ok(report);
            }
        }
    }

    /// Hands the oldest messages to `each`, so many at most, of a journal that has any. Returns
    /// how many older ones were cut off; `None` if nothing was handed out.
    pub(super) fn beginning(
        &self,
        most: u64,
        mut each: impl FnMut(&Delivery),
    ) -> Result<Option<u64>, AdminError> {
        let queue = self.topology.names().journal(self.app);
        let mut session = self.open()?;
        let consumer = self.consume(&mut session, &queue, StreamStart::First)?;
        let (mut first, mut limit) = (None, PATIENCE);
        // More are not handed out unless some are acknowledged.
        for _ in 0..most.min(PREFETCH.into()) {
            let Some(delivery) = self.next(&consumer, &queue, limit)? else { break };
            first = first.or(Some(offset(&delivery).unwrap_or(0)));
            each(&delivery);
            limit = LAST;
        }
        Ok(first)
    }

    /// Hands the last messages to `each`: those that the broker has written together.
    pub(super) fn last(&self, each: impl FnMut(&Delivery)) -> Result<(), AdminError> {
        self.end(&self.topology.names().journal(self.app), each).map(drop)
    }

    /// Where it ends now; `each` gets the last messages.
    fn end(&self, queue: &str, mut each: impl FnMut(&Delivery)) -> Result<End, AdminError> {
        let mut session = self.open()?;
        let depth = session.queue_depth(queue).map_err(doing(format!("looking at `{queue}`")))?;
        let Some(depth) = depth else {
            refuse_without_set(&mut session, self.topology)?;
            return Err(JournalUnread::NoJournal { app: self.app.to_string() }.into());
        };
        let consumer = self.consume(&mut session, queue, StreamStart::Last)?;
        let mut end = None;
        let mut limit = EMPTY;
        let began = Instant::now();
        // What is published all the time has no end.
        while end.is_none() || began.elapsed() < PATIENCE {
            let Some(delivery) = self.next(&consumer, queue, limit)? else { break };
            end = offset(&delivery).or_else(|| end.map(|end| end + 1)).or(Some(0));
            each(&delivery);
            limit = LAST;
            consumer.ack_up_to(delivery).map_err(doing(format!("reading `{queue}`")))?;
        }
        Ok(match end {
            Some(end) => End::At(end),
            None if depth.ready == 0 => End::Empty,
            None => End::Unknown { copies: depth.ready },
        })
    }

    fn open(&self) -> Result<Session, AdminError> {
        Session::open_for(&self.settings.broker, "journal").map_err(AdminError::Connection)
    }

    fn consume(&self, session: &mut Session, queue: &str, from: StreamStart) -> Result<Consumer, AdminError> {
        session.read_stream(queue, from, PREFETCH).map_err(doing(format!("reading `{queue}`")))
    }

    /// The next message; `None` if none comes in time, or nobody wants it any more.
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
    /// The broker counts so many, but there is none in the file that was begun last, and 3.10
    /// looks nowhere else for the last one.
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

/// What became of a message that was read.
pub(super) enum Taken {
    Yes,
    /// It is no delayed message of the application.
    Odd,
}

fn offset(delivery: &Delivery) -> Option<u64> {
    delivery.headers.get(STREAM_OFFSET).and_then(Value::as_i64).and_then(|offset| u64::try_from(offset).ok())
}
