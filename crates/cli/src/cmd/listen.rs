//! `delayline listen`

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use jiff::Timestamp;
use serde::Serialize;

use delayline_admin::drain::Sample;
use delayline_amqp::{AmqpError, Delivery, HAND_OVER, QueueDepth, Session, Turned};
use delayline_broker::ManagementApi;
use delayline_core::{
    codec::{AppKey, RoutingKey},
    message::{Value, headers},
    topology::{Binding, Endpoint, Names, Queue, QueueType, if_missing},
};
use delayline_settings::Settings;

use crate::values;
use delayline_term::{Code, Failure, Output, ending, output::aside, text::readable, time::clock};

/// How often an interrupt is looked for.
const TICK: Duration = Duration::from_millis(100);

/// How many copies wait to be shown. The oldest are dropped: they are only copies.
const COPIES: i64 = 10_000;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline listen --app billing
  delayline listen --app billing --count 1 --json
  delayline listen --app billing --queue billing-in
  delayline listen --app billing --count 1 --json > message.jsonl
  delayline send --jsonl --file message.jsonl --delay 1h      send it again

Without --queue, a queue `delay.listen.…` is bound while the command runs. It gets copies, so
the application still gets all its messages; the queue keeps the newest 10,000. With --queue,
messages are TAKEN from that queue, as any consumer would take them. The queue and its
binding are removed at the end. If the command is killed, they stay. Once such a queue holds
messages, `delayline doctor` shows how to remove it.")]
pub(crate) struct Args {
    /// The app key to listen for
    #[arg(long, value_name = "APP", value_parser = values::app)]
    app: AppKey,
    /// End after this many messages
    #[arg(long, value_name = "N", value_parser = values::whole::<u64>(1..))]
    count: Option<u64>,
    /// Take the messages from this queue; it is created if it does not exist
    #[arg(long, value_name = "Q")]
    queue: Option<String>,
    /// End with exit code 1 if nothing arrives for this long
    #[arg(long, value_name = "DURATION", value_parser = values::delay)]
    timeout: Option<delayline_core::codec::Delay>,
}

/// A message that arrived.
#[derive(Serialize, schemars::JsonSchema)]
pub(crate) struct Arrival {
    /// Milliseconds between due time and arrival; `None` if the message contains no due time.
    late_ms: Option<i64>,
    app: Option<String>,
    redelivered: bool,
    /// Whether it is past its `delayline-expires`.
    expired: bool,
    #[serde(flatten)]
    sample: Sample,
}

pub(crate) fn run(args: &Args, settings: &Settings, output: &mut Output) -> Result<Code, Failure> {
    let mut session = Session::open(&settings.broker)?;
    // From here on there is something to clean up.
    let interrupted = ending::on_signal_or_without_reader()?;
    let target = Listening::set_up(args, settings, &mut session)?;
    if !output.json {
        aside(format!("listening for `{}` on queue `{}`; press Ctrl-C to stop", args.app, target.queue));
    }
    let result = receive(args, &target, &mut session, output, &interrupted);
    let taken_down = target.take_down(&mut session);
    if taken_down.is_err() {
        target.may_stay(args, settings);
    }
    let code = result?;
    taken_down?;
    Ok(code)
}

