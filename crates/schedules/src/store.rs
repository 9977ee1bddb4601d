//! The stream of schedules: reading it, and writing to it.

use std::{
    thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;

use delayline_amqp::{
    AmqpError, Consumer, Delivery, Event, Next, Outstanding, Publisher, STREAM_OFFSET, Session, StreamStart,
};
use delayline_broker::ManagementApi;
use delayline_core::{
    codec::AppKey,
    message::{Headers, Properties},
    topology::{Object, Topology},
};
use delayline_settings::Settings;

use crate::{
    book::{Book, Record},
    error::{ScheduleError, doing},
};

/// How many records the broker delivers ahead of us, and how many are acknowledged at once.
const PREFETCH: u16 = 200;
const ACK_EVERY: u16 = PREFETCH / 4;

/// How long the broker may take for the first record of a stream that has any, or for a mark.
const PATIENCE: Duration = Duration::from_secs(20);

/// If no record follows for this long, a record is the last.
const LAST: Duration = Duration::from_millis(300);

/// How long the broker may take to confirm.
const CONFIRM: Duration = Duration::from_secs(15);

/// How long the broker takes at most to record its first stream. If its node is killed before, it loses it.
const RECORDED: Duration = Duration::from_secs(3);

/// Whether the stream exists, and whether the set does, as the management API reports it. A broker logs each
/// question about a missing object as an error if it is asked over AMQP.
pub(crate) fn asked(settings: &Settings, topology: &Topology) -> Result<Option<(bool, bool)>, ScheduleError> {
    let Some(management) = &settings.management else { return Ok(None) };
    let (api, vhost, names) = (ManagementApi::new(management)?, &settings.broker.vhost, topology.names());
    match (api.queue(vhost, &names.schedules()), api.exchange(vhost, &names.entry())) {
        (Ok(stream), Ok(entry)) => Ok(Some((stream.is_some(), entry.is_some()))),
        _ => Ok(None),
    }
}

/// Reads the stream, and goes on reading.
pub(crate) struct Follower {
    pub(crate) session: Session,
    consumer: Consumer,
    /// How many records are not acknowledged, and the last of them.
    unacknowledged: u16,
    last: Option<Delivery>,
    /// The place of the last record that was read.
    at: Option<u64>,
    /// Whether the stream was empty before the last mark.
    is_new: bool,
    pub(crate) book: Book,
}

impl Follower {
    /// Begins to read; `None` if there is no stream.
    pub(crate) fn open(settings: &Settings, topology: &Topology) -> Result<Option<Self>, ScheduleError> {
        let mut session =
            Session::open_for(&settings.broker, "schedules").map_err(ScheduleError::Connection)?;
        let (stream, entry) = (topology.names().schedules(), topology.names().entry());
        let asked = asked(settings, topology)?;
        let (has_stream, has_entry) = match asked {
            Some(found) => found,
            None => {
                let stream =
                    session.queue_depth(&stream).map_err(doing("examining the stream of schedules"))?;
                let entry = stream.is_some()
                    || session.exchange_exists(&entry).map_err(doing("examining the set"))?;
                (stream.is_some(), entry)
            }
        };
        match (has_stream, has_entry) {
            (true, _) => Self::over(session, topology).map(Some),
            (false, true) => Ok(None),
            (false, false) => {
                let (set, vhost) = (entry, settings.broker.vhost.clone());
                Err(ScheduleError::NoSet { set, vhost, install: settings.command(&["install"]) })
            }
        }
    }

    fn over(mut session: Session, topology: &Topology) -> Result<Self, ScheduleError> {
        let consumer = session
            .read_stream(&topology.names().schedules(), StreamStart::First, PREFETCH)
            .map_err(doing("reading the stream of schedules"))?;
        Ok(Self {
            session,
            consumer,
            unacknowledged: 0,
            last: None,
            at: None,
            is_new: false,
            book: Book::default(),
        })
    }

    /// Enters the next record into the book; `None` if none comes in time. A record that cannot be read is
    /// passed over.
    pub(crate) fn next(&mut self, limit: Duration) -> Result<Option<Record>, ScheduleError> {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.consumer.next(left) {
                Next::Delivery(delivery) => {
                    let record = self.book.read(&delivery.body);
                    self.at = self.at.max(offset(&delivery));
                    self.unacknowledged += 1;
                    self.last = Some(delivery);
                    self.acknowledge(ACK_EVERY)?;
                    if record.is_some() {
                        return Ok(record);
                    }
                }
                Next::Timeout => {
                    self.acknowledge(1)?;
                    return Ok(None);
                }
                Next::Ended(cause) => {
                    let ended = || AmqpError::Lost { reason: "the consumer ended".into() };
                    return Err(doing("reading the stream of schedules")(cause.unwrap_or_else(ended)));
                }
            }
        }
    }

    /// Acknowledges everything that was read, if it is much or nothing follows: a broker closes the channel of
    /// a consumer that keeps a message for half an hour.
    fn acknowledge(&mut self, least: u16) -> Result<(), ScheduleError> {
        match self.last.take_if(|_| self.unacknowledged >= least) {
            Some(last) => {
                self.unacknowledged = 0;
                self.consumer.ack_up_to(last).map_err(doing("reading the stream of schedules"))
            }
            None => Ok(()),
        }
    }

    /// The place of the last record now; `None` if there is none, or if the broker does not report it.
    fn end(&mut self, topology: &Topology) -> Result<Option<u64>, ScheduleError> {
        let reading = "reading the end of the stream of schedules";
        let consumer = self
            .session
            .read_stream(&topology.names().schedules(), StreamStart::Last, PREFETCH)
            .map_err(doing(reading))?;
        let (mut end, mut limit) = (None, 4 * LAST);
        let deadline = Instant::now() + 4 * LAST;
        while Instant::now() < deadline
            && let Next::Delivery(delivery) = consumer.next(limit)
        {
            end = end.max(offset(&delivery));
            limit = LAST;
            consumer.ack_up_to(delivery).map_err(doing(reading))?;
        }
        Ok(end)
    }

    /// Reads everything that was written until now: up to a mark of its own.
    pub(crate) fn catch_up(&mut self, writer: &mut Writer) -> Result<(), ScheduleError> {
        let mark = Record::Mark(fastrand::u64(..));
        writer.write(&[&mark])?;
        let deadline = Instant::now() + PATIENCE;
        self.is_new = true;
        while let Some(record) = self.next(deadline.saturating_duration_since(Instant::now()))? {
            if record == mark {
                return Ok(());
            }
            self.is_new = false;
        }
        Err(ScheduleError::Withheld { stream: writer.exchange.clone() })
    }
}

