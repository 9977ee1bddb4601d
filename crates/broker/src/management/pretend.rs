//! A management API without a broker, for tests.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    sync::{Arc, Mutex},
    thread,
};

use delayline_settings::Settings;

use super::ManagementApi;

/// An API that gives these answers to paths, or refuses to answer, and the paths that it was asked for.
pub(crate) fn answering(
    mut answer: impl FnMut(&str) -> Option<String> + Send + 'static,
) -> (ManagementApi, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut settings = Settings::from_url("amqp://localhost").unwrap().management.unwrap();
    settings.url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let paths = Arc::clone(&asked);
    thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            let lines = BufReader::new(socket.try_clone().unwrap()).lines().map(Result::unwrap);
            let lines: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
            let path = lines[0].split(' ').nth(1).unwrap().to_owned();
            let answered = answer(&path);
            paths.lock().unwrap().push(path);
            let status = if answered.is_some() { "200 OK" } else { "401 Unauthorized" };
            let body = answered.unwrap_or_default();
            let length = body.len();
            let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
            socket.write_all((head + &body).as_bytes()).unwrap();
        }
    });
    (ManagementApi::new(&settings).unwrap(), asked)
}
