//! Reading past messages that AMQP 0-9-1 cannot carry.
//!
//! The broker closes the connection over each of them (see [`amqp::v1`](delayline_amqp::v1)), so the
//! messages behind them are out of reach. They are held over AMQP 1.0 while the others are read. At the end
//! they return to the queue, unless they were discarded.

use std::{
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded, unbounded};

use delayline_amqp::{
    AmqpError, Session,
    v1::{Disposition, Foreign, Oddity, Receiver},
};
use delayline_core::topology::Queue;
use delayline_settings::Settings;

use super::{DrainError, Drained};

/// How many messages are requested at a time.
const BATCH: u32 = 500;

/// How many messages are examined beyond the read limit: held messages make room for others.
const BEYOND: u64 = 1_000;

/// The displayed part of a body, and the limit for all bodies together, in bytes.
const SHOWN: (usize, usize) = (4 * 1024, 64 * 1024 * 1024);

/// How long the broker may take to requeue what a broken connection held.
const BACK: Duration = Duration::from_secs(10);

/// How often in a row the number of messages must be the same.
const SAME: u32 = 5;

/// How often to check whether the broker expects a sign of life.
const TICK: Duration = Duration::from_secs(1);

/// The result of reading past messages that AMQP 0-9-1 cannot carry.
#[derive(Debug)]
pub struct Passed<T> {
    /// What happened to the other messages, without the held ones.
    pub(crate) drained: Drained,
    /// The outcome of the last run.
    pub(crate) value: T,
    /// The held messages.
    pub(crate) aside: Aside,
}

/// Messages that no other consumer gets until this is dropped.
#[derive(Default, Debug)]
pub(crate) struct Aside {
    /// Each with the index of its holder, and the number that settles it there.
    messages: Vec<(usize, u32, Foreign)>,
    holders: Vec<(Sender<Command>, JoinHandle<()>)>,
}

enum Command {
    Accept(Vec<u32>, Sender<Result<(), AmqpError>>),
}

/// Reads a queue with `run`, `limit` messages at most. If messages over which the broker closes connections
/// ended the run, this reads once more past them. The second run finds the messages again that the first
/// one kept.
///
/// # Errors As for `run`.
pub fn past<T>(
    settings: &Settings,
    queue: &Queue,
    limit: u64,
    mut run: impl FnMut() -> Result<(Drained, T), DrainError>,
) -> Result<Passed<T>, DrainError> {
    let (mut drained, mut value) = run()?;
    let mut aside = Aside::default();
    // It is unknown over which other messages a version closes connections.
    for certain in [true, false] {
        // The broker may still be about to close the connection after the last message.
        let whole = drained.interrupted || drained.examined >= drained.waiting.min(limit);
        if drained.failure.is_none() && (whole || !aside.messages.is_empty()) {
            break;
        }
        // The messages of the broken connection are requeued a moment later.
        let there = drained.waiting.saturating_sub(drained.discarded + drained.sent);
        let held = |aside: &Aside| aside.messages.len() as u64;
        await_ready(settings, queue, there.saturating_sub(held(&aside)));
        let before = held(&aside);
        // The failure of the run is more informative than this error.
        if let Err(error) = aside.hold(settings, queue, limit.saturating_add(BEYOND), certain) {
            log::debug!("could not read past it over AMQP 1.0: {error}");
            break;
        }
        if held(&aside) == before {
            continue;
        }
        await_ready(settings, queue, there.saturating_sub(held(&aside)));
        let (again, last) = run()?;
        (drained, value) = (after(drained, again, held(&aside)), last);
    }
    drained.waiting = drained.waiting.max(drained.examined + aside.messages.len() as u64);
    Ok(Passed { drained, value, aside })
}

/// Merges two runs: the second found the messages again that the first kept, without the `held` ones.
/// Acknowledgements lost with the broken connection do not count: a discarded message is discarded once
/// more, and a sent one came back and is sent twice.
fn after(first: Drained, second: Drained, held: u64) -> Drained {
    let gone = first.waiting.saturating_sub(second.waiting + held);
    let sent = first.sent.min(gone);
    let discarded = first.discarded.min(gone - sent);
    Drained {
        waiting: first.waiting,
        examined: discarded + sent + second.examined,
        discarded: discarded + second.discarded,
        sent: sent + second.sent,
        in_doubt: first.in_doubt + (first.sent - sent) + second.in_doubt,
        ..second
    }
}

/// Waits until `count` messages are ready and none return, or until other consumers have clearly taken
/// some.
fn await_ready(settings: &Settings, queue: &Queue, count: u64) {
    let until = Instant::now() + BACK;
    let Ok(mut session) = Session::open(&settings.broker) else { return };
    let (mut last, mut same) = (None, 0);
    while same < SAME && Instant::now() < until {
        let Ok(Some(depth)) = session.queue_depth(&queue.name) else { return };
        let there = depth.ready.is_some_and(|ready| u64::from(ready) >= count) && last == depth.ready;
        same = if there { same + 1 } else { 0 };
        last = depth.ready;
        thread::sleep(Duration::from_millis(100));
    }
}

