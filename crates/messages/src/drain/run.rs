//! The one operation: examine each message, and carry out a decision.

use std::{
    cell::OnceCell,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde::Serialize;

use delayline_amqp::{AmqpError, Delivery, Place, Session};
use delayline_client::Router;
use delayline_core::{
    message::{self, Headers, Properties},
    topology::Queue,
};
use delayline_settings::Settings;

use super::{
    DrainError, guard,
    paging::Paging,
    reader::Reader,
    sender::{self, Sender, Settled, WINDOW},
};

/// How long to wait for a message or an answer before checking for an interrupt again.
const TICK: Duration = Duration::from_millis(50);

/// How long an interrupted run waits for outstanding confirms.
const FINISH: Duration = Duration::from_secs(5);

/// How long closing the connection may take on which messages were sent on.
const CLOSE: Duration = Duration::from_secs(2);

/// The most messages that are taken at a time, and the most bytes of their bodies.
const PAGE: (u16, u64) = (1_000, 64 * 1024 * 1024);

/// What to do with a message.
#[derive(Debug)]
pub enum Decision {
    /// It stays in the queue.
    Keep,
    /// It is deleted for good.
    Discard,
    /// It is sent on, and deleted once its copy is confirmed.
    Send(Box<Outgoing>),
}

/// Where a message is sent, with which properties and headers; the body stays the same.
#[derive(Debug, Clone, PartialEq)]
pub struct Outgoing {
    /// The exchange.
    pub exchange: String,
    /// The routing key.
    pub routing_key: String,
    /// Its properties.
    pub properties: Properties,
    /// Its headers.
    pub headers: Headers,
}

impl Outgoing {
    /// The message as it is, to another place. What must never be sent again (`x-death`,
    /// `CC`, `expiration` and the like) is removed later.
    pub fn of(delivery: &Delivery, exchange: impl Into<String>, routing_key: impl Into<String>) -> Self {
        Self {
            exchange: exchange.into(),
            routing_key: routing_key.into(),
            properties: delivery.properties.clone(),
            headers: delivery.headers.clone(),
        }
    }
}

/// The progress of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Messages to be examined.
    pub total: u64,
    /// Finished messages: kept, discarded, refused, or sent and confirmed.
    pub settled: u64,
}

/// The result of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Drained {
    /// Messages in the queue at the start.
    pub waiting: u64,
    /// How many of them were examined.
    pub examined: u64,
    /// How many were kept by decision.
    pub kept: u64,
    /// How many of these were kept because neither the broker nor delayline recorded when they came, so that
    /// their age is unknown.
    pub undated: u64,
    /// How many were discarded for good.
    pub discarded: u64,
    /// How many were sent, confirmed and acknowledged.
    pub sent: u64,
    /// How many were kept because the broker did not accept their copies.
    pub refused: u64,
    /// Why the first of those was refused.
    pub refusal: Option<String>,
    /// How many were sent but not confirmed, or not removed here, when the run ended. They are still in the
    /// queue, and may arrive twice.
    pub in_doubt: u64,
    /// How many should have been examined but were not delivered by the broker within 10 s: another
    /// consumer has them or took them, or the broker is slow.
    pub withheld: u64,
    /// Whether it was interrupted.
    pub interrupted: bool,
    /// What ended it early, if anything did. Unfinished messages are still in the queue; running it again
    /// continues from there.
    pub failure: Option<String>,
}

impl Drained {
    fn settled(&self) -> u64 {
        self.kept + self.discarded + self.sent + self.refused
    }

    fn refuse(&mut self, reason: String) {
        self.refused += 1;
        self.refusal.get_or_insert(reason);
    }

    /// How many messages were not examined, because of a limit or because the run ended
    /// early.
    #[must_use]
    pub fn unexamined(&self) -> u64 {
        self.waiting.saturating_sub(self.examined)
    }
}

/// Examines the messages of a queue, and keeps, discards or sends each.
#[derive(Debug, Clone, Copy)]
pub struct Drain<'a> {
    settings: &'a Settings,
    /// Where messages are sent on.
    to: &'a Settings,
    queue: &'a Queue,
    limit: u64,
    page: (u16, u64),
    stop: Option<&'a AtomicBool>,
}

