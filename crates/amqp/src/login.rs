//! The password on its way to the broker, hidden from the client library.
//!
//! The library writes its whole answer to the broker's greeting to the log at `debug`, and
//! the application around us decides whether that is shown. So it never learns the password:
//! it gets the same number of asterisks, which are replaced by the password here, on their
//! way into the socket.

use std::{
    io::{self, Write},
    ops::Range,
};

use crate::broker::Secret;

/// `AMQP`, and the version of the protocol.
const PROTOCOL_HEADER: usize = 8;
/// Type, channel and length of a frame.
const FRAME_HEAD: usize = 7;
/// A method frame of the class `connection` with its method `start-ok`.
const METHOD: u8 = 1;
const START_OK: [u8; 4] = [0, 10, 0, 11];

/// What a client sends until it has logged in, with asterisks for the password.
pub(super) struct Login {
    password: Secret,
    /// The bytes sent so far, as the client library wrote them.
    sent: Vec<u8>,
}

/// Where in the client's bytes the password belongs.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// Not enough was written yet to tell.
    Ahead,
    At(Range<usize>),
    /// It is not an answer to the greeting.
    Nowhere,
}

impl Login {
    /// Also returns what to tell the client library instead of the password.
    pub(super) fn new(password: &Secret) -> (Self, String) {
        let stars = "*".repeat(password.expose().len());
        (Self { password: password.clone(), sent: Vec::new() }, stars)
    }

    /// Writes what the client library wants to write, with the password in its place. Returns
    /// how much was written, and whether the login is complete.
    pub(super) fn write(&mut self, socket: &mut impl Write, bytes: &[u8]) -> io::Result<(usize, bool)> {
        let before = self.sent.len();
        self.sent.extend_from_slice(bytes);
        let place = place(&self.sent, self.password.expose().len());
        let result = match &place {
            Place::At(range) => {
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
            // Nothing of the password's place is among these.
            Place::Ahead | Place::Nowhere => socket.write(bytes),
        };
        self.sent.truncate(before + result.as_ref().map_or(0, |written| *written));
        let through = match place {
            Place::Ahead => false,
            Place::At(range) => self.sent.len() >= range.end,
            Place::Nowhere => true,
        };
        Ok((result?, through))
    }
}

/// Finds the end of the answer to the greeting, which is the password: behind the
/// client's properties, the name of the mechanism, and the rest of the answer.
fn place(sent: &[u8], length: usize) -> Place {
    let frame = sent.get(PROTOCOL_HEADER..).unwrap_or_default();
    if frame.first().is_some_and(|kind| *kind != METHOD) {
        return Place::Nowhere;
    }
    let method = FRAME_HEAD..FRAME_HEAD + START_OK.len();
    if frame.get(method.clone()).is_some_and(|method| *method != START_OK) {
        return Place::Nowhere;
    }
    let end = || {
        let properties = method.end + 4 + number(frame.get(method.end..method.end + 4)?);
        let mechanism = properties + 1 + usize::from(*frame.get(properties)?);
        Some(mechanism + 4 + number(frame.get(mechanism..mechanism + 4)?))
    };
    match end().map(|end| PROTOCOL_HEADER + end) {
        Some(end) => Place::At(end.saturating_sub(length)..end),
        None => Place::Ahead,
    }
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWORD: &str = "p\u{e4}ss*w0rd";

    /// A socket that takes so many bytes at a time, and nothing every other time.
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

    /// What a client says first, with this password.
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
        let (mut login, _) = Login::new(&Secret::new(PASSWORD));
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
    fn the_password_takes_its_place_however_the_bytes_go_out() {
        let (_, stars) = Login::new(&Secret::new(PASSWORD));
        assert_eq!(stars, "*".repeat(PASSWORD.len()));
        for width in [1, 2, 5, 13, 10_000] {
            assert_eq!(through(&said(&stars), width), said(PASSWORD), "{width} at a time");
        }
    }

    #[test]
    fn what_is_no_answer_passes_as_it_is() {
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
        assert_eq!(place(&bytes, 4), Place::Ahead);
        assert_eq!(through(&bytes, 7), bytes);
    }
}
