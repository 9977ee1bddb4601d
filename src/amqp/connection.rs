//! Opening and closing a connection, each within a time limit.

use std::{
    io,
    net::{TcpStream, ToSocketAddrs},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use amiquip::{Auth, Connection, ConnectionOptions, ConnectionTuning, Error};
use crossbeam_channel::bounded;
use log::debug;
use rustls::{ClientConnection, pki_types::ServerName};

use crate::{
    broker::{Broker, Credentials},
    shell::quoted,
    tls::{Material, TlsError, explained},
};

use super::{
    AmqpError,
    inspect::{Damage, Inspected},
    line::Line,
    login::Login,
    tls_stream::TlsStream,
    turns::Turns,
};

/// How long a clean close may take.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection, and a handle on its socket.
pub(super) struct Opened {
    pub(super) connection: Connection,
    pub(super) line: Line,
}

/// Opens a connection. `purpose` names it in the broker's list of connections; `damage`
/// records deliveries that cannot be read.
fn open(broker: &Broker, purpose: &str, damage: Option<Damage>) -> Result<Opened, AmqpError> {
    let deadline = Instant::now() + broker.connect_timeout;
    let left = || deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let socket = connect(broker, deadline)?;
    let (hold, line) = Line::on(&socket).map_err(|error| unreachable(broker, &error))?;
    let options = ConnectionOptions::<Auth>::default()
        .virtual_host(broker.vhost.as_str())
        .heartbeat(broker.heartbeat)
        .information(Some(format!("delayline {} ({purpose})", env!("CARGO_PKG_VERSION"))));
    let (options, login) = match &broker.credentials {
        Credentials::Plain { username, password } => {
            let (login, stars) = Login::new(password);
            (options.auth(Auth::Plain { username: username.clone(), password: stars }), Some(login))
        }
        Credentials::External => (options.auth(Auth::External), None),
    };
    let opened = match &broker.tls {
        None => {
            let stream =
                mio::net::TcpStream::from_stream(socket).map_err(|error| unreachable(broker, &error))?;
            let options = options.connection_timeout(Some(left()));
            let stream = Turns::new(Inspected::new(stream, hold, login, damage));
            Connection::insecure_open_stream(stream, options, ConnectionTuning::default())
        }
        Some(tls) => {
            let refused =
                |error: TlsError| AmqpError::Tls { address: broker.to_string(), reason: error.to_string() };
            let config = Material::load(tls).and_then(Material::client_config).map_err(refused)?;
            let mut socket = socket;
            let session = handshake(broker, &mut socket, config, left())?;
            let stream = TlsStream::new(socket, session).map_err(|error| unreachable(broker, &error))?;
            let options = options.connection_timeout(Some(left()));
            let stream = Turns::new(Inspected::new(stream, hold, login, damage));
            Connection::insecure_open_stream(stream, options, ConnectionTuning::default())
        }
    };
    let connection = opened.map_err(|error| login_error(broker, error))?;
    Ok(Opened { connection, line })
}

pub(super) fn unreachable(broker: &Broker, reason: &dyn ToString) -> AmqpError {
    AmqpError::Unreachable { address: broker.to_string(), reason: reason.to_string() }
}

/// Tries every address of the host until one answers. The socket is ours so
/// that it has a time limit and `TCP_NODELAY`: without the latter, publishing
/// one confirmed message at a time ran at 27 to 206 per second instead of
/// thousands.
pub(super) fn connect(broker: &Broker, deadline: Instant) -> Result<TcpStream, AmqpError> {
    let addresses =
        (broker.host.as_str(), broker.port).to_socket_addrs().map_err(|error| unreachable(broker, &error))?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    for address in addresses {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            last = io::Error::new(io::ErrorKind::TimedOut, "connecting took too long");
            break;
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(socket) => {
                prepare(&socket, broker.heartbeat).map_err(|error| unreachable(broker, &error))?;
                return Ok(socket);
            }
            Err(error) => last = error,
        }
    }
    Err(unreachable(broker, &last))
}

/// Sets what the client library does not: no delay for small packets, and an end to a
/// connection whose other side has vanished. Heartbeats would notice that too, but a broker
/// can be configured without them.
fn prepare(socket: &TcpStream, heartbeat: u16) -> io::Result<()> {
    use rustix::net::sockopt;
    let interval = Duration::from_secs(heartbeat.into());
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, interval)?;
    sockopt::set_tcp_keepintvl(socket, interval)?;
    sockopt::set_tcp_keepcnt(socket, 2)?;
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(socket, u32::from(heartbeat) * 2_000)?;
    Ok(())
}

