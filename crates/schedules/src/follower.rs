//! Reading a stream of schedules.

use std::time::{Duration, Instant};

use delayline_amqp::{AmqpError, Consumer, Delivery, Next, STREAM_OFFSET, Session, StreamStart};
use delayline_core::{
    codec::AppKey,
    topology::{Names, Topology},
};
use delayline_settings::Settings;
use jiff::Timestamp;

use crate::{
    book::{Book, Record},
    error::{ACCESS_REFUSED, ScheduleError, doing},
    place::{asked, keeps, place},
    writer::Writer,
};

/// How many records the broker delivers ahead of us, and how many are acknowledged at once.
const PREFETCH: u16 = 200;
const ACK_EVERY: u16 = PREFETCH / 4;

/// How long the broker may take for a record of a stream that has any, or for a mark.
const PATIENCE: Duration = Duration::from_secs(20);

/// If no record follows for this long, a record is the last.
const LAST: Duration = Duration::from_millis(300);

/// The most entries of a book that one application may have.
const MOST_OWN: usize = 500_000;

/// The result of reading from a stream.
#[derive(PartialEq)]
pub(crate) enum Read {
    Record(Record),
    /// A record that cannot be read, or that does not belong there.
    PassedOver,
    /// Nothing in time.
    Nothing,
}

/// Reads a stream, and goes on reading.
pub(crate) struct Follower {
    pub(crate) owner: Option<AppKey>,
    consumer: Consumer,
    /// How many records are not acknowledged, and the last of them.
    unacknowledged: u16,
    last: Option<Delivery>,
    /// The place of the last record that was read.
    at: Option<u64>,
    /// Whether the stream was empty before the last mark.
    pub(crate) is_new: bool,
    /// How many bytes were written since everything valid was.
    since_copy: u64,
    /// How many entries it has in the book at most.
    weight: usize,
}

impl Follower {
    /// Begins to read; `None` if there is no stream.
    pub(crate) fn open(
        settings: &Settings,
        topology: &Topology,
        session: &mut Session,
        owner: Option<&AppKey>,
    ) -> Result<Option<Self>, ScheduleError> {
        Self::find(settings, topology, session, owner).map_err(|error| match error {
            ScheduleError::Amqp { source, .. } if source.code() == Some(ACCESS_REFUSED) => {
                let stream = place(topology.names(), owner);
                let add = settings.command(&["app", "add", "APP", "--schedules"]);
                ScheduleError::Forbidden { stream, add, source }
            }
            error => error,
        })
    }

