//! Frames over a socket, with or without TLS.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use rustls::StreamOwned;

use crate::{
    broker::Broker,
    connection::{connect, handshake, unreachable},
    error::AmqpError,
    tls::Material,
};

use super::wire::{Value, value};

/// The largest frame that is accepted.
pub(super) const FRAME: u32 = 128 * 1024;

/// How long a broker may stay silent while an answer is due.
const PATIENCE: Duration = Duration::from_secs(30);

/// Brokers end a connection that is silent for 60 s, or for their configured time.
const BEAT: Duration = Duration::from_secs(5);

pub(super) const AMQP: &[u8; 8] = b"AMQP\x00\x01\x00\x00";
pub(super) const SASL: &[u8; 8] = b"AMQP\x03\x01\x00\x00";

trait Stream: Read + Write + Send {}
impl<S: Read + Write + Send> Stream for S {}

/// A connection, frame by frame.
pub(super) struct Frames {
    stream: Box<dyn Stream>,
    /// The same socket, for its time limits.
    socket: TcpStream,
    address: String,
    /// Received bytes that were not read yet.
    buffer: Vec<u8>,
    written: Instant,
    /// How long the broker may take to answer.
    patience: Duration,
    /// Whether empty frames may be sent as heartbeats: not before the login has ended.
    beating: bool,
}

impl Frames {
    pub(super) fn open(broker: &Broker) -> Result<Self, AmqpError> {
        let deadline = Instant::now() + broker.connect_timeout;
        let mut socket = connect(broker, deadline)?;
        let limits = socket.try_clone().map_err(|error| unreachable(broker, &error))?;
        let stream: Box<dyn Stream> = match &broker.tls {
            None => Box::new(socket),
            Some(tls) => {
                let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
                let config = Material::load(tls).and_then(Material::client_config).map_err(|error| {
                    AmqpError::Tls { address: broker.to_string(), reason: error.to_string() }
                })?;
                let session = handshake(broker, &mut socket, config, left)?;
                Box::new(StreamOwned::new(session, socket))
            }
        };
        limits.set_write_timeout(Some(PATIENCE)).map_err(|error| unreachable(broker, &error))?;
        Ok(Self {
            stream,
            socket: limits,
            address: broker.to_string(),
            buffer: Vec::new(),
            written: Instant::now(),
            patience: PATIENCE.min(broker.connect_timeout),
            beating: false,
        })
    }

    /// The connection is open from here on.
    pub(super) fn opened(&mut self) {
        (self.patience, self.beating) = (PATIENCE, true);
    }

    /// Sends an empty frame as a heartbeat, if one is due.
    pub(super) fn beat(&mut self) -> Result<(), AmqpError> {
        match self.beating && self.written.elapsed() >= BEAT {
            true => self.write(0, &[]),
            false => Ok(()),
        }
    }

    /// Sends a protocol header and waits for the same.
    pub(super) fn greet(&mut self, name: &[u8; 8]) -> Result<(), AmqpError> {
        self.send(name)?;
        let deadline = Instant::now() + self.patience;
        while self.buffer.len() < name.len() {
            self.read_until(deadline)?;
        }
        if self.buffer[..8] != name[..] {
            let reason = "it does not speak AMQP 1.0";
            return Err(self.refused(reason.into()));
        }
        self.buffer.drain(..8);
        Ok(())
    }

    /// Waits for a frame with one of these codes and ignores others.
    pub(super) fn expect(&mut self, codes: &[u8]) -> Result<Vec<Field>, AmqpError> {
        let (frame, _) = self.frame(codes)?;
        match value(&mut &frame[..]) {
            Some((_, Value::List(fields))) => Ok(fields.map(Field::from).collect()),
            _ => Err(self.lost("a frame is malformed")),
        }
    }

    /// The next frame with one of these codes. An error if the broker ends the link, the session or
    /// the connection.
    pub(super) fn frame(&mut self, codes: &[u8]) -> Result<(Vec<u8>, u8), AmqpError> {
        let deadline = Instant::now() + self.patience;
        loop {
            while let Some(body) = self.next_frame()? {
                let mut rest = &body[..];
                let Some((Some(code), Value::List(mut fields))) = value(&mut rest) else { continue };
                match u8::try_from(code).unwrap_or(0) {
                    0x16 => return Err(self.ended(fields.nth(2))),
                    0x17 | 0x18 => return Err(self.ended(fields.next())),
                    code if codes.contains(&code) => return Ok((body, code)),
                    _ => {}
                }
            }
            self.read_until(deadline)?;
        }
    }