/// Everything in the stream, read without the right to write; `None` if there is no stream. Records of the
/// last moment may be missing.
///
/// # Errors
/// The broker refuses or is lost.
pub fn read(settings: &Settings, topology: &Topology) -> Result<Option<Book>, ScheduleError> {
    let Some(mut follower) = Follower::open(settings, topology)? else { return Ok(None) };
    let end = follower.end(topology)?;
    let deadline = Instant::now() + PATIENCE;
    // A daemon may write all the time, so only the end that was there at the start is reached.
    while end.is_none_or(|end| follower.at < Some(end)) {
        let limit = match end {
            Some(_) => deadline.saturating_duration_since(Instant::now()),
            None => LAST,
        };
        match follower.next(limit)? {
            Some(_) => {}
            None if end.is_some() => {
                return Err(ScheduleError::Withheld { stream: topology.names().schedules() });
            }
            None => break,
        }
    }
    Ok(Some(follower.book))
}

/// Publishes with confirms. Nothing is published a second time: if the connection is lost, it is unknown
/// what arrived.
pub(crate) struct Writer {
    publisher: Publisher,
    outstanding: Outstanding<()>,
    exchange: String,
}

impl Writer {
    pub(crate) fn open(settings: &Settings, topology: &Topology) -> Result<Self, ScheduleError> {
        let publisher = Publisher::open(&settings.broker).map_err(ScheduleError::Connection)?;
        Ok(Self { publisher, outstanding: Outstanding::default(), exchange: topology.names().schedules() })
    }

    /// Publishes a message without waiting for the confirm.
    pub(crate) fn push(
        &mut self,
        exchange: &str,
        key: String,
        (properties, headers): (Properties, Headers),
        body: &[u8],
    ) {
        self.outstanding.push((), body.len());
        self.publisher.publish(exchange, key, properties, headers, body);
    }

    /// Writes records, and waits until they are confirmed.
    pub(crate) fn write(&mut self, records: &[&Record]) -> Result<(), ScheduleError> {
        let exchange = self.exchange.clone();
        for record in records {
            let body = serde_json::to_vec(record).unwrap_or_default();
            let properties =
                Properties { content_type: Some("application/json".into()), ..Properties::default() };
            self.push(&exchange, Topology::RECORD_KEY.into(), (properties, Headers::new()), &body);
        }
        self.confirm().map_err(doing("writing to the stream of schedules"))
    }

    /// Joins the daemons that wait for their turn.
    pub(crate) fn join(&mut self) -> Result<(), ScheduleError> {
        let exchange = self.exchange.clone();
        self.push(&exchange, Topology::TURN_KEY.into(), (Properties::default(), Headers::new()), b"");
        self.confirm().map_err(doing("waiting for the turn to publish schedules"))
    }

