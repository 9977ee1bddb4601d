//! The output of a program that uses the library with all logging enabled.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use delayline_admin as admin;
use delayline_amqp::{Session, broker::Secret};
use delayline_broker::ManagementApi;
use delayline_core::{Message, codec::Delay};
use delayline_node::PrivateNode;
use delayline_settings::Layers;
use serde_json::json;

use crate::{
    common::{Inbox, PATIENCE, app, http, topology},
    tls::Pki,
};

const MARK: &str = "hunter2-marked-password";

/// The user with this password.
const USER: &str = "marked";

#[test]
#[ignore = "the next test runs it with all logging enabled"]
fn a_program_that_logs() {
    env_logger::init();
    let variable = |name: &str| std::env::var(name).unwrap();
    let mut layers = Layers::new()
        .set("url", variable("TEST_URL"))
        .set("management_url", variable("TEST_MANAGEMENT_URL"))
        .set("username", USER)
        .set("unit_ms", "10");
    if let Ok(file) = std::env::var("TEST_CA_FILE") {
        layers = layers.set("ca_file", file);
    }
    let settings = layers.set("password", MARK).build().unwrap();
    admin::install(&settings, &topology(&settings), false, || {}).unwrap();
    admin::verify(&settings, &topology(&settings)).unwrap();
    let inbox = Inbox::open(&settings, "app");
    let router = settings.router().connect().unwrap();
    router.publish(Message::after(app("app"), Delay::from_seconds(3).unwrap(), "x")).unwrap();
    assert!(inbox.next(PATIENCE).is_some());
    let api = ManagementApi::new(settings.management.as_ref().unwrap()).unwrap();
    api.create_user("another", &Secret::new(MARK), "").unwrap();
    api.delete_user("another").unwrap();
    // A refused login.
    let mut wrong = settings.broker.clone();
    wrong.vhost = "nowhere".into();
    println!("{:?}", Session::open(&wrong).unwrap_err());
    println!("{settings:?}");
}

/// Runs the program, and returns its output.
fn printed(node: &PrivateNode, url: &str, ca_file: Option<&Path>, level: &str) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "broker::logging::a_program_that_logs", "--ignored", "--nocapture"])
        .env("RUST_LOG", level)
        .env("TEST_URL", url)
        .env("TEST_MANAGEMENT_URL", node.management_url())
        .stdin(Stdio::null());
    if let Some(file) = ca_file {
        command.env("TEST_CA_FILE", file);
    }
    let output = command.output().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}");
    text
}

/// All forms in which bytes are printed.
fn forms() -> Vec<String> {
    let list = |text: String| text.trim_matches(['[', ']']).to_owned();
    let bytes = MARK.as_bytes();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut forms = vec![MARK.to_owned(), list(format!("{bytes:?}")), list(format!("{bytes:x?}")), hex];
    // The base64 form depends on the position of the first byte in a group of three. The first and
    // the last characters also contain bits of neighbouring bytes.
    forms.extend((0..3).map(|before| {
        let encoded = BASE64_STANDARD.encode([&b"\0\0"[..before], bytes].concat());
        encoded[4..encoded.len() - 4].to_owned()
    }));
    forms
}

#[test]
fn a_program_that_logs_everything_never_shows_the_password() {
    let pki = Pki::new();
    let node = pki.node(pki.issue("localhost", Some("localhost"), false), false, "");
    http(&node, "PUT", &format!("users/{USER}"), &json!({ "password": MARK, "tags": "administrator" }));
    let all = json!({ "configure": ".*", "write": ".*", "read": ".*" });
    http(&node, "PUT", &format!("permissions/%2F/{USER}"), &all);
    let ca_file = pki.path("ca.pem");
    for level in ["debug", "trace"] {
        for (url, ca_file) in [(node.url(), None), (node.tls_url(), Some(ca_file.as_path()))] {
            let text = printed(&node, &url, ca_file, level);
            // The client library has logged its login.
            let said = text.lines().find(|line| line.contains("amiquip") && line.contains("StartOk"));
            let stars = format!("{USER}\\0{}", "*".repeat(MARK.len()));
            let said = said.unwrap_or_else(|| panic!("no login in the log at {level}:\n{text}"));
            assert!(said.contains(&stars), "{said}");
            for form in forms() {
                let shown = text.lines().find(|line| line.contains(&form));
                assert_eq!(shown, None, "{url} at {level}");
            }
        }
    }
}