impl<'a> Drain<'a> {
    /// Of a queue as the topology declares it.
    #[must_use]
    pub fn new(settings: &'a Settings, queue: &'a Queue) -> Self {
        Self { settings, to: settings, queue, limit: u64::MAX, page: PAGE, stop: None }
    }

    /// Examines at most `limit` messages, the first ones.
    #[must_use]
    pub fn at_most(self, limit: u64) -> Self {
        Self { limit, ..self }
    }

    /// Sets the largest page: `messages`, 1 to 65,535, and `bytes` of their bodies. A single larger message
    /// is a page of its own. By default 1,000 messages and 64 MiB.
    ///
    /// The size of a body is known only after it arrives, so large bodies after many small ones can exceed
    /// the bound once. The excess is at most 32 of them, or all messages that the management API has counted
    /// in the queue if these are smaller.
    #[must_use]
    pub fn in_pages(self, messages: u16, bytes: u64) -> Self {
        Self { page: (messages, bytes), ..self }
    }

    /// Sends messages on to the broker of these settings, and not to the one they come from.
    #[must_use]
    pub fn to(self, to: &'a Settings) -> Self {
        Self { to, ..self }
    }

    /// Ends cleanly as soon as this is set.
    #[must_use]
    pub fn until(self, stop: &'a AtomicBool) -> Self {
        Self { stop: Some(stop), ..self }
    }

    /// Examines the messages that are there now, and does with each what `decide` says. A
    /// failure half-way is in the report.
    ///
    /// ```no_run
    /// use delayline_core::topology::Topology;
    /// use delayline_messages::drain::{Decision, Drain, Outgoing};
    /// use delayline_settings::Settings;
    ///
    /// let settings = Settings::from_url("amqp://localhost")?;
    /// let topology = Topology::new(settings.topology.clone());
    /// let queue = topology.queues().find(|queue| queue.name == "delay.unroutable").expect("it has one");
    /// let report = Drain::new(&settings, queue).at_most(1_000).run(
    ///     |message| match message.properties.message_id.as_deref() {
    ///         Some("4711") => {
    ///             Decision::Send(Outgoing::of(message, "delay.dispatch", &message.routing_key).into())
    ///         }
    ///         _ => Decision::Keep,
    ///     },
    ///     |_| {},
    /// )?;
    /// println!("{} sent", report.sent);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Why nothing was touched.
    pub fn run(
        self,
        decide: impl FnMut(&Delivery) -> Decision,
        progress: impl FnMut(Progress),
    ) -> Result<Drained, DrainError> {
        let mut session = Session::open(&self.settings.broker)?;
        let guard::Waiting { messages: waiting, bytes } =
            guard::check(self.settings, &mut session, self.queue)?;
        let total = waiting.min(self.limit);
        let paging = Paging::new(self.page.0, self.page.1).of(bytes);
        let browser = session.browse()?;
        let router = OnceCell::new();
        let mut run = Run {
            to: self.to,
            stop: self.stop,
            reader: Reader::new(session, &browser, self.queue.name.clone(), paging, total),
            router: &router,
            sender: None,
            report: Drained { waiting, ..Drained::default() },
            decide,
            progress,
            total,
        };
        if let Err(error) = run.all() {
            run.report.failure = Some(error.to_string());
        }
        let Run { reader, sender, mut report, .. } = run;
        report.withheld = reader.withheld();
        let in_flight = sender.map_or(0, |sender| sender.in_flight());
        report.in_doubt += in_flight as u64;
        // From now on no copies of kept messages are made, since they return to the queue.
        if let Some(router) = router.into_inner() {
            let _ = router.close(if in_flight == 0 { CLOSE } else { Duration::ZERO });
        }
        let returned = reader.end();
        drop(browser);
        returned.wait();
        Ok(report)
    }
}

/// One pass over the queue.
struct Run<'a, 'r, D, P> {
    to: &'a Settings,
    stop: Option<&'a AtomicBool>,
    reader: Reader<'a>,
    /// Connects when the first message is sent on.
    router: &'r OnceCell<Router>,
    sender: Option<Sender>,
    report: Drained,
    decide: D,
    progress: P,
    total: u64,
}

