//! Receiving: the same for every layout.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use delayline_amqp::{Next, Session, broker::Broker};
use delayline_core::message::{Headers, Value};

use super::{Fallible, broker::INBOX};

/// The most messages handed out and not acknowledged.
pub const PREFETCH: u16 = 1_000;

/// A message that came, as the sender numbered it.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    pub id: u64,
    pub at: Instant,
    pub header_bytes: usize,
}

/// A consumer of the inbox on a thread and a connection of its own.
pub struct Inbox {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
    thread: Option<JoinHandle<Fallible<Vec<Arrival>>>>,
}

impl Inbox {
    /// Consumes the messages of one phase; those of others are thrown away.
    pub fn open(broker: &Broker, phase: u32) -> Fallible<Self> {
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let mut session = Session::open(broker)?;
        let consumer = session.consume(INBOX, PREFETCH)?;
        let (stopped, counter) = (Arc::clone(&stop), Arc::clone(&count));
        let thread = thread::spawn(move || {
            let mut arrivals = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                match consumer.next(Duration::from_millis(50)) {
                    Next::Delivery(delivery) => {
                        let at = Instant::now();
                        if let Some((of, id)) = read_id(&delivery.body)
                            && of == phase
                        {
                            arrivals.push(Arrival { id, at, header_bytes: table_len(&delivery.headers) });
                            counter.fetch_add(1, Ordering::Relaxed);
                        }
                        consumer.ack(delivery)?;
                    }
                    Next::Timeout => {}
                    Next::Ended(cause) => return Err(format!("the consumer ended: {cause:?}").into()),
                }
            }
            drop((consumer, session));
            Ok(arrivals)
        });
        Ok(Self { stop, count, thread: Some(thread) })
    }

    /// How many have come, each time counted.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Ends it, and returns what came.
    pub fn close(mut self) -> Fallible<Vec<Arrival>> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(arrivals)) => arrivals,
            _ => Err("the consumer's thread panicked".into()),
        }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Writes the number of a message into its body.
pub fn write_id(body: &mut [u8], phase: u32, id: u64) {
    body[..4].copy_from_slice(&phase.to_be_bytes());
    body[4..12].copy_from_slice(&id.to_be_bytes());
}

pub fn read_id(body: &[u8]) -> Option<(u32, u64)> {
    let phase = u32::from_be_bytes(body.get(..4)?.try_into().ok()?);
    Some((phase, u64::from_be_bytes(body.get(4..12)?.try_into().ok()?)))
}

/// The bytes of headers as AMQP encodes them.
fn table_len(headers: &Headers) -> usize {
    headers.iter().map(|(name, value)| 1 + name.len() + 1 + value_len(value)).sum()
}

fn value_len(value: &Value) -> usize {
    match value {
        Value::Void => 0,
        Value::Bool(_) | Value::I8(_) | Value::U8(_) => 1,
        Value::I16(_) | Value::U16(_) => 2,
        Value::I32(_) | Value::U32(_) | Value::F32(_) => 4,
        Value::Decimal { .. } => 5,
        Value::I64(_) | Value::F64(_) | Value::Timestamp(_) => 8,
        Value::Text(text) => 4 + text.len(),
        Value::Bytes(bytes) => 4 + bytes.len(),
        Value::Array(values) => 4 + values.iter().map(|value| 1 + value_len(value)).sum::<usize>(),
        Value::Table(table) => 4 + table_len(table),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_survives_in_the_body() {
        let mut body = [b'x'; 32];
        write_id(&mut body, 7, 123_456_789_012);
        assert_eq!(read_id(&body), Some((7, 123_456_789_012)));
        assert_eq!(read_id(b"short"), None);
    }

    #[test]
    fn headers_are_measured_as_they_are_encoded() {
        let headers = Headers::from([("due".into(), Value::I64(1)), ("a".into(), Value::Text("xy".into()))]);
        assert_eq!(table_len(&headers), (1 + 3 + 1 + 8) + (1 + 1 + 1 + 4 + 2));
        let nested = Headers::from([("d".into(), Value::Array(vec![Value::Table(headers)]))]);
        assert_eq!(table_len(&nested), 3 + 4 + (1 + 4 + 22));
    }
}
