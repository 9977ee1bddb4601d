//! Publishing as another client would, without the router and its checks.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    process::{Command, Stdio},
    thread,
};

use delayline_settings::Settings;
use serde_json::{Value as Json, json};

/// A message for [`publish`]; `properties` has the names of pika.
pub fn message(exchange: &str, key: &str, body: impl ToString, properties: &Json) -> Json {
    json!({ "exchange": exchange, "key": key, "body": body.to_string(), "properties": properties })
}

/// Publishes with pika, as `guest`, and returns once the broker has read everything.
pub fn publish(settings: &Settings, messages: impl IntoIterator<Item = Json>) {
    let python = std::env::var("TEST_PYTHON")
        .expect("TEST_PYTHON is the path of a Python with pika; scripts/test sets it");
    let url = format!("amqp://guest:guest@127.0.0.1:{}/{}", settings.broker.port, settings.broker.vhost);
    let mut child = Command::new(python)
        .args([concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/common/publish.py"), &url])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = std::io::BufWriter::new(child.stdin.take().unwrap());
    for message in messages {
        writeln!(input, "{message}").unwrap();
    }
    drop(input);
    assert!(child.wait().unwrap().success(), "publishing failed");
}

/// A server in the place of a management API that answers every request like this. Returns its URL.
pub fn answering(status: &'static str, body: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for mut connection in listener.incoming().map_while(Result::ok) {
            let lines = BufReader::new(connection.try_clone().unwrap()).lines().map_while(Result::ok);
            lines.take_while(|line| !line.is_empty()).for_each(drop);
            let length = body.len();
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
            let _ = connection.write_all((head + body).as_bytes());
        }
    });
    url
}
