//! Keeps a connection responsive while a large number of messages arrives.
//!
//! The client library reads until its stream is empty. Meanwhile it sends nothing and checks no
//! timer. If messages, large ones above all, arrive as fast as it reads them, that can take longer
//! than two heartbeats. The broker then receives nothing and ends the connection. So a turn of
//! reading ends here after a limited number of bytes. The next turn begins once the library has
//! done its other work.

use std::{
    fmt,
    io::{self, ErrorKind, Read, Write},
};

use amiquip::IoStream;
use mio::{Evented, Poll, PollOpt, Ready, Registration, SetReadiness, Token};

/// How many bytes are read in a turn: a few frames of the usual size, little work even for a busy
/// machine.
const TURN: usize = 1 << 20;

/// A stream that is read in turns.
pub(super) struct Turns<S> {
    inner: S,
    /// How many bytes are left of this turn.
    left: usize,
    /// Wakes the event loop for the next turn, since the socket may not become ready again for it.
    next: SetReadiness,
    wake: Registration,
}

impl<S> Turns<S> {
    pub(super) fn new(inner: S) -> Self {
        let (wake, next) = Registration::new2();
        Self { inner, left: TURN, next, wake }
    }
}

impl<S: Read> Read for Turns<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            self.left = TURN;
            self.next.set_readiness(Ready::readable())?;
            return Err(ErrorKind::WouldBlock.into());
        }
        let length = buffer.len().min(self.left);
        let read = self.inner.read(&mut buffer[..length]);
        self.left = match read {
            Ok(read) => self.left - read,
            // The connection ended without an error here.
            Err(_) => TURN,
        };
        read
    }
}

impl<S: Write> Write for Turns<S> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.inner.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<S: Evented> Evented for Turns<S> {
    fn register(&self, poll: &Poll, token: Token, interest: Ready, opts: PollOpt) -> io::Result<()> {
        self.inner.register(poll, token, interest, opts)?;
        // As if it came from the socket.
        self.wake.register(poll, token, Ready::readable(), PollOpt::edge())
    }

    fn reregister(&self, poll: &Poll, token: Token, interest: Ready, opts: PollOpt) -> io::Result<()> {
        self.inner.reregister(poll, token, interest, opts)
    }

    fn deregister(&self, poll: &Poll) -> io::Result<()> {
        self.inner.deregister(poll)?;
        poll.deregister(&self.wake)
    }
}

impl<S: IoStream> IoStream for Turns<S> {}

impl<S: fmt::Debug> fmt::Debug for Turns<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turns").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{TcpListener, TcpStream},
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
        thread,
        time::{Duration, Instant},
    };

    use crate::broker::Broker;

    use super::{
        super::{CLOSE_TIMEOUT, close, open_within},
        *,
    };

    /// Longer than any call here takes.
    const PATIENCE: Duration = Duration::from_secs(120);

    const HEARTBEAT: [u8; 8] = [8, 0, 0, 0, 0, 0, 0, 0xce];

    fn method(class_and_method: [u8; 4], arguments: &[u8]) -> Vec<u8> {
        let length = u32::try_from(4 + arguments.len()).unwrap().to_be_bytes();
        [&[1, 0, 0][..], &length, &class_and_method, arguments, &[0xce]].concat()
    }

    /// Reads the client's bytes until some of them match.
    fn read_until(socket: &mut TcpStream, end: &[u8]) {
        let mut seen = Vec::new();
        while !seen.windows(end.len()).any(|window| window == end) {
            let mut chunk = [0; 1_000];
            let read = socket.read(&mut chunk).unwrap();
            assert!(read > 0, "the client has gone: {seen:?}");
            seen.extend_from_slice(&chunk[..read]);
        }
    }

    /// A broker that wants a heartbeat each second, and sends more than a client can read. Returns
    /// whether the client sent a heartbeat.
    fn flood(listener: &TcpListener, stop: &Arc<AtomicBool>) -> bool {
        let mut socket = listener.accept().unwrap().0;
        read_until(&mut socket, b"AMQP\0\0\x09\x01");
        let start = [&[0, 9, 0, 0, 0, 0][..], b"\0\0\0\x05PLAIN\0\0\0\x05en_US"].concat();
        socket.write_all(&method([0, 10, 0, 10], &start)).unwrap();
        read_until(&mut socket, &[0, 10, 0, 11]);
        socket.write_all(&method([0, 10, 0, 30], &[0, 9, 0, 2, 0, 0, 0, 1])).unwrap();
        read_until(&mut socket, &[0, 10, 0, 40]);
        socket.write_all(&method([0, 10, 0, 41], &[0])).unwrap();

        let mut reader = socket.try_clone().unwrap();
        let sender = thread::spawn({
            let stop = Arc::clone(stop);
            // Small frames: cheap to send and expensive to read.
            let frames = HEARTBEAT.repeat(1 << 17);
            move || while !stop.load(Ordering::Relaxed) && socket.write_all(&frames).is_ok() {}
        });
        reader.set_read_timeout(Some(PATIENCE)).unwrap();
        let heard = reader.read(&mut [0; 100]).is_ok_and(|read| read > 0);
        stop.store(true, Ordering::Relaxed);
        // Also ends a write without a reader.
        reader.shutdown(std::net::Shutdown::Both).unwrap();
        sender.join().unwrap();
        heard
    }

    #[test]
    fn heartbeats_are_sent_while_more_arrives_than_can_be_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut broker = Broker::from_url(&format!("amqp://{}", listener.local_addr().unwrap())).unwrap();
        (broker.heartbeat, broker.connect_timeout) = (1, PATIENCE);
        let stop = Arc::new(AtomicBool::new(false));
        let server = thread::spawn({
            let stop = Arc::clone(&stop);
            move || flood(&listener, &stop)
        });
        let opened = open_within(&broker, "test", None, Ok).unwrap();
        assert!(server.join().unwrap(), "the client sent no heartbeat");
        close(opened.connection, (), CLOSE_TIMEOUT);
    }

    #[test]
    fn remaining_bytes_are_read_in_the_next_turn() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut theirs = listener.accept().unwrap().0;
        let sent: Vec<u8> = (0..3 * TURN + 7).map(|n| n.to_le_bytes()[0]).collect();
        let sender = thread::spawn({
            let sent = sent.clone();
            move || theirs.write_all(&sent).map(|()| theirs)
        });
        let mut stream = Turns::new(mio::net::TcpStream::from_stream(ours).unwrap());
        let poll = Poll::new().unwrap();
        poll.register(&stream, Token(7), Ready::readable(), PollOpt::edge()).unwrap();
        let mut events = mio::Events::with_capacity(8);
        let (mut read, mut longest) = (Vec::new(), 0);
        let until = Instant::now() + PATIENCE;
        while read.len() < sent.len() {
            assert!(Instant::now() < until, "only {} of {} came", read.len(), sent.len());
            poll.poll(&mut events, Some(PATIENCE)).unwrap();
            assert!(events.iter().all(|event| event.token() == Token(7)));
            let before = read.len();
            let mut chunk = [0; 10_000];
            loop {
                match stream.read(&mut chunk) {
                    Ok(length) => read.extend_from_slice(&chunk[..length]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => panic!("{error}"),
                }
            }
            longest = longest.max(read.len() - before);
        }
        assert!(read == sent, "something changed on the way");
        assert!(longest <= TURN, "{longest} bytes in one turn");
        drop(sender.join().unwrap().unwrap());
    }
}