    /// The body of the next frame, if it is complete. Empty frames are skipped.
    fn next_frame(&mut self) -> Result<Option<Vec<u8>>, AmqpError> {
        loop {
            let Some(head) = self.buffer.first_chunk::<8>() else { return Ok(None) };
            let size = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
            let start = usize::from(head[4]) * 4;
            let length = usize::try_from(size).unwrap_or(usize::MAX);
            if size > FRAME || start < 8 || length < start {
                return Err(self.lost("a frame is malformed"));
            }
            if self.buffer.len() < length {
                return Ok(None);
            }
            let body = self.buffer[start..length].to_vec();
            self.buffer.drain(..length);
            if !body.is_empty() {
                return Ok(Some(body));
            }
        }
    }

    /// Reads the available bytes, or waits for some.
    fn read_until(&mut self, deadline: Instant) -> Result<(), AmqpError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(self.lost("the broker did not answer"));
        }
        self.beat()?;
        let mut chunk = [0; 16 * 1024];
        let limit = left.clamp(Duration::from_millis(1), BEAT);
        self.socket.set_read_timeout(Some(limit)).map_err(|error| self.lost(&error.to_string()))?;
        match self.stream.read(&mut chunk) {
            Ok(0) => Err(self.lost("the broker ended it")),
            Ok(length) => {
                self.buffer.extend_from_slice(&chunk[..length]);
                Ok(())
            }
            Err(error) if is_timeout(&error) => Ok(()),
            Err(error) => Err(self.lost(&error.to_string())),
        }
    }

    pub(super) fn write(&mut self, kind: u8, body: &[u8]) -> Result<(), AmqpError> {
        let size = u32::try_from(body.len() + 8).unwrap_or(u32::MAX).to_be_bytes();
        self.send(&[&size[..], &[2, kind, 0, 0], body].concat())
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), AmqpError> {
        self.written = Instant::now();
        self.stream
            .write_all(bytes)
            .and_then(|()| self.stream.flush())
            .map_err(|error| self.lost(&error.to_string()))
    }

    fn lost(&self, reason: &str) -> AmqpError {
        AmqpError::Lost { reason: format!("{reason} (AMQP 1.0)") }
    }

    pub(super) fn refused(&self, reason: String) -> AmqpError {
        AmqpError::Refused { address: self.address.clone(), reason }
    }

    /// Why the broker ended a link, session or connection: a condition and a text.
    fn ended(&self, error: Option<Value<'_>>) -> AmqpError {
        let Some(Value::List(fields)) = error else { return self.lost("the broker ended it") };
        let words: Vec<_> = fields.filter_map(|field| field.text()).collect();
        self.refused(words.join(": "))
    }
}

fn is_timeout(error: &io::Error) -> bool {
    [ErrorKind::WouldBlock, ErrorKind::TimedOut, ErrorKind::Interrupted].contains(&error.kind())
}

/// A field of a performative, as far as it is used after its frame is gone.
pub(super) enum Field {
    Number(u64),
    List,
    Other,
}

impl From<Value<'_>> for Field {
    fn from(value: Value<'_>) -> Self {
        match value {
            Value::Unsigned(number) => Self::Number(number),
            Value::List(_) => Self::List,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::{super::Receiver, *};

    /// A broker that accepts connections, sends these bytes and then stays silent. The thread
    /// returns the bytes that it received.
    fn deaf(answer: &'static [u8]) -> (Broker, thread::JoinHandle<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let told = thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            socket.write_all(answer).unwrap();
            let mut told = Vec::new();
            let _ = socket.read_to_end(&mut told);
            told
        });
        let broker = Broker::from_url(&format!("amqp://127.0.0.1:{port}")).unwrap();
        (broker.with_connect_timeout(Duration::from_millis(300)), told)
    }

    #[test]
    fn a_silent_broker_is_given_up() {
        // It sends nothing at all, and then only its protocol header.
        for answer in [&[][..], SASL] {
            let (broker, told) = deaf(answer);
            let error = Receiver::open(&broker, "queue", None).unwrap_err();
            assert!(error.is_connection(), "{error}");
            assert_eq!(told.join().unwrap(), SASL);
        }
    }

    #[test]
    fn a_login_is_not_interrupted_by_heartbeats() {
        let (broker, told) = deaf(SASL);
        let mut frames = Frames::open(&broker).unwrap();
        frames.greet(SASL).unwrap();
        frames.written = Instant::now().checked_sub(2 * BEAT).unwrap();
        assert!(frames.expect(&[0x40]).is_err());
        drop(frames);
        assert_eq!(told.join().unwrap(), SASL);
        // An open connection needs them.
        let (broker, told) = deaf(SASL);
        let mut frames = Frames::open(&broker).unwrap();
        frames.opened();
        frames.written = Instant::now().checked_sub(2 * BEAT).unwrap();
        frames.beat().unwrap();
        drop(frames);
        assert_eq!(told.join().unwrap(), [0, 0, 0, 8, 2, 0, 0, 0]);
    }
}
