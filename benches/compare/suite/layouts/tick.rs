//! One queue with a short TTL, and a consumer that looks again and again.

use std::{
    any::Any,
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use delayline_amqp::{Delivery, Next, Session};
use delayline_core::message::Headers;
use delayline_measure::ledger::Answer;
use delayline_settings::Settings;

use super::{Address, Fallible, Layout, Vhost, Workload};
use crate::suite::{
    broker::INBOX,
    outbox::{Outbox, WINDOW},
};

const DUE: &str = "due";
const TICK: &str = "tick";
const LOOK: &str = "tick.look";

pub struct Tick;

impl Layout for Tick {
    fn install(&mut self, vhost: &mut Vhost<'_>, _: &Workload) -> Fallible<()> {
        vhost.queue(LOOK, &[("x-queue-type", "quorum".into())])?;
        let ttl = i64::try_from(vhost.unit_ms)?;
        vhost.queue(
            TICK,
            &[
                ("x-queue-type", "quorum".into()),
                ("x-message-ttl", ttl.into()),
                ("x-dead-letter-exchange", "".into()),
                ("x-dead-letter-routing-key", LOOK.into()),
                ("x-dead-letter-strategy", "at-least-once".into()),
                ("x-overflow", "reject-publish".into()),
            ],
        )
    }

    fn address(&mut self, _: &mut Vhost<'_>, _: u64) -> Fallible<Address> {
        Ok(Address { key: TICK.into(), due_header: Some(DUE), ..Address::default() })
    }

    fn first_queue(&self, _: u64) -> Option<String> {
        Some(TICK.into())
    }

    fn helper(&self, vhost: &Vhost<'_>) -> Fallible<Option<Box<dyn Any>>> {
        Ok(Some(Box::new(Looker::start(&vhost.settings)?)))
    }
}

/// The consumer.
struct Looker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Looker {
    fn start(settings: &Settings) -> Fallible<Self> {
        let mut session = Session::open(&settings.broker)?;
        let consumer = session.consume(LOOK, 1_000)?;
        let mut outbox = Outbox::open(&settings.broker)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let work = move || -> Fallible<()> {
            // Acknowledged once its successor is confirmed; in the order of publishing.
            let mut held: VecDeque<(usize, Delivery)> = VecDeque::new();
            while !stopped.load(Ordering::Relaxed) {
                match consumer.next(Duration::from_millis(1)) {
                    Next::Delivery(delivery) => {
                        let due = delivery.headers.get(DUE).and_then(delayline_core::message::Value::as_i64);
                        let queue = if due.is_none_or(|due| due <= now_ms()) { INBOX } else { TICK };
                        let address = Address { key: queue.into(), ..Address::default() };
                        // A copied `x-death` would lose it on some versions.
                        let headers: Headers = delivery
                            .headers
                            .iter()
                            .filter(|(name, _)| name.as_str() == DUE)
                            .map(|(name, value)| (name.clone(), value.clone()))
                            .collect();
                        let number = outbox.publish(&address, &headers, &delivery.body);
                        held.push_back((number, delivery));
                    }
                    Next::Timeout => {}
                    Next::Ended(cause) => return Err(format!("{cause:?}").into()),
                }
                outbox.settle(WINDOW - 1, Instant::now() + Duration::from_secs(10))?;
                while let Some((number, delivery)) = held.pop_front() {
                    if outbox.answers()[number] == Some(Answer::Confirmed) {
                        consumer.ack(delivery)?;
                    } else {
                        held.push_front((number, delivery));
                        break;
                    }
                }
            }
            drop((consumer, session));
            Ok(())
        };
        let thread = thread::spawn(move || {
            if let Err(error) = work() {
                eprintln!("   the consumer of the tick queue: {error}");
            }
        });
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Looker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Milliseconds since the epoch.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
