//! A handle on the socket of a connection. It ends calls that wait for an answer.

use std::{
    io,
    net::{Shutdown, TcpStream},
    sync::{Arc, Weak},
    thread,
    time::Duration,
};

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};

/// A handle on the socket of a connection. The client library waits for answers without a limit,
/// but gives up at once when its socket is cut.
#[derive(Debug, Clone)]
pub struct Line(Weak<TcpStream>);

impl Line {
    /// A handle on a socket. It works for as long as the value returned with it lives, which
    /// belongs to the owner of the socket. A duplicate of the socket would keep the connection
    /// open.
    pub fn on(socket: &TcpStream) -> io::Result<(Arc<TcpStream>, Self)> {
        let socket = Arc::new(socket.try_clone()?);
        let line = Self(Arc::downgrade(&socket));
        Ok((socket, line))
    }

    /// Whether the connection is still open. The client library closes its socket as soon as it
    /// detects the end of the connection.
    pub fn stands(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Runs a call that waits for an answer, and cuts the connection if it takes longer than
    /// `limit`. Returns whether it did.
    pub(crate) fn within<T>(&self, limit: Duration, work: impl FnOnce() -> T) -> (T, bool) {
        let is_late = |done: &Receiver<()>| done.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
        let (result, cut) = self.unless(|done| is_late(done).then_some(()), work);
        (result, cut.is_some())
    }

    /// Runs a call that waits for an answer, and cuts the connection once `watch` finds a reason.
    /// `watch` runs in parallel. It must end when the call has finished, which disconnects its
    /// receiver.
    pub(crate) fn unless<T, R: Send>(
        &self,
        watch: impl FnOnce(&Receiver<()>) -> Option<R> + Send,
        work: impl FnOnce() -> T,
    ) -> (T, Option<R>) {
        let (done, is_done) = bounded::<()>(0);
        thread::scope(|scope| {
            let watching = scope.spawn(move || {
                let reason = watch(&is_done);
                if reason.is_some()
                    && let Some(socket) = self.0.upgrade()
                {
                    // The socket may already be closed.
                    let _ = socket.shutdown(Shutdown::Both);
                }
                reason
            });
            let result = work();
            drop(done);
            (result, watching.join().unwrap_or(None))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read,
        net::TcpListener,
        panic::{AssertUnwindSafe, catch_unwind},
    };

    use super::*;

    /// Longer than any call here takes.
    const LONG: Duration = Duration::from_secs(3_600);

    fn silent() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (ours, listener.accept().unwrap().0)
    }

    #[test]
    fn a_call_without_an_answer_is_ended() {
        let (mut ours, _theirs) = silent();
        let (_hold, line) = Line::on(&ours).unwrap();
        assert_eq!(line.within(LONG, || 7), (7, false));
        let (read, cut) = line.within(Duration::from_millis(50), || ours.read(&mut [0]).unwrap());
        assert_eq!((read, cut), (0, true));
    }

    #[test]
    fn a_panic_is_not_waited_for() {
        let (ours, _theirs) = silent();
        let (_hold, line) = Line::on(&ours).unwrap();
        assert!(catch_unwind(AssertUnwindSafe(|| line.within(LONG, || panic!("on purpose")))).is_err());
    }

    #[test]
    fn it_keeps_no_connection_open() {
        let (ours, mut theirs) = silent();
        let (hold, line) = Line::on(&ours).unwrap();
        assert!(line.stands());
        drop((ours, hold));
        assert!(!line.stands());
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
        assert_eq!(line.within(Duration::ZERO, || thread::sleep(Duration::from_millis(50))), ((), true));
    }
}
