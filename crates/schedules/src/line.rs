//! The connections of a daemon, and its turn to publish.

use std::{collections::BTreeMap, thread, time::Duration};

use jiff::Timestamp;

use delayline_amqp::{AmqpError, Consumer, Delivery, Next, Session};
use delayline_client::recall::Recaller;
use delayline_core::{
    codec::AppKey,
    topology::{Topology, Unit},
};
use log::{info, warn};

use crate::{
    book::{Book, Record},
    definition::name::ScheduleName,
    error::{ScheduleError, doing},
    follower::{Follower, size},
    writer::Writer,
};

/// How many records are written between two confirms.
const CHUNK: usize = 1_000;

/// Values of one owner: an application, or the platform team.
pub(crate) type ByOwner<T> = BTreeMap<Option<AppKey>, Vec<T>>;

/// The connections of a daemon.
pub(crate) struct Line {
    pub(crate) session: Session,
    pub(crate) book: Book,
    /// Reads the schedules of the platform team; and those of applications, which may be lost.
    pub(crate) follower: Follower,
    pub(crate) of_apps: Vec<Follower>,
    /// The applications whose streams were lost.
    pub(crate) lost: Vec<AppKey>,
    pub(crate) writer: Writer,
    pub(crate) turn: Consumer,
    /// What it holds while it is its turn.
    pub(crate) held: Option<Delivery>,
    pub(crate) recaller: Option<Recaller>,
}

impl Line {
    /// Enters what was written until now, without waiting for more than `limit` for the first record.
    pub(crate) fn read(&mut self, limit: Duration) -> Result<(), ScheduleError> {
        self.follower.drain(&mut self.book, limit)?;
        self.each_app(|follower, book, _| follower.drain(book, Duration::ZERO));
        Ok(())
    }

    /// Reads everything that was written until now.
    pub(crate) fn catch_up(&mut self) -> Result<(), ScheduleError> {
        self.follower.catch_up(&mut self.book, &mut self.writer)?;
        self.each_app(Follower::catch_up);
        Ok(())
    }

    /// Begins to read the schedules of an application.
    pub(crate) fn follow(&mut self, topology: &Topology, app: &AppKey) {
        let follower = Follower::over(&mut self.session, topology, Some(app)).and_then(|mut follower| {
            if self.held.is_some() {
                follower.catch_up(&mut self.book, &mut self.writer)?;
            }
            Ok(follower)
        });
        match follower {
            Ok(follower) => self.of_apps.push(follower),
            Err(error) => lose(&mut self.book, &mut self.lost, app, &error),
        }
    }

    /// Writes everything valid of an owner again once much was written, so that the broker can drop the oldest
    /// part of its stream.
    pub(crate) fn copy(&mut self, now: Timestamp) -> Result<(), ScheduleError> {
        let copy = |follower: &mut Follower, book: &mut Book, writer: &mut Writer| {
            if !follower.is_copy_due(book, now) {
                return Ok(());
            }
            let owner = follower.owner.as_ref();
            let (records, bytes) = (book.copy(owner, now), size(book, owner, now));
            for records in records.chunks(CHUNK) {
                writer.write(owner, records)?;
            }
            writer.write(owner, [&Record::Copied(bytes)])?;
            let of = owner.map(|app| format!(" of application {app}")).unwrap_or_default();
            info!("the {} records of schedules{of} were written again ({bytes} bytes)", records.len());
            // It is read before the next one could be due.
            follower.catch_up(book, writer)
        };
        copy(&mut self.follower, &mut self.book, &mut self.writer)?;
        self.each_app(copy);
        Ok(())
    }

    /// Does something with the schedules of each application. Those with which it fails are forgotten.
    fn each_app(
        &mut self,
        mut work: impl FnMut(&mut Follower, &mut Book, &mut Writer) -> Result<(), ScheduleError>,
    ) {
        let Self { book, of_apps, lost, writer, .. } = self;
        of_apps.retain_mut(|follower| match work(follower, book, writer) {
            Ok(()) => true,
            Err(error) => {
                if let Some(app) = &follower.owner {
                    lose(book, lost, app, &error);
                }
                false
            }
        });
    }

    /// Writes records and enters them.
    pub(crate) fn write<T>(
        &mut self,
        all: ByOwner<T>,
        record: impl Fn(Vec<T>) -> Record,
    ) -> Result<(), ScheduleError> {
        for (owner, items) in all {
            let record = record(items);
            let written = self.writer.write(owner.as_ref(), [&record]);
            if written.is_err() {
                self.lost.extend(owner);
            }
            written?;
            self.book.enter(&record);
        }
        Ok(())
    }

    /// Whether it is this daemon's turn since now.
    pub(crate) fn takes_turn(&mut self) -> Result<bool, ScheduleError> {
        let mut taken = false;
        loop {
            match self.turn.next(Duration::ZERO) {
                Next::Delivery(delivery) => match self.held.replace(delivery) {
                    // One is enough.
                    Some(old) => self.turn.ack(old).map_err(doing("taking the turn to publish"))?,
                    None => taken = true,
                },
                Next::Timeout => return Ok(taken),
                Next::Ended(cause) => {
                    let ended = || AmqpError::Lost { reason: "the consumer ended".into() };
                    return Err(doing("taking the turn to publish")(cause.unwrap_or_else(ended)));
                }
            }
        }
    }
}

fn lose(book: &mut Book, lost: &mut Vec<AppKey>, app: &AppKey, error: &ScheduleError) {
    warn!("the schedules of application {app} are not published: {error}");
    book.forget(Some(app));
    lost.push(app.clone());
}

/// By the owner of a schedule.
pub(crate) fn by_owner<'a, T>(all: impl IntoIterator<Item = (&'a ScheduleName, T)>) -> ByOwner<T> {
    let mut found = ByOwner::new();
    for (name, item) in all {
        found.entry(name.owner()).or_default().push(item);
    }
    found
}

/// The instant from which delays count: now, or the beginning of this second. A message waits for whole
/// seconds, so it is late by the part of a second in which it was published. Most occurrences are at the
/// full second. So messages are published at the beginning of a second.
pub(crate) fn base(unit: Unit) -> Timestamp {
    let unit = i64::from(unit.millis());
    loop {
        let now = Timestamp::now().as_millisecond();
        let into = now % unit;
        if unit < 100 || into < unit / 4 {
            let base = if unit < 100 { now } else { now - into };
            return Timestamp::from_millisecond(base).unwrap_or(Timestamp::MAX);
        }
        thread::sleep(Duration::from_millis((unit - into).unsigned_abs()));
    }
}