/// Completes the TLS handshake on the blocking socket, with the host name
/// verified.
pub(super) fn handshake(
    broker: &Broker,
    socket: &mut TcpStream,
    config: rustls::ClientConfig,
    limit: Duration,
) -> Result<ClientConnection, AmqpError> {
    let failed = |reason: String| AmqpError::Tls { address: broker.to_string(), reason };
    let name = ServerName::try_from(broker.host.clone()).map_err(|_| {
        failed(format!("`{}` is not a name that a certificate can be checked against", broker.host))
    })?;
    let mut session =
        ClientConnection::new(Arc::new(config), name).map_err(|error| failed(error.to_string()))?;
    let blocking = |socket: &TcpStream, limit| -> io::Result<()> {
        socket.set_read_timeout(limit)?;
        socket.set_write_timeout(limit)
    };
    blocking(socket, Some(limit)).map_err(|error| unreachable(broker, &error))?;
    while session.is_handshaking() {
        session.complete_io(socket).map_err(|error| {
            failed(match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "the handshake took too long".into(),
                io::ErrorKind::UnexpectedEof => {
                    "the broker ended the handshake; it may require a client certificate, or not speak TLS \
                     on this port"
                        .into()
                }
                _ => explained(&error, &broker.host).unwrap_or_else(|| error.to_string()),
            })
        })?;
    }
    blocking(socket, None).map_err(|error| unreachable(broker, &error))?;
    Ok(session)
}

fn login_error(broker: &Broker, error: Error) -> AmqpError {
    let refused = |reason: String| AmqpError::Refused { address: broker.to_string(), reason };
    match error {
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
        Error::ServerClosedConnection { code, message } => {
            let remedy = no_vhost(&message, &broker.vhost).unwrap_or_default();
            refused(format!("{message} ({code}){remedy}"))
        }
        Error::UnsupportedAuthMechanism { available, requested } => {
            refused(format!("it does not offer {requested}, only {available}"))
        }
        Error::ConnectionTimeout => unreachable(broker, &"it accepted the connection and then said nothing"),
        Error::UnexpectedSocketClose => unreachable(
            broker,
            &"it closed the connection before it had greeted us; is this the port of something else, such as \
              the management API's, or of AMQP with TLS (amqps://)?",
        ),
        other => unreachable(broker, &other),
    }
}

/// What to do if the broker has no such vhost, or the user has no access to it.
fn no_vhost(message: &str, vhost: &str) -> Option<String> {
    let vhost = quoted(vhost);
    if message.contains("access to vhost") {
        return Some(format!(
            "; give the user permissions there: rabbitmqctl set_permissions -p {vhost} USER CONFIGURE WRITE READ \
             (docs/security.md says who needs which)"
        ));
    }
    let missing = message.contains("vhost") && message.contains("not found");
    missing.then(|| format!("; create it: rabbitmqctl add_vhost {vhost}"))
}

/// Connects to the first of the broker's nodes that accepts us, and runs `then` on the new
/// connection, each node within the connect timeout. Without that, name resolution, for
/// example, would have no limit.
///
/// # Errors
/// What the first node said.
pub(super) fn open_within<T: Send + 'static>(
    broker: &Broker,
    purpose: &'static str,
    damage: Option<Damage>,
    then: impl Fn(Opened) -> Result<T, AmqpError> + Clone + Send + 'static,
) -> Result<T, AmqpError> {
    let mut first_error = None;
    for node in broker.candidates() {
        let limit = broker.connect_timeout + Duration::from_millis(200);
        let address = node.to_string();
        let (then, damage) = (then.clone(), damage.clone());
        match within(limit, move || then(open(&node, purpose, damage)?)) {
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

/// Runs work that may block forever on a thread of its own; `None` if it takes too long: the
/// thread is then left behind.
pub(super) fn within<T: Send + 'static>(
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

/// Closes a connection and everything that belongs to it. Returns why it had already ended,
/// if it had.
pub(super) fn close<T: Send + 'static>(
    connection: Connection,
    attached: T,
    limit: Duration,
) -> Option<AmqpError> {
    let closed = within(limit, move || {
        // The connection first: closing a channel is a call that can hang, but returns at
        // once when the connection is gone.
        let result = connection.close();
        drop(attached);
        result
    });
    match closed {
        Some(result) => result.err().map(AmqpError::from),
        None => Some(AmqpError::Lost { reason: "the broker did not answer".into() }),
    }
}