    fn find(
        settings: &Settings,
        topology: &Topology,
        session: &mut Session,
        owner: Option<&AppKey>,
    ) -> Result<Option<Self>, ScheduleError> {
        let (stream, entry) = (place(topology.names(), owner), topology.names().entry());
        let asked = asked(settings, topology, owner)?;
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
            (true, _) => Self::over(session, topology, owner).map(Some),
            (false, true) => Ok(None),
            (false, false) => {
                let (set, vhost) = (entry, settings.broker.vhost.clone());
                Err(ScheduleError::NoSet { set, vhost, install: settings.command(&["install"]) })
            }
        }
    }

    pub(crate) fn over(
        session: &mut Session,
        topology: &Topology,
        owner: Option<&AppKey>,
    ) -> Result<Self, ScheduleError> {
        let consumer = session
            .read_stream(&place(topology.names(), owner), StreamStart::First, PREFETCH)
            .map_err(doing("reading the stream of schedules"))?;
        Ok(Self {
            owner: owner.cloned(),
            consumer,
            unacknowledged: 0,
            last: None,
            at: None,
            is_new: false,
            since_copy: 0,
            weight: 0,
        })
    }

    /// Enters the next record into the book.
    pub(crate) fn next(&mut self, book: &mut Book, limit: Duration) -> Result<Read, ScheduleError> {
        match self.consumer.next(limit) {
            Next::Delivery(delivery) => {
                let owner = self.owner.as_ref();
                let room = if owner.is_some() { MOST_OWN.saturating_sub(self.weight) } else { usize::MAX };
                let record = book.read(owner, &delivery.body, room);
                self.weight += record.as_ref().map_or(0, Record::weight);
                self.since_copy = match record {
                    Some(Record::Copied(bytes)) => bytes,
                    _ => self.since_copy.saturating_add(delivery.body.len() as u64),
                };
                self.at = self.at.max(offset(&delivery));
                self.unacknowledged += 1;
                self.last = Some(delivery);
                self.acknowledge(ACK_EVERY)?;
                Ok(record.map_or(Read::PassedOver, Read::Record))
            }
            Next::Timeout => {
                self.acknowledge(1)?;
                Ok(Read::Nothing)
            }
            Next::Ended(cause) => {
                let ended = || AmqpError::Lost { reason: "the consumer ended".into() };
                Err(doing("reading the stream of schedules")(cause.unwrap_or_else(ended)))
            }
        }
    }

    /// Enters what was written until now, without waiting for more than `limit` for the first record.
    pub(crate) fn drain(&mut self, book: &mut Book, mut limit: Duration) -> Result<(), ScheduleError> {
        // An application that writes all the time keeps no other waiting.
        let most = if self.owner.is_some() { usize::from(PREFETCH) } else { usize::MAX };
        for _ in 0..most {
            if self.next(book, limit)? == Read::Nothing {
                break;
            }
            limit = Duration::ZERO;
        }
        Ok(())
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
    fn end(&self, session: &mut Session, topology: &Topology) -> Result<Option<u64>, ScheduleError> {
        let reading = "reading the end of the stream of schedules";
        let stream = place(topology.names(), self.owner.as_ref());
        let consumer = session.read_stream(&stream, StreamStart::Last, PREFETCH).map_err(doing(reading))?;
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
    pub(crate) fn catch_up(&mut self, book: &mut Book, writer: &mut Writer) -> Result<(), ScheduleError> {
        let mark = Record::Mark(fastrand::u64(..));
        writer.write(self.owner.as_ref(), [&mark])?;
        self.is_new = true;
        let is_last = |read: &Read, _| *read == Read::Record(mark.clone());
        self.read_until(book, &writer.names, PATIENCE, is_last)
    }

    /// Reads everything that was there at the start, without the right to write. A daemon may write all the
    /// time. Records of the last moment may be missing.
    pub(crate) fn read(
        &mut self,
        book: &mut Book,
        session: &mut Session,
        topology: &Topology,
    ) -> Result<(), ScheduleError> {
        let names = topology.names();
        match self.end(session, topology)? {
            Some(end) => self.read_until(book, names, PATIENCE, |_, at| at >= Some(end)),
            None => self.read_until(book, names, LAST, |read, _| *read == Read::Nothing),
        }
    }

    /// Reads until a record that is the last, as its place shows or itself.
    fn read_until(
        &mut self,
        book: &mut Book,
        names: &Names,
        limit: Duration,
        is_last: impl Fn(&Read, Option<u64>) -> bool,
    ) -> Result<(), ScheduleError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let read = self.next(book, limit)?;
            if is_last(&read, self.at) {
                return Ok(());
            }
            self.is_new = false;
            // An application may write faster than this reads.
            if read == Read::Nothing || self.owner.is_some() && Instant::now() > deadline {
                return Err(ScheduleError::Withheld { stream: place(names, self.owner.as_ref()) });
            }
        }
    }

    /// Whether so much was written since the last copy that another is due.
    pub(crate) fn is_copy_due(&self, book: &Book, now: Timestamp) -> bool {
        let owner = self.owner.as_ref();
        is_copy_due(owner, self.since_copy, || size(book, owner, now))
    }

    /// Notes how many entries the book really has of this owner.
    pub(crate) fn weigh(&mut self, book: &Book) {
        self.weight = book.weight(self.owner.as_ref());
    }
}

/// Whether everything valid of an owner is to be written again: `written` bytes were since it was. A copy takes
/// `copy` bytes.
fn is_copy_due(owner: Option<&AppKey>, written: u64, copy: impl FnOnce() -> u64) -> bool {
    let some = keeps(owner) / 10;
    written > some && written > 2 * copy()
}

fn offset(delivery: &Delivery) -> Option<u64> {
    delivery.headers.get(STREAM_OFFSET)?.as_i64()?.try_into().ok()
}

/// How many bytes a copy of everything valid of an owner takes.
pub(crate) fn size(book: &Book, owner: Option<&AppKey>, now: Timestamp) -> u64 {
    let bytes = |record: &Record| serde_json::to_vec(record).map_or(0, |json| json.len() as u64);
    book.copy(owner, now).iter().map(bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_due_long_before_a_stream_drops_anything() {
        for owner in [None, AppKey::new("billing").ok()] {
            let owner = owner.as_ref();
            assert!(is_copy_due(owner, keeps(owner) / 10 + 1, || 0));
            assert!(!is_copy_due(owner, keeps(owner) / 10, || 0));
            assert!(!is_copy_due(owner, keeps(owner) / 5, || keeps(owner) / 10));
        }
    }
}
