//! Inspecting frames that the client library would misread.
//!
//! If a header's text is not UTF-8, the library drops it and every later header. It skips a
//! property that is not UTF-8 and takes the next value for it. It keeps only one of two headers
//! with the same name, and gives up the connection over a routing key that is not UTF-8. Tables
//! nested thousands deep overflow its stack.
//!
//! So a single foreign message would be corrupted silently, or would end every connection or
//! process that receives it. This module inspects frames before the library reads them. A message
//! that the library cannot represent loses its properties here and is marked. Consumers do not send
//! marked messages on.

use std::{
    collections::HashSet,
    io::{self, Read, Write},
    net::TcpStream,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use amiquip::IoStream;
use mio::{Evented, Poll, PollOpt, Ready, Token};

use delayline_core::message::MAX_NESTING;

use crate::{arrivals::Arrivals, convert::big_endian};

use super::login::Login;

const METHOD: u8 = 1;
const HEADER: u8 = 2;
/// The class `basic` with its methods `deliver` and `get-ok`.
const DELIVER: [u8; 4] = [0, 60, 0, 60];
const GET_OK: [u8; 4] = [0, 60, 0, 71];
/// Type, channel and length. One more byte follows the payload.
const FRAME_HEAD: usize = 7;
/// Class, weight, body length and flags of a content header.
const CONTENT_HEAD: usize = 14;
/// Where a content header has the length of the body.
const BODY_LENGTH: Range<usize> = 4..12;
/// How many bytes are read from the socket at a time.
const CHUNK: usize = 64 * 1024;

/// Whether the other side has ended a connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct HungUp(Arc<AtomicBool>);

impl HungUp {
    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Passes on the result of a read, and records the end of the stream.
    fn note(&self, read: io::Result<usize>) -> io::Result<usize> {
        let ended = match &read {
            Ok(length) => *length == 0,
            Err(error) => {
                [io::ErrorKind::ConnectionReset, io::ErrorKind::UnexpectedEof].contains(&error.kind())
            }
        };
        if ended {
            self.0.store(true, Ordering::Relaxed);
        }
        read
    }
}

/// A stream that inspects incoming frames where needed, and inserts the password into outgoing
/// bytes.
pub(crate) struct Inspected<S> {
    inner: S,
    _hold: Arc<TcpStream>,
    hung_up: HungUp,
    login: Option<Login>,
    inspector: Option<Inspector>,
    chunk: Box<[u8]>,
}

impl<S> Inspected<S> {
    /// Also keeps a handle on its socket, and records when the other side ends it.
    pub(crate) fn new(
        inner: S,
        (hold, hung_up): (Arc<TcpStream>, HungUp),
        login: Option<Login>,
        arrivals: Option<Arrivals>,
    ) -> Self {
        let inspector = arrivals.map(Inspector::new);
        Self { inner, _hold: hold, hung_up, login, inspector, chunk: vec![0; CHUNK].into() }
    }
}

/// Incoming frames.
struct Inspector {
    arrivals: Arrivals,
    /// Incoming bytes. Bytes up to `inspected`, which can be past the end, may be passed on, and
    /// `handed_on` bytes were.
    buffer: Vec<u8>,
    inspected: usize,
    handed_on: usize,
    /// The channel and tag of the last delivery, until its content header arrives.
    deliveries: Vec<(u16, u64)>,
}

impl Inspector {
    fn new(arrivals: Arrivals) -> Self {
        Self { arrivals, buffer: Vec::new(), inspected: 0, handed_on: 0, deliveries: Vec::new() }
    }

    /// Takes in bytes, and inspects the frames that they complete.
    fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.handed_on);
        self.inspected -= self.handed_on;
        self.handed_on = 0;
        self.buffer.extend_from_slice(bytes);
        while let Some(rest) = self.buffer.get(self.inspected..)
            && rest.len() >= FRAME_HEAD
        {
            let kind = rest[0];
            let length = big_endian(&rest[3..FRAME_HEAD]);
            let whole = FRAME_HEAD + usize::try_from(length).unwrap_or(usize::MAX - 8) + 1;
            if kind != METHOD && kind != HEADER {
                // Bodies and heartbeats pass unchanged, and so do bytes that are not a frame.
                self.inspected += whole;
                continue;
            }
            if rest.len() < whole {
                break;
            }
            self.inspected += self.inspect(self.inspected, whole);
        }
    }

    /// Inspects one frame and returns its new length.
    fn inspect(&mut self, start: usize, whole: usize) -> usize {
        let frame = &mut self.buffer[start..start + whole];
        let channel = u16::from_be_bytes([frame[1], frame[2]]);
        let payload = FRAME_HEAD..whole - 1;
        if frame[0] == METHOD {
            if [DELIVER, GET_OK].iter().any(|method| frame[payload.clone()].starts_with(method)) {
                let Some((tag, readable)) = deliver(&mut frame[payload]) else { return whole };
                self.deliveries.retain(|(other, _)| *other != channel);
                self.deliveries.push((channel, tag));
                if !readable {
                    self.arrivals.note_damage(channel, tag);
                }
            }
            return whole;
        }
        let index = self.deliveries.iter().position(|(other, _)| *other == channel);
        let Some((_, tag)) = index.map(|index| self.deliveries.swap_remove(index)) else { return whole };
        if let Some(length) = frame[payload.clone()].get(BODY_LENGTH) {
            self.arrivals.announce(big_endian(length));
        }
        if content(&frame[payload]).is_some() {
            return whole;
        }
        self.arrivals.note_damage(channel, tag);
        // The library can read it without properties.
        let end = start + whole - 1;
        let kept = start + FRAME_HEAD + CONTENT_HEAD;
        if kept > end {
            return whole;
        }
        self.buffer[kept - 2..kept].fill(0);
        self.buffer[start + 3..start + FRAME_HEAD].copy_from_slice(&14_u32.to_be_bytes());
        self.buffer.drain(kept..end);
        FRAME_HEAD + CONTENT_HEAD + 1
    }

    /// Passes on inspected bytes; `None` if there are none.
    fn pull(&mut self, target: &mut [u8]) -> Option<usize> {
        let ready = self.inspected.min(self.buffer.len());
        let length = (ready - self.handed_on).min(target.len());
        if length == 0 {
            return None;
        }
        target[..length].copy_from_slice(&self.buffer[self.handed_on..self.handed_on + length]);
        self.handed_on += length;
        Some(length)
    }
}

