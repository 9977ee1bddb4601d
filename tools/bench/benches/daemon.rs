//! The cost of an idle daemon: its share of a core and its memory with the canary, the page and the
//! metrics on, scraped every 15 s; alone, and with an open page.
//!
//!     cargo bench -p delayline-bench --bench daemon             # a minute each
//!     SECONDS=600 cargo bench -p delayline-bench --bench daemon

mod common;

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use common::{Daemon, Lab, number};

/// How often Prometheus scrapes.
const SCRAPE: Duration = Duration::from_secs(15);

/// Until canaries have come through every level, and the allocator knows its size.
const WARM_UP: Duration = Duration::from_secs(150);

fn main() {
    let Some(lab) = Lab::start() else { return };
    let time = Duration::from_secs(number("SECONDS", 60).into());
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let daemon = lab.serve(&["--listen=127.0.0.1:0"], "info", fs::File::create(&log).unwrap());
    let address = loop {
        let text = fs::read_to_string(&log).unwrap();
        let page = text.split_once("page at http://").and_then(|(_, rest)| rest.split_once('/'));
        match page {
            Some((address, _)) => break address.to_owned(),
            None => thread::sleep(Duration::from_millis(50)),
        }
    };
    pass(&daemon, WARM_UP, Some(&address), false);
    print("canary, metrics and page", &daemon, pass(&daemon, time, Some(&address), false));
    print("and an open page", &daemon, pass(&daemon, time, Some(&address), true));
    drop(daemon);
    let daemon = lab.serve(&["--no-canary", "--no-web"], "info", tempfile::tempfile().unwrap());
    pass(&daemon, Duration::from_secs(10), None, false);
    print("retries alone", &daemon, pass(&daemon, time, None, false));
}

fn print(what: &str, daemon: &Daemon, cpu: f64) {
    println!("{what}: {:.2} % of a core, at most {:.1} MB resident", cpu * 100.0, daemon.peak_memory());
}

/// Lets time pass. Returns the share of a core that the daemon used.
fn pass(daemon: &Daemon, time: Duration, address: Option<&str>, looked_at: bool) -> f64 {
    let (began, cpu) = (Instant::now(), daemon.cpu());
    let mut scrape = began;
    while began.elapsed() < time {
        if let Some(address) = address {
            if Instant::now() >= scrape {
                scrape += SCRAPE;
                get(address, "/metrics");
            }
            if looked_at {
                get(address, "/api/picture");
            }
        }
        thread::sleep(Duration::from_secs(1).min(time));
    }
    (daemon.cpu() - cpu) / began.elapsed().as_secs_f64()
}

fn get(address: &str, path: &str) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