impl<D: FnMut(&Delivery) -> Decision, P: FnMut(Progress)> Run<'_, '_, D, P> {
    fn all(&mut self) -> Result<(), AmqpError> {
        let mut finish_by = None;
        loop {
            let in_flight = self.sender.as_ref().map_or(0, Sender::in_flight);
            if self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) && !self.reader.is_done() {
                self.report.interrupted = true;
            }
            let ending = self.reader.is_done() || self.report.interrupted;
            if ending && in_flight == 0 {
                return Ok(());
            }
            if self.report.interrupted
                && Instant::now() > *finish_by.get_or_insert_with(|| Instant::now() + FINISH)
            {
                return Ok(());
            }
            self.reader.end_page()?;
            let window = in_flight + self.reader.unacknowledged() < WINDOW;
            let room = !ending && self.sender.as_ref().is_none_or(|sender| window && sender.has_room());
            if room {
                // While confirms are outstanding, they are as likely to arrive next.
                let wait = if in_flight > 0 { Duration::from_millis(1) } else { TICK };
                if let Some(delivery) = self.reader.next(wait)? {
                    self.settle(delivery)?;
                }
            }
            let wait = if room { Duration::ZERO } else { TICK };
            if let Some(sender) = &mut self.sender {
                let mut answers = Vec::new();
                let said = sender.answers(wait, &mut answers);
                self.carry_out(answers)?;
                said?;
            }
            (self.progress)(Progress { total: self.total, settled: self.report.settled() });
        }
    }

    fn carry_out(&mut self, answers: Vec<Settled>) -> Result<(), AmqpError> {
        let mut answers = answers.into_iter();
        while let Some(answer) = answers.next() {
            match answer {
                Settled::Confirmed(delivery) => {
                    if let Err(error) = self.reader.forget(delivery) {
                        let others = answers.filter(|answer| matches!(answer, Settled::Confirmed(_)));
                        self.report.in_doubt += 1 + others.count() as u64;
                        return Err(error);
                    }
                    self.report.sent += 1;
                }
                Settled::Refused(place, reason) => {
                    self.reader.keep_late(place);
                    self.report.refuse(reason);
                }
            }
        }
        Ok(())
    }

    fn settle(&mut self, delivery: Delivery) -> Result<(), AmqpError> {
        self.report.examined += 1;
        match (self.decide)(&delivery) {
            Decision::Keep => {
                self.reader.keep(Place::of(&delivery));
                self.report.kept += 1;
            }
            Decision::Discard => {
                self.reader.forget(delivery)?;
                self.report.discarded += 1;
            }
            Decision::Send(outgoing) => match self.prepare(&delivery, *outgoing) {
                Ok(outgoing) => {
                    let sender = match &mut self.sender {
                        Some(sender) => sender,
                        none => {
                            let router = sender::router(self.to)?;
                            none.insert(Sender::new(self.router.get_or_init(|| router)))
                        }
                    };
                    let mut answers = Vec::new();
                    let said = sender.send(delivery, outgoing, &mut answers);
                    self.carry_out(answers)?;
                    said?;
                }
                Err(reason) => {
                    self.reader.keep(Place::of(&delivery));
                    self.report.refuse(reason);
                }
            },
        }
        Ok(())
    }

    /// The message to send, or why it cannot be sent.
    fn prepare(&self, delivery: &Delivery, outgoing: Outgoing) -> Result<Outgoing, String> {
        if delivery.damaged {
            return Err(
                "its headers or properties are unreadable (text that is not UTF-8, or a header that occurs \
                 twice), and sending it on would lose them"
                    .into(),
            );
        }
        let Outgoing { exchange, routing_key, properties, headers } = outgoing;
        for (what, name) in [("exchange", &exchange), ("routing key", &routing_key)] {
            if name.len() > 255 {
                return Err(format!("the {what} is {} bytes long, and AMQP carries at most 255", name.len()));
            }
        }
        let sender = self.to.broker.credentials.username();
        let from = (delivery.exchange.as_str(), delivery.routing_key.as_str());
        let (properties, headers) = message::resend(&properties, &headers, from, sender, Timestamp::now());
        message::check_parts(&properties, &headers).map_err(|error| error.to_string())?;
        Ok(Outgoing { exchange, routing_key, properties, headers })
    }
}