impl Aside {
    /// Takes the messages out of the queue that AMQP 0-9-1 cannot carry, among the first `most`. With
    /// `certain`, messages that only some versions cannot carry are left.
    fn hold(
        &mut self,
        settings: &Settings,
        queue: &Queue,
        most: u64,
        certain: bool,
    ) -> Result<(), AmqpError> {
        let version = Session::open(&settings.broker)?.server_version();
        let mut receiver = Receiver::open(&settings.broker, &queue.name, version.as_deref())?;
        let (mut messages, mut others, mut bytes, mut left) = (Vec::new(), Vec::new(), 0, most);
        let holder = self.holders.len();
        loop {
            let batch = u32::try_from(left).unwrap_or(BATCH).min(BATCH);
            let taken = receiver.take(batch, |id, mut message| {
                if !message.oddities.keys().any(|oddity| !certain || Oddity::CERTAIN.contains(oddity)) {
                    others.push(id);
                    return;
                }
                shorten(&mut message);
                if bytes + kept(&message) > SHOWN.1 {
                    (message.body, message.headers, message.properties) = Default::default();
                }
                bytes += kept(&message);
                messages.push((holder, id, message));
            })?;
            left -= u64::from(taken);
            if taken < batch || left == 0 {
                break;
            }
        }
        receiver.settle(others, Disposition::Released)?;
        if messages.is_empty() {
            receiver.close();
            return Ok(());
        }
        let (commands, asked) = unbounded();
        let holder = thread::Builder::new().name("delayline-aside".into()).spawn(move || {
            loop {
                match asked.recv_timeout(TICK) {
                    Ok(Command::Accept(ids, done)) => {
                        let _ = done.send(receiver.settle(ids, Disposition::Accepted));
                    }
                    // If the connection is lost, the broker requeues them.
                    Err(RecvTimeoutError::Timeout) if receiver.beat().is_ok() => {}
                    Err(_) => return receiver.close(),
                }
            }
        });
        let holder =
            holder.map_err(|error| AmqpError::Lost { reason: format!("cannot start a thread: {error}") })?;
        self.messages.append(&mut messages);
        self.holders.push((commands, holder));
        Ok(())
    }

    /// The held messages.
    pub(crate) fn messages(&self) -> impl Iterator<Item = &Foreign> {
        self.messages.iter().map(|(.., message)| message)
    }

    /// Counts the held messages as examined and kept.
    pub(crate) fn keep(&self, drained: &mut Drained) {
        let count = self.messages.len() as u64;
        drained.examined += count;
        drained.kept += count;
    }

    /// Counts the held messages as examined, and the selected ones as refused: they cannot be sent on.
    pub(crate) fn refuse(&self, drained: &mut Drained, fits: impl Fn(&Foreign) -> bool) {
        self.keep(drained);
        let count = self.messages().filter(|message| fits(message)).count() as u64;
        drained.kept -= count;
        drained.refused += count;
        if let Some(message) = self.messages().find(|message| fits(message)) {
            let reason = format!("AMQP 0-9-1 cannot carry it: {}", message.described());
            drained.refusal.get_or_insert(reason);
        }
    }

    /// Discards the selected messages for good, and counts all.
    pub(crate) fn discard(&self, drained: &mut Drained, fits: impl Fn(&Foreign) -> bool) {
        self.keep(drained);
        for (place, (commands, _)) in self.holders.iter().enumerate() {
            let held = self.messages.iter().filter(|(holder, ..)| *holder == place);
            let fitting: Vec<_> = held.filter(|(.., message)| fits(message)).map(|(_, id, _)| *id).collect();
            let (count, (done, answer)) = (fitting.len() as u64, bounded(1));
            let lost = |()| AmqpError::Lost { reason: "the connection ended".into() };
            let sent = commands.send(Command::Accept(fitting, done)).map_err(drop).map_err(lost);
            match sent.and_then(|()| answer.recv().map_err(drop).map_err(lost)?) {
                Ok(()) => {
                    drained.kept -= count;
                    drained.discarded += count;
                }
                Err(error) => drained.failure = Some(error.to_string()),
            }
        }
    }
}

/// Leaves the displayed part of a body. The rest would stay in memory until it is given back.
fn shorten(message: &mut Foreign) {
    message.body.truncate(SHOWN.0);
    message.body.shrink_to_fit();
}

/// How many bytes of a message are kept.
fn kept(message: &Foreign) -> usize {
    let headers = message.headers.iter().map(|(name, value)| name.len() + value.capacity());
    let properties = message.properties.values().map(String::capacity);
    message.body.capacity() + headers.chain(properties).sum::<usize>()
}

impl Drop for Aside {
    fn drop(&mut self) {
        for (commands, holder) in self.holders.drain(..) {
            drop(commands);
            let _ = holder.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_body_is_not_kept() {
        let mut message = Foreign { body: vec![7; 1 << 20], ..Foreign::default() };
        message.headers.insert("x".into(), "y".repeat(99));
        assert!(kept(&message) > 1 << 20);
        shorten(&mut message);
        assert_eq!((message.body.len(), kept(&message)), (SHOWN.0, SHOWN.0 + 100));
    }

    #[test]
    fn two_runs_count_kept_messages_once() {
        let first = Drained {
            waiting: 10,
            examined: 6,
            kept: 2,
            discarded: 3,
            sent: 1,
            failure: Some("541".into()),
            ..Drained::default()
        };
        let second = Drained { waiting: 5, examined: 5, kept: 3, discarded: 2, ..Drained::default() };
        let expected =
            Drained { waiting: 10, examined: 9, kept: 3, discarded: 5, sent: 1, ..Drained::default() };
        assert_eq!(after(first.clone(), second.clone(), 1), expected);
        // Some or all acknowledgements were lost.
        let second = Drained { waiting: 6, examined: 6, discarded: 3, ..second };
        assert_eq!(after(first.clone(), second.clone(), 1), expected);
        let second = Drained { waiting: 9, examined: 9, discarded: 6, ..second };
        let twice = after(first, second, 1);
        assert_eq!((twice.examined, twice.discarded, twice.sent, twice.in_doubt), (9, 6, 0, 1));
    }
}