fn receive(
    args: &Args,
    target: &Listening,
    session: &mut Session,
    output: &mut Output,
    interrupted: &AtomicBool,
) -> Result<Code, Failure> {
    let browser = session.browse()?;
    // A prefetched message that is not shown returns to the queue, which counts as a delivery. So
    // limited numbers are taken one by one, and the consumer ends before each is acknowledged.
    let size = if args.count.is_some() { 1 } else { 100 };
    let mut page = browser.page(&target.queue, size)?;
    let mut received = 0;
    let mut quiet = Duration::ZERO;
    let patience = args.timeout.map(|delay| Duration::from_secs(delay.seconds().into()));
    while args.count.is_none_or(|count| received < count) {
        if interrupted.load(Ordering::Relaxed) {
            let early = args.count.is_some() && !ending::nobody_reads();
            return Ok(if early { Code::Interrupted } else { Code::Done });
        }
        match page.next(TICK) {
            Turned::Delivery(delivery) => {
                let arrival = Arrival::new(&delivery, Timestamp::now());
                // Shown before it is acknowledged: a message that could not be shown stays
                // with the broker.
                if output.json {
                    output.json(&arrival)?
                } else {
                    output.line(arrival.line())?
                }
                if output.is_unread() {
                    return Ok(Code::Done);
                }
                if args.count.is_some() {
                    page.end()?;
                }
                browser.ack(delivery)?;
                received += 1;
                quiet = Duration::ZERO;
                if args.count.is_some_and(|count| received < count) {
                    page = browser.page(&target.queue, size)?;
                }
            }
            Turned::Timeout => {
                quiet += TICK;
                if patience.is_some_and(|patience| quiet >= patience) {
                    return Err(Failure::new(
                        Code::Problem,
                        format!("nothing arrived for {}", args.timeout.unwrap_or_default()),
                    ));
                }
            }
            Turned::Ended(cause) => return Err(Failure::new(Code::Broker, cause.to_string())),
        }
    }
    Ok(Code::Done)
}

impl Arrival {
    fn new(delivery: &Delivery, now: Timestamp) -> Self {
        let milliseconds = |name: &str| delivery.headers.get(name).and_then(Value::as_i64);
        let mut sample = Sample::new(delivery, usize::MAX);
        sample.arrived = Some(now);
        Self {
            late_ms: milliseconds(headers::DUE).map(|due| now.as_millisecond().saturating_sub(due)),
            app: delivery.routing_key.parse::<RoutingKey>().ok().map(|key| key.app.to_string()),
            redelivered: delivery.redelivered,
            expired: milliseconds(headers::EXPIRES).is_some_and(|expires| expires < now.as_millisecond()),
            sample,
        }
    }

    fn line(&self) -> String {
        let late = self.late_ms.map_or_else(|| "?".into(), |ms| format!("{ms} ms"));
        let expired = if self.expired { " expired" } else { "" };
        let body = match &self.sample.body {
            // One line each, and nothing that could steer the terminal.
            Some(text) => readable(&text.chars().take(200).collect::<String>()),
            None => format!("({} bytes that are not text)", self.sample.bytes),
        };
        let arrived = self.sample.arrived.map(clock).unwrap_or_default();
        format!("{arrived}  late {late:>7}{expired}  {body}")
    }
}

/// The queue we consume from, and which parts of it we made.
struct Listening {
    queue: String,
    /// It gets copies for us, or got them for an earlier run that was killed.
    copies: bool,
    made_queue: bool,
    /// Each with whether we made it.
    bindings: Vec<(Binding, bool)>,
}

impl Listening {
    fn set_up(args: &Args, settings: &Settings, session: &mut Session) -> Result<Self, Failure> {
        let names = Names::new(settings.topology.set.clone());
        let (queue, made_queue) = match &args.queue {
            // Not an exclusive queue: it is deleted with our connection, even while a message is being
            // handed to it, and that can stall a level for every application (`HAND_OVER`).
            None => (names.listener(&format!("{:016x}", fastrand::u64(..))), true),
            Some(name) => {
                let depth = session.queue_depth(name)?;
                if names.is_listener(name) && depth.is_some_and(|depth| depth.consumers > Some(0)) {
                    let reason = format!("queue `{name}` belongs to a running `delayline listen`");
                    return Err(Failure::new(Code::Problem, reason));
                }
                (name.clone(), depth.is_none())
            }
        };
        let copies = names.is_listener(&queue);
        if made_queue {
            let mut arguments = vec![("x-queue-type".to_owned(), QueueType::Quorum.as_str().into())];
            if copies {
                arguments.push(("x-max-length".to_owned(), COPIES.into()));
                // Overrides a policy: refused messages would stall a level for every application.
                arguments.push(("x-overflow".to_owned(), "drop-head".into()));
            }
            session.declare_queue(&Queue::new(queue.clone()).with_arguments(arguments))?;
        }
        let mut listening = Self { queue, copies, made_queue, bindings: Vec::new() };
        match listening.bind(&args.app, &names, settings, session) {
            Ok(()) => Ok(listening),
            Err(error) => {
                if listening.take_down(session).is_err() {
                    listening.may_stay(args, settings);
                }
                Err(error)
            }
        }
    }

