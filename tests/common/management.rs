//! A management API between clients and that of a node, which fails as a test demands.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use delayline_settings::Settings;

/// How often a silent API checks whether it may answer.
const TICK: Duration = Duration::from_millis(20);

/// How it fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It answers as the node does.
    None,
    /// It takes requests and answers nothing.
    Silence,
    /// Requests that begin like this have this status line and this reason.
    Refusal { of: &'static str, status: &'static str, reason: &'static str },
    /// Each answer ends after this many bytes.
    Cut { after: usize },
}

/// A failing management API.
#[derive(Debug, Clone)]
pub struct FailingApi {
    /// Its address.
    pub url: String,
    fault: Arc<Mutex<Fault>>,
}

impl FailingApi {
    /// Stands in front of the management API in these settings, and does not fail yet.
    pub fn of(settings: &Settings) -> Self {
        let node = settings.management.as_ref().unwrap().url.socket_addrs(|| None).unwrap()[0];
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let api = Self { url, fault: Arc::new(Mutex::new(Fault::None)) };
        let serving = api.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(node) else { continue };
                let serving = serving.clone();
                thread::spawn(move || serving.serve(client, server));
            }
        });
        api
    }

    /// Fails like this from now on.
    pub fn fail(&self, fault: Fault) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    fn fault(&self) -> Fault {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes requests on until the client is gone or a fault ends the connection.
    fn serve(&self, mut client: TcpStream, mut server: TcpStream) {
        let answers = (server.try_clone().unwrap(), client.try_clone().unwrap());
        let (api, passed) = (self.clone(), Arc::new(AtomicUsize::new(0)));
        let answered = Arc::clone(&passed);
        thread::spawn(move || api.answer(answers, &answered));
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = client.read(&mut buffer) {
            let request = &buffer[..length];
            passed.store(0, Ordering::Relaxed);
            match self.fault() {
                Fault::Refusal { of, status, reason } if request.starts_with(of.as_bytes()) => {
                    let body = serde_json::json!({ "error": "fault", "reason": reason }).to_string();
                    let length = body.len();
                    let head =
                        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
                    let _ = client.write_all(format!("{head}{body}").as_bytes());
                    break;
                }
                Fault::Silence => {
                    self.keep_silent();
                    break;
                }
                _ if server.write_all(request).is_err() => break,
                _ => {}
            }
        }
        let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
    }

    fn answer(&self, (mut server, mut client): (TcpStream, TcpStream), passed: &AtomicUsize) {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = server.read(&mut buffer) {
            let rest = match self.fault() {
                Fault::Cut { after } => length.min(after.saturating_sub(passed.load(Ordering::Relaxed))),
                _ => length,
            };
            passed.fetch_add(rest, Ordering::Relaxed);
            if client.write_all(&buffer[..rest]).is_err() || rest < length {
                break;
            }
        }
        // The node closes a connection without requests.
        self.keep_silent();
        let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
    }

    fn keep_silent(&self) {
        while self.fault() == Fault::Silence {
            thread::sleep(TICK);
        }
    }
}
