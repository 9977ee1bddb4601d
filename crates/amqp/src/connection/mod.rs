//! Opening and closing a connection, each within a time limit.

mod inspect;
mod line;
mod login;
mod tls_stream;
mod turns;

use std::{
    io,
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use amiquip::{Auth, Connection, ConnectionOptions, ConnectionTuning, Error};
use crossbeam_channel::bounded;
use log::debug;
use rustls::{ClientConnection, pki_types::ServerName};
use socket2::{SockRef, TcpKeepalive};

use crate::{
    broker::{Broker, Credentials, candidates},
    error::{AmqpError, explain},
    tls::{Material, TlsError, explained},
};
use delayline_core::shell::quoted;

pub use inspect::frames;
pub use line::Line;

use crate::arrivals::Arrivals;
use inspect::{HungUp, Inspected};
use login::Login;
use tls_stream::TlsStream;
use turns::Turns;

/// The longest time between two probes of a silent connection that the system accepts.
const MAX_KEEPALIVE: u16 = 32_767;

/// The broker waits 3 s before it closes the connection of a user that it refuses. It ends a login
/// that takes longer than its `handshake_timeout`, 10 s by default.
const SLOW_LOGIN: Duration = Duration::from_secs(9);

/// How long a clean close may take.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection, and a handle on its socket.
pub(crate) struct Opened {
    pub(crate) connection: Connection,
    pub(crate) line: Line,
}

/// Opens a connection. `purpose` names it in the broker's list of connections; `arrivals`
/// records deliveries that cannot be read.
fn open(broker: &Broker, purpose: &str, arrivals: Option<Arrivals>) -> Result<Opened, AmqpError> {
    let begun = Instant::now();
    let deadline = begun + broker.connect_timeout;
    let left = || deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let socket = connect(broker, deadline)?;
    let hung_up = HungUp::default();
    let (hold, line) = Line::on(&socket).map_err(|error| unreachable(broker, &error))?;
    let options = ConnectionOptions::<Auth>::default()
        .virtual_host(broker.vhost.as_str())
        .heartbeat(broker.heartbeat)
        .information(Some(format!("delayline {} ({purpose})", env!("CARGO_PKG_VERSION"))));
    let (options, login) = match &broker.credentials {
        Credentials::Plain { username, password } => {
            let (login, stars) = Login::new(password.current());
            (options.auth(Auth::Plain { username: username.clone(), password: stars }), Some(login))
        }
        Credentials::External => (options.auth(Auth::External), None),
    };
    let opened = match &broker.tls {
        None => {
            let stream =
                mio::net::TcpStream::from_stream(socket).map_err(|error| unreachable(broker, &error))?;
            let options = options.connection_timeout(Some(left()));
            let stream = Turns::new(Inspected::new(stream, (hold, hung_up.clone()), login, arrivals));
            Connection::insecure_open_stream(stream, options, tuning())
        }
        Some(tls) => {
            let refused =
                |error: TlsError| AmqpError::Tls { address: broker.to_string(), reason: error.to_string() };
            let config = Material::load(tls).and_then(Material::client_config).map_err(refused)?;
            let mut socket = socket;
            let session = handshake(broker, &mut socket, config, left())?;
            let stream = TlsStream::new(socket, session).map_err(|error| unreachable(broker, &error))?;
            let options = options.connection_timeout(Some(left()));
            let stream = Turns::new(Inspected::new(stream, (hold, hung_up.clone()), login, arrivals));
            Connection::insecure_open_stream(stream, options, tuning())
        }
    };
    let connection = opened.map_err(|error| login_error(broker, error, hung_up.get(), begun.elapsed()))?;
    Ok(Opened { connection, line })
}

/// No limit in the client library. Otherwise a call blocks without a time limit once 16 MiB are
/// waiting to be written. The router itself limits the bytes that wait.
fn tuning() -> ConnectionTuning {
    ConnectionTuning::default().buffered_writes_high_water(usize::MAX)
}

pub(crate) fn unreachable(broker: &Broker, reason: &dyn ToString) -> AmqpError {
    AmqpError::Unreachable { address: broker.to_string(), reason: reason.to_string() }
}

/// Tries every address of the host until one answers. delayline creates the socket itself, so that
/// it has a time limit and `TCP_NODELAY`. Without `TCP_NODELAY`, publishing one confirmed message
/// at a time reached 27 to 206 messages per second instead of thousands.
pub(crate) fn connect(broker: &Broker, deadline: Instant) -> Result<TcpStream, AmqpError> {
    let addresses =
        (broker.host.as_str(), broker.port).to_socket_addrs().map_err(|error| unreachable(broker, &error))?;
    let socket = connect_to_any(&addresses.collect::<Vec<_>>(), deadline)
        .map_err(|error| unreachable(broker, &error))?;
    prepare(&socket, broker.heartbeat).map_err(|error| unreachable(broker, &error))?;
    Ok(socket)
}

/// Each address gets its share of the remaining time. So an address that drops all packets leaves
/// time for the next ones.
fn connect_to_any(addresses: &[SocketAddr], deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    for (address, remaining) in addresses.iter().zip((1..=addresses.len()).rev()) {
        let left = deadline.saturating_duration_since(Instant::now());
        let share = left / u32::try_from(remaining).unwrap_or(u32::MAX);
        if share.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "connecting took too long"));
        }
        match TcpStream::connect_timeout(address, share) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Sets two options that the client library does not: no delay for small packets, and a time limit