/// The tag of a `basic.deliver` or `basic.get-ok`, and whether its exchange and routing key are UTF-8. Bytes
/// that are not are replaced by question marks.
fn deliver(payload: &mut [u8]) -> Option<(u64, bool)> {
    // Class and method, the consumer's tag if there is one, the delivery's tag, the flags.
    let tag = if payload.starts_with(&GET_OK) { 4 } else { 5 + usize::from(*payload.get(4)?) };
    let number = big_endian(payload.get(tag..tag + 8)?);
    let (mut at, mut readable) = (tag + 9, true);
    for _ in 0..2 {
        let length = usize::from(*payload.get(at)?);
        let name = payload.get_mut(at + 1..at + 1 + length)?;
        if std::str::from_utf8(name).is_err() {
            readable = false;
            name.iter_mut().filter(|byte| !byte.is_ascii()).for_each(|byte| *byte = b'?');
        }
        at += 1 + length;
    }
    Some((number, readable))
}

/// Reads through a content header. `None` if a value in it cannot be represented.
fn content(payload: &[u8]) -> Option<()> {
    let mut reader = Reader { rest: payload, depth: 0 };
    reader.take(CONTENT_HEAD - 2)?;
    let flags = big_endian(reader.take(2)?);
    let is_set = |index: u32| flags >> (15 - index) & 1 == 1;
    // Content type, encoding, headers, delivery mode, priority, correlation id,
    // reply-to, expiration, message id, timestamp, type, user id, app id. The
    // last, a cluster id, is obsolete and has no place in our properties.
    for index in 0..13 {
        if is_set(index) {
            match index {
                2 => reader.table()?,
                3 | 4 => drop(reader.take(1)?),
                9 => drop(reader.take(8)?),
                _ => reader.text()?,
            }
        }
    }
    (flags & 0b111 == 0 && reader.rest.is_empty()).then_some(())
}

