//! TLS for the client library's event loop.

use std::{
    fmt,
    io::{self, ErrorKind, Read, Write},
    net,
};

use amiquip::IoStream;
use mio::{Evented, Poll, PollOpt, Ready, Token, net::TcpStream};
use rustls::ClientConnection;

/// The most plain text that is encrypted at a time: one TLS record.
const RECORD: usize = 16 * 1024;

/// A TLS session over a non-blocking socket.
///
/// The event loop never flushes. It takes every byte that `write` reports as sent, and then stops
/// checking whether the socket is writable. So `write` reports bytes only once their whole record
/// is in the socket. Until then it returns `WouldBlock` and remembers how many bytes are pending.
/// It reports them when the loop calls again with the same bytes.
pub(super) struct TlsStream {
    socket: TcpStream,
    session: ClientConnection,
    on_their_way: usize,
}

impl TlsStream {
    /// Takes over a socket with a complete handshake.
    pub(super) fn new(socket: net::TcpStream, session: ClientConnection) -> io::Result<Self> {
        // Sets the socket to non-blocking.
        let socket = TcpStream::from_stream(socket)?;
        Ok(Self { socket, session, on_their_way: 0 })
    }

    fn send_records(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            self.session.write_tls(&mut self.socket)?;
        }
        Ok(())
    }
}

impl Read for TlsStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.session.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                done => return done,
            }
            if self.session.read_tls(&mut self.socket)? == 0 {
                return Ok(0);
            }
            self.session
                .process_new_packets()
                .map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        }
    }
}

impl Write for TlsStream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        if self.on_their_way == 0 {
            let chunk = &buffer[..buffer.len().min(RECORD)];
            self.on_their_way = self.session.writer().write(chunk)?;
        }
        self.send_records()?;
        Ok(std::mem::take(&mut self.on_their_way))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send_records()
    }
}

impl Evented for TlsStream {
    fn register(&self, poll: &Poll, token: Token, interest: Ready, opts: PollOpt) -> io::Result<()> {
        self.socket.register(poll, token, interest, opts)
    }

    fn reregister(&self, poll: &Poll, token: Token, interest: Ready, opts: PollOpt) -> io::Result<()> {
        self.socket.reregister(poll, token, interest, opts)
    }

    fn deregister(&self, poll: &Poll) -> io::Result<()> {
        self.socket.deregister(poll)
    }
}

impl IoStream for TlsStream {}

impl fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsStream").finish_non_exhaustive()
    }
}