/// after which a connection without a peer ends. Heartbeats would detect that too, but a broker can
/// be configured without them.
fn prepare(socket: &TcpStream, heartbeat: u16) -> io::Result<()> {
    let interval = Duration::from_secs(heartbeat.min(MAX_KEEPALIVE).into());
    socket.set_nodelay(true)?;
    let socket = SockRef::from(socket);
    socket.set_tcp_keepalive(
        &TcpKeepalive::new().with_time(interval).with_interval(interval).with_retries(2),
    )?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(Duration::from_secs(heartbeat.into()) * 2))?;
    Ok(())
}

/// Completes the TLS handshake on the blocking socket, with the host name
/// verified.
pub(crate) fn handshake(
    broker: &Broker,
    socket: &mut TcpStream,
    config: rustls::ClientConfig,
    limit: Duration,
) -> Result<ClientConnection, AmqpError> {
    let failed = |reason: String| AmqpError::Tls { address: broker.to_string(), reason };
    let name = ServerName::try_from(broker.host.clone()).map_err(|_| {
        failed(format!(
            "`{}` cannot be checked against a certificate; use a host name or an address",
            broker.host
        ))
    })?;
    let mut session =
        ClientConnection::new(Arc::new(config), name).map_err(|error| failed(error.to_string()))?;
    let blocking = |socket: &TcpStream, limit| -> io::Result<()> {
        socket.set_read_timeout(limit)?;
        socket.set_write_timeout(limit)
    };
    blocking(socket, Some(limit)).map_err(|error| unreachable(broker, &error))?;
    while session.is_handshaking() {
        session.complete_io(socket).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                unreachable(broker, &"the TLS handshake took too long")
            }
            io::ErrorKind::UnexpectedEof => failed(
                "the broker ended the handshake; it may require a client certificate, or not speak TLS on \
                 this port"
                    .into(),
            ),
            _ => failed(explained(&error, &broker.host).unwrap_or_else(|| error.to_string())),
        })?;
    }
    blocking(socket, None).map_err(|error| unreachable(broker, &error))?;
    Ok(session)
}

/// Why the login failed. The client library reports every failure after it has sent the password as
/// a refusal. So this function checks which side ended the login, and when.
fn login_error(broker: &Broker, error: Error, hung_up: bool, after: Duration) -> AmqpError {
    let refused = |reason: String| AmqpError::Refused { address: broker.to_string(), reason };
    match error {
        Error::InvalidCredentials if !hung_up => unreachable(
            broker,
            &format!(
                "it has not answered the login in {:.1} s. It may be overloaded, or waiting for its authentication \
                 service. Give it longer with `connect_timeout`",
                after.as_secs_f64()
            ),
        ),
        Error::InvalidCredentials if after >= SLOW_LOGIN => unreachable(
            broker,
            &format!(
                "it ended the login without a reason after {:.1} s. It may be overloaded, or its authentication \
                 service may have exceeded its `handshake_timeout`",
                after.as_secs_f64()
            ),
        ),
        Error::InvalidCredentials => refused(match &broker.credentials {
            Credentials::Plain { username, .. } => {
                let guest = match username == "guest" {
                    true => " (it can log in only from the broker's own machine)",
                    false => "",
                };
                format!("user `{username}` or its password was not accepted{guest}")
            }
            Credentials::External => "the client certificate's user was not accepted".into(),
        }),
        // It is shutting down, or has crashed.
        Error::ServerClosedConnection { code: code @ (320 | 541), message } => {
            unreachable(broker, &format!("it ended the login: {message} ({code})"))
        }
        Error::ServerClosedConnection { code, message } => {
            let remedy = no_vhost(&message, &broker.vhost).unwrap_or_default();
            refused(format!("{message} ({code}){remedy}"))
        }
        Error::UnsupportedAuthMechanism { available, requested } => {
            refused(format!("it does not offer {requested}, only {available}"))
        }
        Error::ConnectionTimeout => unreachable(
            broker,
            &"it accepted the connection but sent no greeting; it may be overloaded or stopped, see its log",
        ),
        Error::UnexpectedSocketClose => unreachable(
            broker,
            &"it closed the connection before its greeting; the port may belong to something else, such as \
              the management API or AMQP with TLS (amqps://)",
        ),
        other => unreachable(broker, &other),
    }
}

