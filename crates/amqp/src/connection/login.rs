//! Sends the password to the broker without showing it to the client library.
//!
//! The library logs its whole answer to the broker's greeting at `debug`, and the surrounding
//! application decides whether that is shown. So the library never gets the password. It gets the
//! same number of asterisks, and this module replaces them with the password on the way into the
//! socket.

use std::{
    io::{self, Write},
    ops::Range,
};

use crate::{broker::Secret, convert::big_endian};

/// `AMQP`, and the version of the protocol.
const PROTOCOL_HEADER: usize = 8;
/// Type, channel and length of a frame.
const FRAME_HEAD: usize = 7;
/// A method frame of the class `connection` with its method `start-ok`.
const METHOD: u8 = 1;
const START_OK: [u8; 4] = [0, 10, 0, 11];

/// The bytes that a client sends during login, with asterisks for the password.
pub(super) struct Login {
    password: Secret,
    /// The bytes sent so far, as the client library wrote them.
    sent: Vec<u8>,
}

/// The position of the password in the client's bytes.
#[derive(Debug, PartialEq, Eq)]
enum Location {
    /// Too few bytes were written to decide.
    Ahead,
    At(Range<usize>),
    /// The bytes are not an answer to the greeting.
    Nowhere,
}

impl Login {
    /// Also returns the text that the client library gets instead of the password.
    pub(super) fn new(password: Secret) -> (Self, String) {
        let stars = "*".repeat(password.expose().len());
        (Self { password, sent: Vec::new() }, stars)
    }

    /// Writes the client library's bytes with the password in its place. Returns how many bytes
    /// were written, and whether the login is complete.
    pub(super) fn write(&mut self, socket: &mut impl Write, bytes: &[u8]) -> io::Result<(usize, bool)> {
        let before = self.sent.len();
        self.sent.extend_from_slice(bytes);
        let location = locate(&self.sent, self.password.expose().len());
        let result = match &location {
            Location::At(range) => {
                let mut real = bytes.to_vec();
                for (index, byte) in range.clone().zip(self.password.expose().bytes()) {
                    if let Some(star) = index.checked_sub(before).and_then(|index| real.get_mut(index)) {
                        *star = byte;
                    }
                }
                let result = socket.write(&real);
                real.fill(0);
                result
            }
            // These bytes contain no part of the password.
            Location::Ahead | Location::Nowhere => socket.write(bytes),
        };
        self.sent.truncate(before + result.as_ref().map_or(0, |written| *written));
        let through = match location {
            Location::Ahead => false,
            Location::At(range) => self.sent.len() >= range.end,
            Location::Nowhere => true,
        };
        Ok((result?, through))
    }
}

/// Finds the end of the answer to the greeting, which is the password. It follows the client's
/// properties, the name of the mechanism, and the rest of the answer.
fn locate(sent: &[u8], length: usize) -> Location {
    let frame = sent.get(PROTOCOL_HEADER..).unwrap_or_default();
    if frame.first().is_some_and(|kind| *kind != METHOD) {
        return Location::Nowhere;
    }
    let method = FRAME_HEAD..FRAME_HEAD + START_OK.len();
    if frame.get(method.clone()).is_some_and(|method| *method != START_OK) {
        return Location::Nowhere;
    }
    let size = |bytes: &[u8]| usize::try_from(big_endian(bytes)).ok();
    let end = || {
        let properties = method.end + 4 + size(frame.get(method.end..method.end + 4)?)?;
        let mechanism = properties + 1 + usize::from(*frame.get(properties)?);
        Some(mechanism + 4 + size(frame.get(mechanism..mechanism + 4)?)?)
    };
    match end().map(|end| PROTOCOL_HEADER + end) {
        Some(end) => Location::At(end.saturating_sub(length)..end),
        None => Location::Ahead,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWORD: &str = "p\u{e4}ss*w0rd";

    /// A socket that takes this many bytes at a time, and none every other time.
    struct Narrow {
        width: usize,
        full: bool,
        taken: Vec<u8>,
    }

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.full = !self.full;
            if self.full {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let width = self.width.min(bytes.len());
            self.taken.extend_from_slice(&bytes[..width]);
            Ok(width)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The first bytes of a client with this password.
    fn said(password: &str) -> Vec<u8> {
        let properties = b"\x07product\x00\x00\x00\x00\x00\x00\x00\x00";
        let answer = format!("\0us*er\0{password}");
        let long = |length: usize| u32::try_from(length).unwrap().to_be_bytes();
        let mut payload = START_OK.to_vec();
        payload.extend([&long(properties.len())[..], properties, b"\x05PLAIN"].concat());
        payload.extend([&long(answer.len())[..], answer.as_bytes(), b"\x05en_US"].concat());
        [&b"AMQP\0\0\x09\x01\x01\0\0"[..], &long(payload.len()), &payload, b"\xce"].concat()
    }

    fn through(bytes: &[u8], width: usize) -> Vec<u8> {
        let (mut login, _) = Login::new(Secret::new(PASSWORD));
        let mut socket = Narrow { width, full: false, taken: Vec::new() };
        let (mut at, mut done) = (0, false);
        while at < bytes.len() && !done {
            match login.write(&mut socket, &bytes[at..]) {
                Ok((written, through)) => (at, done) = (at + written, through),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        socket.taken.extend_from_slice(&bytes[at..]);
        socket.taken
    }

    #[test]
    fn the_password_is_inserted_however_the_bytes_are_split() {
        let (_, stars) = Login::new(Secret::new(PASSWORD));
        assert_eq!(stars, "*".repeat(PASSWORD.len()));
        for width in [1, 2, 5, 13, 10_000] {
            assert_eq!(through(&said(&stars), width), said(PASSWORD), "{width} at a time");
        }
    }

    #[test]
    fn other_bytes_pass_unchanged() {
        let close = b"AMQP\0\0\x09\x01\x01\0\0\0\0\0\x04\0\x0a\0\x32\xce";
        let heartbeat = b"AMQP\0\0\x09\x01\x08\0\0\0\0\0\0\xce";
        for bytes in [&close[..], heartbeat, b"AMQ"] {
            for width in [1, 10_000] {
                assert_eq!(through(bytes, width), bytes);
            }
        }
    }

    #[test]
    fn a_length_beyond_the_frame_is_no_panic() {
        let mut bytes = said("****");
        let at = PROTOCOL_HEADER + FRAME_HEAD + START_OK.len();
        bytes[at..at + 4].fill(0xff);
        assert_eq!(locate(&bytes, 4), Location::Ahead);
        assert_eq!(through(&bytes, 7), bytes);
    }
}