struct Reader<'a> {
    rest: &'a [u8],
    depth: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(head)
    }

    fn long(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(big_endian(self.take(4)?)).ok()?;
        self.take(length)
    }

    fn short(&mut self) -> Option<&'a [u8]> {
        let length = self.take(1)?[0];
        self.take(length.into())
    }

    /// A reader of the bytes that a length announces, one level deeper.
    fn inner(&mut self) -> Option<Self> {
        let depth = self.depth + 1;
        (depth <= MAX_NESTING).then_some(Self { rest: self.long()?, depth })
    }

    fn text(&mut self) -> Option<()> {
        std::str::from_utf8(self.short()?).ok().map(drop)
    }

    fn table(&mut self) -> Option<()> {
        let mut table = self.inner()?;
        let mut names = Vec::new();
        while !table.rest.is_empty() {
            names.push(std::str::from_utf8(table.short()?).ok()?);
            table.value()?;
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        (names.len() == count).then_some(())
    }

    fn value(&mut self) -> Option<()> {
        match self.take(1)?[0] {
            b'V' => Some(()),
            b't' | b'b' | b'B' => self.take(1).map(drop),
            b's' | b'u' => self.take(2).map(drop),
            b'I' | b'i' | b'f' => self.take(4).map(drop),
            b'l' | b'd' | b'T' => self.take(8).map(drop),
            b'D' => self.take(5).map(drop),
            b'S' => std::str::from_utf8(self.long()?).ok().map(drop),
            b'x' => self.long().map(drop),
            b'F' => self.table(),
            b'A' => {
                let mut values = self.inner()?;
                while !values.rest.is_empty() {
                    values.value()?;
                }
                Some(())
            }
            _ => None,
        }
    }
}

/// The output does not depend on how the input is split.
pub fn frames(bytes: &[u8]) {
    let whole = through(bytes, usize::MAX);
    for piece in [1, 7, 4_096] {
        assert_eq!(through(bytes, piece), whole, "in pieces of {piece}");
    }
}

/// The output for input split into pieces of a length, and the deliveries that cannot be
/// represented.
fn through(bytes: &[u8], piece: usize) -> (Vec<u8>, HashSet<(u16, u64)>) {
    let arrivals = Arrivals::default();
    let mut inspector = Inspector::new(arrivals.clone());
    let mut out = Vec::new();
    for piece in bytes.chunks(piece) {
        inspector.push(piece);
        let mut target = [0; 5];
        while let Some(length) = inspector.pull(&mut target) {
            out.extend_from_slice(&target[..length]);
        }
    }
    (out, arrivals.damaged())
}

impl<S: Read> Read for Inspected<S> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let Some(inspector) = &mut self.inspector else { return self.hung_up.note(self.inner.read(target)) };
        loop {
            if let Some(length) = inspector.pull(target) {
                return Ok(length);
            }
            let length = self.hung_up.note(self.inner.read(&mut self.chunk))?;
            if length == 0 {
                return Ok(0);
            }
            inspector.push(&self.chunk[..length]);
            if inspector.arrivals.overflow().is_some() {
                return Err(io::Error::other("too many bytes of messages are unacknowledged"));
            }
        }
    }
}