    fn bind(
        &mut self,
        app: &AppKey,
        names: &Names,
        settings: &Settings,
        session: &mut Session,
    ) -> Result<(), Failure> {
        let binding = |source, key| Binding { source, destination: Endpoint::Queue(self.queue.clone()), key };
        let without_id = binding(names.dispatch(), RoutingKey::binding_pattern(app));
        // Messages with an id that were not recalled.
        let with_id = binding(names.through(app), String::new());
        // A binding that existed before has another owner. If we cannot find out, it is left
        // alone: without it, the owner's messages would be diverted.
        let is_made =
            |binding: &Binding| self.made_queue || self.copies || stands(settings, binding) == Some(false);
        let made = [is_made(&without_id), is_made(&with_id)];
        session.bind(&without_id).map_err(without_dispatch)?;
        self.bindings.push((without_id, made[0]));
        match session.bind(&with_id) {
            Ok(()) => self.bindings.push((with_id, made[1])),
            Err(error) if error.code() == Some(NOT_FOUND) => {}
            Err(error) if error.code() == Some(ACCESS_REFUSED) => {
                aside(format!("messages with an id are not shown: {error}"));
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn may_stay(&self, args: &Args, settings: &Settings) {
        if self.copies {
            let listen = settings.command(&["listen", "--app", args.app.as_str(), "--queue", &self.queue]);
            aside(format!("the queue may still exist: `{listen}` removes it when it ends"));
        }
    }

    fn take_down(&self, session: &mut Session) -> Result<(), Failure> {
        for (binding, made) in &self.bindings {
            match made {
                true => session.unbind(binding)?,
                false => aside(format!("left in place, since it may have existed before: {binding}")),
            }
        }
        if !self.made_queue && !self.copies {
            return Ok(());
        }
        thread::sleep(HAND_OVER);
        // Messages that we got but did not show return to the queue when our consumer closes, a
        // moment later.
        for _ in 0..20 {
            match session.queue_depth(&self.queue)? {
                None => return Ok(()),
                Some(QueueDepth { consumers: Some(0) | None, .. }) if self.copies => {
                    session.delete_queue(&self.queue)?;
                    return Ok(());
                }
                // Only the queue itself knows: a broker reports 0 for a queue that does not answer.
                Some(QueueDepth { ready: Some(0), consumers: Some(0), .. }) => {
                    match session.is_empty(&self.queue) {
                        Ok(true) => drop(session.delete_queue(&self.queue)?),
                        Ok(false) => break,
                        Err(error) => aside(format!(
                            "queue `{}` stays: it is unknown whether it holds messages ({error})",
                            self.queue
                        )),
                    }
                    return Ok(());
                }
                Some(QueueDepth { consumers: Some(0), .. }) => break,
                Some(_) => thread::sleep(TICK),
            }
        }
        aside(format!(
            "queue `{}` stays: it holds messages, has another consumer, or could not be counted",
            self.queue
        ));
        Ok(())
    }
}

/// AMQP's reply codes where an exchange is missing, and where it is not ours to read.
const NOT_FOUND: u16 = 404;
const ACCESS_REFUSED: u16 = 403;

/// Why there is no binding to the dispatch exchange.
fn without_dispatch(error: AmqpError) -> Failure {
    match error.code() {
        Some(NOT_FOUND) => Failure::new(Code::Broker, format!("{error}; {}", if_missing())),
        _ => error.into(),
    }
}

/// Whether a binding exists; `None` if that is unknown.
fn stands(settings: &Settings, binding: &Binding) -> Option<bool> {
    let api = ManagementApi::new(settings.management.as_ref()?).ok()?;
    api.has_binding(&settings.broker.vhost, binding).ok()
}