/// What to do if the vhost does not exist, or the user has no access to it.
fn no_vhost(message: &str, vhost: &str) -> Option<String> {
    let vhost = quoted(vhost);
    if message.contains("access to vhost") {
        return Some(format!(
            "; give the user permissions there: rabbitmqctl set_permissions -p {vhost} USER CONFIGURE WRITE READ \
             (docs/explanation/security.md says who needs which)"
        ));
    }
    let missing = message.contains("vhost") && message.contains("not found");
    missing.then(|| format!("; create it: rabbitmqctl add_vhost {vhost}"))
}

/// Connects to the first of the broker's nodes that accepts the login, and runs `then` on the new
/// connection. Each node gets the connect timeout. The timeout also limits name resolution, for
/// example.
///
/// # Errors
/// The error of the first node.
pub(crate) fn open_within<T: Send + 'static>(
    broker: &Broker,
    purpose: &'static str,
    arrivals: Option<Arrivals>,
    then: impl Fn(Opened) -> Result<T, AmqpError> + Clone + Send + 'static,
) -> Result<T, AmqpError> {
    at_first_node(broker, move |node| then(open(node, purpose, arrivals.clone())?))
}

/// Runs `open` with the broker's nodes, in order, until it succeeds. Each node gets the connect
/// timeout.
///
/// # Errors
/// The error of the first node.
pub(crate) fn at_first_node<T: Send + 'static>(
    broker: &Broker,
    open: impl Fn(&Broker) -> Result<T, AmqpError> + Clone + Send + 'static,
) -> Result<T, AmqpError> {
    let mut first_error = None;
    for node in candidates(broker) {
        let limit = broker.connect_timeout + Duration::from_millis(200);
        let address = node.to_string();
        let open = open.clone();
        match abandon_after(limit, move || open(&node)) {
            Some(Ok(opened)) => return Ok(opened),
            Some(Err(error)) => {
                debug!("{error}");
                first_error.get_or_insert(error);
            }
            None => {
                let reason = "connecting took too long".to_owned();
                first_error.get_or_insert(AmqpError::Unreachable { address, reason });
            }
        }
    }
    Err(first_error.unwrap_or_else(|| unreachable(broker, &"it has no address")))
}

/// Runs work that may block forever on a thread of its own. `None` if it takes too long: the thread
/// is then left behind.
pub(crate) fn abandon_after<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (done, result) = bounded(1);
    thread::Builder::new()
        .name("delayline-close".into())
        .spawn(move || {
            let _ = done.send(work());
        })
        .ok()?;
    result.recv_timeout(limit).ok()
}

/// Closes a connection and everything that belongs to it. If it had already ended, returns the
/// reason.
pub(crate) fn close<T: Send + 'static>(
    connection: Connection,
    attached: T,
    limit: Duration,
) -> Option<AmqpError> {
    let closed = abandon_after(limit, move || {
        // The connection is closed first. Closing a channel can hang, but returns at once if the
        // connection is gone.
        let result = connection.close();
        drop(attached);
        result
    });
    match closed {
        Some(result) => result.err().map(explain),
        None => Some(AmqpError::Lost { reason: "the broker did not answer".into() }),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_address_that_does_not_answer_leaves_time_for_the_next() {
        let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
        // There is room for one connection. The system drops the packets of others.
        SockRef::from(&deaf).listen(0).unwrap();
        let address = deaf.local_addr().unwrap();
        let short = Duration::from_millis(300);
        let full: Vec<_> = (0..10).map_while(|_| TcpStream::connect_timeout(&address, short).ok()).collect();
        assert!(full.len() < 10, "the system takes any number");
        let there = TcpListener::bind("127.0.0.1:0").unwrap();
        let addresses = [address, address, there.local_addr().unwrap()];
        let socket = connect_to_any(&addresses, Instant::now() + 30 * short).unwrap();
        assert_eq!(socket.peer_addr().unwrap(), addresses[2]);
        assert!(connect_to_any(&addresses[..2], Instant::now() + short).is_err());
        assert!(connect_to_any(&[], Instant::now() + short).is_err());
    }

    #[test]
    fn only_a_login_that_the_broker_ends_soon_was_refused() {
        let broker = Broker::from_url("amqp://billing:hunter2@broker.example").unwrap();
        let said = |hung_up, seconds| {
            login_error(&broker, Error::InvalidCredentials, hung_up, Duration::from_secs(seconds))
        };
        assert!(matches!(said(true, 3), AmqpError::Refused { .. }));
        for slow in [said(false, 3), said(false, 30), said(true, 10)] {
            assert!(matches!(slow, AmqpError::Unreachable { .. }), "{slow}");
            assert!(slow.is_connection() && !slow.to_string().contains("password"), "{slow}");
        }
        let closed = |code| {
            let error = Error::ServerClosedConnection { code, message: "CONNECTION_FORCED".into() };
            login_error(&broker, error, true, Duration::ZERO)
        };
        assert!(closed(320).is_connection() && !closed(530).is_connection());
    }
}
