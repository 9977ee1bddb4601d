//! A headless Chromium and the page in it, controlled over its DevTools protocol: JSON over a web
//! socket. The tests need only seven of its methods.

use std::{
    cell::RefCell,
    io::{BufRead, BufReader},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value as Json, json};
use tempfile::TempDir;
use tungstenite::{Message, WebSocket};

use crate::common::eventually;

/// How long each step of the browser may take; it draws slowly on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// An open page, and all errors in it.
pub(crate) struct Seen {
    wire: RefCell<Wire>,
    process: Child,
    _profile: TempDir,
}

struct Wire {
    socket: WebSocket<TcpStream>,
    session: Option<String>,
    calls: u64,
    complaints: Vec<String>,
}

/// The path of Chromium.
fn chromium() -> PathBuf {
    let named = std::env::var_os("TEST_CHROMIUM").map(PathBuf::from);
    let path = named.unwrap_or_else(|| "/usr/bin/chromium".into());
    assert!(
        path.exists(),
        "these tests need Chromium at {} (or at the path in TEST_CHROMIUM); scripts/test installs it",
        path.display()
    );
    path
}

impl Wire {
    /// Calls a method and returns its result. Events that arrive meanwhile are recorded.
    fn call(&mut self, method: &str, params: &Json) -> Json {
        self.calls += 1;
        let id = self.calls;
        let mut call = json!({ "id": id, "method": method, "params": params });
        if let Some(session) = &self.session {
            call["sessionId"] = session.as_str().into();
        }
        self.socket.send(Message::text(call.to_string())).unwrap();
        loop {
            let Message::Text(text) = self.socket.read().unwrap_or_else(|error| panic!("{method}: {error}"))
            else {
                continue;
            };
            let mut said: Json = serde_json::from_str(&text).unwrap();
            if said["id"] == id {
                assert!(said["error"].is_null(), "{method}: {}", said["error"]);
                return said["result"].take();
            }
            self.note(&said);
        }
    }

    fn note(&mut self, event: &Json) {
        let params = &event["params"];
        let complaint = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => &params["exceptionDetails"],
            Some("Log.entryAdded") if params["entry"]["level"] == "error" => &params["entry"],
            Some("Runtime.consoleAPICalled") if params["type"] == "error" => &params["args"],
            _ => return,
        };
        self.complaints.push(complaint.to_string());
    }
}

impl Seen {
    /// Opens a page in a browser of its own, in a window of this size.
    pub(crate) fn open(url: &str, size: (u32, u32)) -> Self {
        let profile = tempfile::tempdir().unwrap();
        let mut process = Command::new(chromium())
            // In a container, tests usually run as root, and Chromium's sandbox does not work for
            // root.
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--hide-scrollbars", "--no-first-run", "--remote-debugging-port=0"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let address = loop {
            let line = lines.next().expect("Chromium prints its address").unwrap();
            if let Some((_, address)) = line.split_once("DevTools listening on ") {
                break address.trim().to_owned();
            }
        };
        // If the test stopped reading, the pipe would fill and Chromium would stop.
        thread::spawn(move || lines.for_each(drop));
        let host = address.trim_start_matches("ws://").split('/').next().unwrap();
        let stream = TcpStream::connect(host).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (socket, _) = tungstenite::client(address.as_str(), stream).unwrap();
        let mut wire = Wire { socket, session: None, calls: 0, complaints: Vec::new() };
        let target = wire.call("Target.createTarget", &json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = wire.call("Target.attachToTarget", &attach);
        wire.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Log", "Runtime"] {
            wire.call(&format!("{domain}.enable"), &json!({}));
        }
        let seen = Self { wire: RefCell::new(wire), process, _profile: profile };
        seen.resize(size);
        seen.call("Page.navigate", &json!({ "url": url }));
        let loaded = format!("location.href.startsWith({url:?}) && document.readyState === 'complete'");
        eventually("the page is loaded", || seen.eval(&loaded) == true);
        seen
    }

    fn call(&self, method: &str, params: &Json) -> Json {
        self.wire.borrow_mut().call(method, params)
    }

    /// All errors so far from the console, from scripts and from the content security policy.
    pub(crate) fn complaints(&self) -> Vec<String> {
        // Waiting for this answer also receives all earlier events.
        self.eval("0");
        let mut complaints = self.wire.borrow().complaints.clone();
        // Another test gave this machine an address or took one: the page asks again.
        complaints.retain(|text| !text.contains("ERR_NETWORK_CHANGED"));
        complaints
    }

    /// The value of an expression.
    pub(crate) fn eval(&self, expression: &str) -> Json {
        let params = json!({ "expression": expression, "returnByValue": true });
        let mut result = self.call("Runtime.evaluate", &params);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {}", result["exceptionDetails"]);
        result["result"]["value"].take()
    }

    /// The text of the first element that matches; empty if none does.
    pub(crate) fn text(&self, selector: &str) -> String {
        let found = self.eval(&format!("(document.querySelector({selector:?}) || {{}}).innerText || ''"));
        found.as_str().unwrap_or_default().to_owned()
    }

    /// The number in an element, in the displayed form: `1,234`.
    pub(crate) fn number(&self, selector: &str) -> Option<u64> {
        match self.text(selector).replace(',', "").trim() {
            "·" => Some(0),
            digits => digits.parse().ok(),
        }
    }

    /// Presses `Enter` or `Tab`.
    pub(crate) fn press(&self, key: &str) {
        let (number, text) = if key == "Enter" { (13, "\r") } else { (9, "") };
        let mut event = json!({
            "type": "keyDown", "key": key, "code": key, "windowsVirtualKeyCode": number, "text": text,
        });
        self.call("Input.dispatchKeyEvent", &event);
        (event["type"], event["text"]) = ("keyUp".into(), "".into());
        self.call("Input.dispatchKeyEvent", &event);
    }

    /// Resizes the page, for example to the size of a telephone.
    pub(crate) fn resize(&self, (width, height): (u32, u32)) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", &size);
    }

    /// Sets the reader's preferences, such as `prefers-color-scheme`.
    pub(crate) fn prefer(&self, features: &[(&str, &str)]) {
        let features = features.iter().map(|(name, value)| json!({ "name": name, "value": value }));
        self.call("Emulation.setEmulatedMedia", &json!({ "features": features.collect::<Vec<_>>() }));
    }

    /// Takes a picture of the window.
    pub(crate) fn screenshot(&self, file: &Path) {
        let taken = self.call("Page.captureScreenshot", &json!({ "format": "png" }));
        std::fs::write(file, BASE64_STANDARD.decode(taken["data"].as_str().unwrap()).unwrap()).unwrap();
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
