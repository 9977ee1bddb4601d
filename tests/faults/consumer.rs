//! The application's side: it consumes messages, whatever happens to its connection.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use delayline_amqp::{AmqpError, Next, Session, broker::Broker};

use crate::ledger::{Ledger, Place};

pub struct Consumer {
    stop: Arc<AtomicBool>,
    hold: Arc<AtomicBool>,
    again: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Consumer {
    /// Consumes from a queue into the ledger until it is dropped.
    pub fn start(broker: &Broker, queue: &str, ledger: Arc<Ledger>, place: Place) -> Self {
        let [stop, hold, again] = std::array::from_fn(|_| Arc::new(AtomicBool::new(false)));
        let work = Work {
            broker: broker.clone(),
            queue: queue.into(),
            ledger,
            place,
            stop: Arc::clone(&stop),
            hold: Arc::clone(&hold),
            again: Arc::clone(&again),
        };
        let thread = thread::spawn(move || {
            while !work.stop.load(Ordering::Relaxed) {
                if work.hold.load(Ordering::Relaxed) || work.consume().is_err() {
                    thread::sleep(Duration::from_millis(100));
                }
            }
        });
        Self { stop, hold, again, thread: Some(thread) }
    }

    /// Closes the connection and stays away, or reconnects.
    pub fn hold(&self, hold: bool) {
        self.hold.store(hold, Ordering::Relaxed);
    }

    /// Closes the connection and reconnects at once, like an application that is restarted.
    pub fn subscribe_again(&self) {
        self.again.store(true, Ordering::Relaxed);
    }
}

struct Work {
    broker: Broker,
    queue: String,
    ledger: Arc<Ledger>,
    place: Place,
    stop: Arc<AtomicBool>,
    hold: Arc<AtomicBool>,
    again: Arc<AtomicBool>,
}

impl Work {
    fn is_wanted(&self) -> bool {
        let told = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        !told(&self.stop) && !told(&self.hold) && !self.again.swap(false, Ordering::Relaxed)
    }

    fn consume(&self) -> Result<(), AmqpError> {
        let mut session = Session::open(&self.broker)?;
        let consumer = session.consume(&self.queue, 500)?;
        while self.is_wanted() {
            match consumer.next(Duration::from_millis(100)) {
                Next::Delivery(delivery) => {
                    let id = delivery.properties.message_id.as_deref().and_then(|id| id.parse().ok());
                    let id = id.expect("a message of this run");
                    self.ledger.arrive(id, delivery.redelivered, self.place);
                    consumer.ack(delivery)?;
                }
                Next::Timeout => {}
                Next::Ended(_) => break,
            }
        }
        Ok(())
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