    /// Waits until everything is confirmed.
    pub(crate) fn confirm(&mut self) -> Result<(), AmqpError> {
        let deadline = Instant::now() + CONFIRM;
        while !self.outstanding.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            let lost = |reason: String| Err(AmqpError::Lost { reason });
            match self.publisher.next_within(left) {
                Some(Event::Ack { tag, multiple }) => drop(self.outstanding.settle(tag, multiple)),
                Some(Event::Nack { .. }) => return lost("the broker refused to store a message".into()),
                Some(Event::Returned(returned)) => {
                    let (exchange, text) = (returned.exchange, returned.text);
                    return lost(format!("exchange `{exchange}` routes a message to no queue ({text})"));
                }
                Some(Event::Blocked(reason)) => {
                    return lost(format!("the broker accepts no messages ({reason})"));
                }
                Some(Event::Unblocked) => {}
                Some(Event::Ended) => return Err(self.publisher.end(CONFIRM)),
                None => {
                    let reason = "it confirmed no message".into();
                    return Err(AmqpError::Silent { limit: CONFIRM, reason });
                }
            }
        }
        Ok(())
    }
}

/// A connection that reads and changes schedules. It has read everything.
pub(crate) struct Store {
    pub(crate) follower: Follower,
    pub(crate) writer: Writer,
}

impl Store {
    /// Opens the store; `None` if there is none.
    pub(crate) fn open(settings: &Settings, topology: &Topology) -> Result<Option<Self>, ScheduleError> {
        let Some(follower) = Follower::open(settings, topology)? else { return Ok(None) };
        Self::with(follower, settings, topology).map(Some)
    }

    /// Opens the store. Makes its objects if they do not exist.
    pub(crate) fn make(settings: &Settings, topology: &Topology) -> Result<Self, ScheduleError> {
        let mut store = Self::open(settings, topology)?;
        if store.is_none() {
            let mut session =
                Session::open_for(&settings.broker, "schedules").map_err(ScheduleError::Connection)?;
            for object in topology.schedules() {
                let made = match &object {
                    Object::Exchange(exchange) => session.declare_exchange(exchange),
                    Object::Queue(queue) => session.declare_queue(queue),
                    Object::Binding(binding) => session.bind(binding),
                };
                made.map_err(doing("making the objects of schedules"))?;
            }
            store = Some(Self::with(Follower::over(session, topology)?, settings, topology)?);
        }
        match store {
            Some(store) => {
                if store.follower.is_new {
                    // A schedule that was added is there, whatever happens then.
                    thread::sleep(RECORDED);
                }
                Ok(store)
            }
            None => Err(ScheduleError::Withheld { stream: topology.names().schedules() }),
        }
    }

    fn with(mut follower: Follower, settings: &Settings, topology: &Topology) -> Result<Self, ScheduleError> {
        let mut writer = Writer::open(settings, topology)?;
        follower.catch_up(&mut writer)?;
        Ok(Self { follower, writer })
    }

    /// Reads on until the book is as wanted, within `limit`. Returns whether it is.
    pub(crate) fn wait(
        &mut self,
        limit: Duration,
        wanted: impl Fn(&Book) -> bool,
    ) -> Result<bool, ScheduleError> {
        let deadline = Instant::now() + limit;
        loop {
            if wanted(&self.follower.book) {
                return Ok(true);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if self.follower.next(left)?.is_none() {
                return Ok(wanted(&self.follower.book));
            }
        }
    }

    /// Writes records, and enters them.
    pub(crate) fn write(&mut self, record: &Record) -> Result<(), ScheduleError> {
        self.writer.write(&[record])?;
        self.follower.book.enter(record);
        Ok(())
    }
}

fn offset(delivery: &Delivery) -> Option<u64> {
    delivery.headers.get(STREAM_OFFSET)?.as_i64()?.try_into().ok()
}

/// How many bytes a copy of everything valid takes.
pub(crate) fn size(book: &Book, now: Timestamp) -> u64 {
    book.copy(now).iter().map(|record| serde_json::to_vec(record).map_or(0, |json| json.len() as u64)).sum()
}

/// Whether messages of an application can be recalled.
pub(crate) fn is_recallable(
    settings: &Settings,
    topology: &Topology,
    app: &AppKey,
    session: &mut Session,
) -> Result<bool, ScheduleError> {
    let exchange = topology.names().recall(app);
    if let Some(management) = &settings.management
        && let Ok(found) = ManagementApi::new(management)?.exchange(&settings.broker.vhost, &exchange)
    {
        return Ok(found.is_some());
    }
    session.exchange_exists(&exchange).map_err(doing("examining the application"))
}
