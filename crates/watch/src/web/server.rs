//! Accepting connections, and limiting the cost of each.

use std::{
    collections::{BTreeSet, VecDeque},
    convert::Infallible,
    io,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use log::{debug, warn};
use tokio::{
    net::TcpStream,
    sync::{Semaphore, oneshot},
    task::{self, AbortHandle},
    time,
};

use delayline_core::codec::AppKey;
use delayline_settings::WebSettings;

use super::{
    CONNECTION_TIMEOUT, MAX_CONNECTIONS, MAX_HEADER, PageAccess, Site, Token, TokenError,
    answer::{Answer, Question, answer, busy},
};

/// The pause after a connection could not be accepted, for example because file descriptors
/// have run out.
const PAUSE: Duration = Duration::from_millis(100);

/// How many questions are answered at once.
const QUESTIONS: usize = 4;

/// How long, and how much, is read from a client that keeps sending after its answer: closing
/// at once would make its system discard the answer.
const LINGER: (Duration, usize) = (Duration::from_secs(1), 256 * 1024);

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WebError {
    /// The address is not available.
    #[error("cannot listen on {address}: {source}; use another address (--listen or web_listen), or `none`")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The reason.
        source: io::Error,
    },
    /// Other machines could reach it, and nothing keeps them out.
    #[error(
        "{address} can be reached from other machines, so a token is needed: set web_token_file or \
         DELAYLINE_WEB_TOKEN, or listen on 127.0.0.1"
    )]
    NoToken {
        /// The address.
        address: SocketAddr,
    },
    /// The token of the settings is not valid.
    #[error("the setting `web_token` is not usable: {0}")]
    Token(TokenError),
    /// The system provides no thread or no event queue.
    #[error("cannot start the web server: {0}")]
    Start(io::Error),
}

impl WebError {
    /// Whether another process uses the address.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        matches!(self, Self::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse)
    }
}

/// An address that is taken, but not served yet: connections wait.
#[derive(Debug)]
pub struct Bound {
    address: SocketAddr,
    listener: TcpListener,
    access: PageAccess,
}

/// A running server; it stops when it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Bound {
    /// Takes an address. Port 0 means any free port.
    ///
    /// # Errors
    /// The address cannot be had, or it is not a loopback address and there is no
    /// token.
    pub fn new(address: SocketAddr, access: PageAccess) -> Result<Self, WebError> {
        if matches!(access, PageAccess::Local) && !address.ip().is_loopback() {
            return Err(WebError::NoToken { address });
        }
        let listen = |source| WebError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        Ok(Self { address: listener.local_addr().map_err(listen)?, listener, access })
    }

    /// Takes the address of the settings; `None` if it is `none`. If the default is used by another
    /// daemon, the first free port of the next nine is taken.
    ///
    /// # Errors
    /// As [`new`](Self::new), and a token that is none.
    pub fn of(settings: &WebSettings) -> Result<Option<Self>, WebError> {
        let Some(address) = settings.listen else { return Ok(None) };
        let access = || match &settings.token {
            Some(token) => Token::new(token.clone()).map(PageAccess::Token).map_err(WebError::Token),
            None => Ok(PageAccess::Local),
        };
        let mut bound = Self::new(address, access()?);
        let mut port = address.port();
        while !settings.explicit && port < address.port().saturating_add(9) {
            match &bound {
                Err(error) if error.is_in_use() => port += 1,
                _ => break,
            }
            bound = Self::new(SocketAddr::new(address.ip(), port), access()?);
        }
        bound.map(Some)
    }

    /// The address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers from now on.
    ///
    /// # Errors
    /// The system does not give it what it needs.
    pub fn serve(self, site: Site) -> Result<Server, WebError> {
        let Self { address, listener, access } = self;
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
                    let shared =
                        Shared { site, access, turns: Semaphore::new(QUESTIONS), asking: Mutex::default() };
                    tokio::spawn(accept(listener, Arc::new(shared)));
                    let _ = stopped.await;
                });
            })
            .map_err(WebError::Start)?;
        Ok(Server { address, stop: Some(stop), thread: Some(thread) })
    }
}

impl Server {
    /// The address it listens on.
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

/// What all connections share.
struct Shared {
    site: Site,
    access: PageAccess,
    turns: Semaphore,
    /// The applications whose questions are not answered yet.
    asking: Mutex<BTreeSet<AppKey>>,
}

impl Shared {
    fn asking(&self, change: impl FnOnce(&mut BTreeSet<AppKey>) -> bool) -> bool {
        change(&mut self.asking.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Answers a question on another thread, in its turn. Applications ask one question at a time each.
async fn ask(shared: Arc<Shared>, question: Question) -> Answer {
    if let Some(app) = &question.app
        && !shared.asking(|apps| apps.insert(app.clone()))
    {
        return busy();
    }
    // The client may be gone before there is an answer.
    let answered = task::spawn(async move {
        let turn = shared.turns.acquire().await;
        let work = Arc::clone(&shared);
        let app = question.app.clone();
        let answer = task::spawn_blocking(move || question.answer(&work.site)).await;
        drop(turn);
        if let Some(app) = app {
            shared.asking(|apps| apps.remove(&app));
        }
        answer
    });
    match answered.await {
        Ok(Ok(answer)) => answer,
        _ => busy(),
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
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

async fn serve(mut stream: TcpStream, shared: Arc<Shared>) {
    let service = service_fn(|request: Request<Incoming>| {
        let Shared { site, access, .. } = &*shared;
        let answer = answer(site, access, request.method(), request.uri(), request.headers());
        let shared = Arc::clone(&shared);
        async move {
            Ok::<_, Infallible>(match answer {
                Ok(answer) => answer,
                Err(question) => ask(shared, question).await,
            })
        }
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