impl<S: Write> Write for Inspected<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(login) = &mut self.login else { return self.inner.write(bytes) };
        let (written, through) = login.write(&mut self.inner, bytes)?;
        if through {
            self.login = None;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<S: Evented> Evented for Inspected<S> {
    fn register(&self, poll: &Poll, token: Token, interest: Ready, opts: PollOpt) -> io::Result<()> {
        self.inner.register(poll, token, interest, opts)
    }

    fn reregister(&self, poll: &Poll, token: Token, interest: Ready, opts: PollOpt) -> io::Result<()> {
        self.inner.reregister(poll, token, interest, opts)
    }

    fn deregister(&self, poll: &Poll) -> io::Result<()> {
        self.inner.deregister(poll)
    }
}

impl<S: Read + Write + Evented + Send + 'static> IoStream for Inspected<S> {}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&[kind, 0, 7], &length[..], payload, &[0xce]].concat()
    }

    fn short(text: &[u8]) -> Vec<u8> {
        [&[u8::try_from(text.len()).unwrap()], text].concat()
    }

    fn long(bytes: &[u8]) -> Vec<u8> {
        [&u32::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
    }

    fn delivery(key: &[u8]) -> Vec<u8> {
        let tag = 5_u64.to_be_bytes();
        frame(METHOD, &[&DELIVER[..], &short(b"c"), &tag, &[0], &short(b"e"), &short(key)].concat())
    }

    /// A content header with headers and a message id.
    fn header(table: &[u8], id: &[u8]) -> Vec<u8> {
        let flags = (1_u16 << 13 | 1 << 7).to_be_bytes();
        let head = [&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4][..], &flags].concat();
        frame(HEADER, &[head, long(table), short(id)].concat())
    }

    fn entry(name: &[u8], value: &[u8]) -> Vec<u8> {
        [short(name), [b"S", &long(value)[..]].concat()].concat()
    }

    /// The output, and whether the delivery is damaged.
    fn through(bytes: &[u8], piece: usize) -> (Vec<u8>, bool) {
        let (out, damaged) = super::through(bytes, piece);
        (out, damaged.contains(&(7, 5)))
    }

    /// A value of this many nested arrays.
    fn arrays(depth: usize) -> Vec<u8> {
        (0..depth).fold(b"V".to_vec(), |inner, _| [b"A", &long(&inner)[..]].concat())
    }

    #[test]
    fn readable_frames_pass_unchanged_in_any_pieces() {
        let deep = [short(b"c"), arrays(MAX_NESTING - 1)].concat();
        let table = [entry(b"a", "k\u{e4}se".as_bytes()), entry(b"b", b""), deep].concat();
        let body = frame(3, &[0xff; 100]);
        let bytes =
            [frame(8, b""), delivery("\u{e4}".as_bytes()), header(&table, b"id"), body, frame(8, b"")]
                .concat();
        for piece in [1, 2, 7, 64, 10_000] {
            assert_eq!(through(&bytes, piece), (bytes.clone(), false), "{piece}");
        }
        let banner = b"AMQP\0\0\x09\x01";
        assert_eq!(through(banner, 3), (banner.to_vec(), false));
    }

    #[test]
    fn unreadable_deliveries_are_marked_and_lose_their_properties() {
        let twice = [entry(b"a", b"1"), entry(b"a", b"2")].concat();
        let nested = [short(b"n"), [b"F", &long(&entry(b"x", b"\xff"))[..]].concat()].concat();
        let unknown = [short(b"n"), vec![b'?']].concat();
        let deep = [short(b"n"), arrays(MAX_NESTING)].concat();
        for (table, id) in [
            (entry(b"a", b"\xff"), &b"id"[..]),
            (entry(b"\xff", b"x"), b"id"),
            (entry(b"a", b"x"), b"\xff"),
            (twice, b"id"),
            (nested, b"id"),
            (unknown, b"id"),
            (deep, b"id"),
            (vec![9], b"id"),
        ] {
            let bytes = [delivery(b"key"), header(&table, id), frame(3, b"body")].concat();
            let bare = frame(HEADER, &[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0]);
            let expected = [delivery(b"key"), bare, frame(3, b"body")].concat();
            for piece in [1, 10, 10_000] {
                assert_eq!(through(&bytes, piece), (expected.clone(), true), "{table:?}");
            }
        }
    }

    #[test]
    fn a_routing_key_that_is_not_text_is_marked() {
        let key = [b"\xff\xfe".to_vec(), vec![b'x'; 200]].concat();
        let bytes = [delivery(&key), header(b"", b"id")].concat();
        let (out, damaged) = through(&bytes, 10_000);
        assert!(damaged);
        let readable = [b"??".to_vec(), vec![b'x'; 200]].concat();
        assert_eq!(out, [delivery(&readable), header(b"", b"id")].concat());
    }
}
