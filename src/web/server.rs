//! Taking connections, and bounding what each may cost.

use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use log::{debug, warn};
use tokio::{net::TcpStream, sync::oneshot, task::AbortHandle, time};

use super::{Access, CONNECTION_TIMEOUT, MAX_CONNECTIONS, MAX_HEADER, Site, answer::answer};

/// The pause after a connection could not be taken, as when there are no more file
/// descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// How long, and how much, is read from a client that goes on sending after its answer:
/// closing at once would make its system throw the answer away.
const LINGER: (Duration, usize) = (Duration::from_secs(1), 256 * 1024);

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WebError {
    /// The address cannot be had.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// Others could reach it, and nothing keeps them out.
    #[error(
        "{address} can be reached from other machines, so a token is needed: set web_token_file or \
         DELAYLINE_WEB_TOKEN, or listen on 127.0.0.1"
    )]
    NoToken {
        /// The address.
        address: SocketAddr,
    },
    /// The system gives it no thread or no event queue.
    #[error("cannot start the web server: {0}")]
    Start(io::Error),
}

impl WebError {
    /// Whether somebody else has the address.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        matches!(self, Self::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse)
    }
}

/// A running server; it ends when it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens, and answers from now on. Port 0 stands for any free one.
    ///
    /// # Errors
    /// The address cannot be had, or it is not a loopback address and there is no
    /// token.
    pub fn start(address: SocketAddr, access: Access, site: Site) -> Result<Self, WebError> {
        if matches!(access, Access::Local) && !address.ip().is_loopback() {
            return Err(WebError::NoToken { address });
        }
        let listen = |source| WebError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(WebError::Start)?;
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new()
            .name("delayline-web".into())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::spawn(accept(listener, Arc::new((site, access))));
                    let _ = stopped.await;
                });
            })
            .map_err(WebError::Start)?;
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<(Site, Access)>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return warn!("the web server cannot listen: {error}"),
    };
    let mut connections: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                connections.retain(|connection| !connection.is_finished());
                if connections.len() >= MAX_CONNECTIONS
                    && let Some(oldest) = connections.pop_front()
                {
                    oldest.abort();
                }
                connections.push_back(tokio::spawn(serve(stream, Arc::clone(&shared))).abort_handle());
            }
            Err(error) => {
                debug!("the web server cannot take a connection: {error}");
                time::sleep(PAUSE).await;
            }
        }
    }
}

async fn serve(mut stream: TcpStream, shared: Arc<(Site, Access)>) {
    let service = service_fn(|request: Request<Incoming>| {
        let (site, access) = &*shared;
        let answer = answer(site, access, request.method(), request.uri(), request.headers());
        async { Ok::<_, Infallible>(answer) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(CONNECTION_TIMEOUT)
        .keep_alive(false)
        .max_buf_size(MAX_HEADER)
        .serve_connection(TokioIo::new(&mut stream), service);
    match time::timeout(CONNECTION_TIMEOUT, connection).await {
        Ok(ended) => {
            if let Err(error) = ended {
                debug!("the web server gave up a connection: {error}");
            }
            let _ = time::timeout(LINGER.0, drain(&stream)).await;
        }
        Err(_) => debug!("the web server gave up a slow connection"),
    }
}

/// Reads until the client is done.
async fn drain(stream: &TcpStream) {
    let mut buffer = [0; 4096];
    let mut left = LINGER.1;
    while left > 0 && stream.readable().await.is_ok() {
        match stream.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(bytes) => left = left.saturating_sub(bytes),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}
