//! The schedules of an owner: reading and changing them.

use std::{
    thread,
    time::{Duration, Instant},
};

use delayline_amqp::Session;
use delayline_core::{
    codec::AppKey,
    topology::{Object, Topology},
};
use delayline_settings::Settings;

use crate::{
    book::{Book, Record},
    error::{ScheduleError, doing},
    follower::{Follower, Read},
    place::{owners, session},
    writer::Writer,
};

/// How long the broker takes at most to record its first stream. If its node is killed before, it loses it.
const RECORDED: Duration = Duration::from_secs(3);

/// All schedules of a set; `None` if it has none. Those of applications are read if there is a management API.
///
/// # Errors
/// The broker refuses or is lost.
pub fn read(settings: &Settings, topology: &Topology) -> Result<Option<Book>, ScheduleError> {
    let owners = owners(settings, topology)?;
    read_of(settings, topology, std::iter::once(None).chain(owners.iter().map(Some)))
}

/// The schedules of these owners; `None` if there is no stream.
pub(crate) fn read_of<'a>(
    settings: &Settings,
    topology: &Topology,
    owners: impl IntoIterator<Item = Option<&'a AppKey>>,
) -> Result<Option<Book>, ScheduleError> {
    let mut session = session(settings)?;
    let mut book = None;
    for owner in owners {
        if let Some(mut follower) = Follower::open(settings, topology, &mut session, owner)? {
            follower.read(book.get_or_insert_default(), &mut session, topology)?;
        }
    }
    Ok(book)
}

/// A connection that reads and changes the schedules of one owner. It has read everything.
pub(crate) struct Store {
    pub(crate) session: Session,
    pub(crate) book: Book,
    follower: Follower,
    writer: Writer,
}

impl Store {
    /// Opens the store; `None` if there is none.
    pub(crate) fn open(
        settings: &Settings,
        topology: &Topology,
        owner: Option<&AppKey>,
    ) -> Result<Option<Self>, ScheduleError> {
        let mut session = session(settings)?;
        let follower = Follower::open(settings, topology, &mut session, owner)?;
        follower.map(|follower| Self::with(session, follower, settings, topology)).transpose()
    }

    /// Opens the store. Makes its objects if they do not exist, except those of an application: only
    /// registering it makes them.
    pub(crate) fn make(
        settings: &Settings,
        topology: &Topology,
        owner: Option<&AppKey>,
    ) -> Result<Self, ScheduleError> {
        let store = match (Self::open(settings, topology, owner)?, owner) {
            (Some(store), _) => store,
            (None, Some(app)) => {
                let add = settings.command(&["app", "add", app.as_str(), "--schedules"]);
                return Err(ScheduleError::NotOffered { app: app.to_string(), add });
            }
            (None, None) => {
                let mut session = session(settings)?;
                for object in topology.schedules() {
                    let made = match &object {
                        Object::Exchange(exchange) => session.declare_exchange(exchange),
                        Object::Queue(queue) => session.declare_queue(queue),
                        Object::Binding(binding) => session.bind(binding),
                    };
                    made.map_err(doing("making the objects of schedules"))?;
                }
                let follower = Follower::over(&mut session, topology, None)?;
                Self::with(session, follower, settings, topology)?
            }
        };
        if store.follower.is_new && owner.is_none() {
            // A schedule that was added is there, whatever happens then.
            thread::sleep(RECORDED);
        }
        Ok(store)
    }

    fn with(
        session: Session,
        mut follower: Follower,
        settings: &Settings,
        topology: &Topology,
    ) -> Result<Self, ScheduleError> {
        let mut writer = Writer::open(settings, topology)?;
        let mut book = Book::default();
        follower.catch_up(&mut book, &mut writer)?;
        Ok(Self { session, book, follower, writer })
    }

    /// Reads on until the book is as wanted, within `limit`. Returns whether it is.
    pub(crate) fn wait(
        &mut self,
        limit: Duration,
        wanted: impl Fn(&Book) -> bool,
    ) -> Result<bool, ScheduleError> {
        let deadline = Instant::now() + limit;
        loop {
            if wanted(&self.book) {
                return Ok(true);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.follower.next(&mut self.book, left)? == Read::Nothing {
                return Ok(wanted(&self.book));
            }
        }
    }

    /// Writes records, and enters them.
    pub(crate) fn write(&mut self, record: &Record) -> Result<(), ScheduleError> {
        self.writer.write(self.follower.owner.as_ref(), [record])?;
        self.book.enter(record);
        Ok(())
    }
}
