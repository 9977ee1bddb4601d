//! A connection to the broker that a test can stop in either direction at a chosen moment.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

/// Controls which data pass. Once held, a direction stays held until the connections end.
#[derive(Default)]
pub(super) struct Valve {
    /// No more data pass to the broker.
    pub(super) hold_to_broker: AtomicBool,
    /// No more data pass from the broker.
    pub(super) hold_from_broker: AtomicBool,
    /// The bytes that clients have written, including held ones.
    pub(super) written: AtomicU64,
    /// Holds data from the broker once clients have written this many bytes.
    pub(super) hold_answers_after: AtomicU64,
    /// Once clients have written this many bytes, holds their data from the broker's next answer
    /// on.
    pub(super) hold_after_answer_to: AtomicU64,
}

/// Listens, and connects each client to the broker. Returns the port.
pub(super) fn proxy(broker: u16, valve: &Arc<Valve>) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let valve = Arc::clone(valve);
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, broker)) else { continue };
            let pairs = [(client.try_clone(), server.try_clone(), true), (Ok(server), Ok(client), false)];
            for (from, to, to_broker) in pairs {
                let valve = Arc::clone(&valve);
                let (from, to) = (from.unwrap(), to.unwrap());
                thread::spawn(move || pass(from, to, to_broker, &valve));
            }
        }
    });
    port
}

fn pass(mut from: TcpStream, mut to: TcpStream, to_broker: bool, valve: &Valve) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if to_broker {
            let written = valve.written.fetch_add(length as u64, Ordering::SeqCst) + length as u64;
            let limit = valve.hold_answers_after.load(Ordering::SeqCst);
            if limit > 0 && written >= limit {
                valve.hold_from_broker.store(true, Ordering::SeqCst);
            }
        } else {
            let limit = valve.hold_after_answer_to.load(Ordering::SeqCst);
            if limit > 0 && valve.written.load(Ordering::SeqCst) >= limit {
                valve.hold_to_broker.store(true, Ordering::SeqCst);
            }
        }
        let held = if to_broker { &valve.hold_to_broker } else { &valve.hold_from_broker };
        while held.load(Ordering::SeqCst) {
            // The held data are dropped when the client is gone.
            let mut byte = [0];
            let client = if to_broker { &from } else { &to };
            client.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            match client.peek(&mut byte) {
                Ok(0) => return end(&from, &to),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return end(&from, &to),
                _ => thread::sleep(Duration::from_millis(20)),
            }
        }
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    end(&from, &to);
}

fn end(from: &TcpStream, to: &TcpStream) {
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
