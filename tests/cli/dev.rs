//! `delayline dev` as a developer and a test suite use it.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Command as Process, Stdio},
};

use delayline_amqp::{Next, Session, broker::Broker};
use delayline_broker::ManagementApi;
use delayline_client::Router;
use delayline_core::{Message, codec::Delay, message::Value};
use delayline_settings::Layers;
use predicates::{prelude::PredicateBooleanExt, str::contains};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;

use crate::{
    common::{PATIENCE, app, eventually},
    delayline, schemas,
};

#[test]
fn applications_of_a_file_delay_and_retry_and_are_gone_at_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    // The file from the page for teams: one application receives, and the other sends to it.
    let page = include_str!("../../docs/for-teams/README.md");
    write("apps.toml", page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap());
    write("policies.toml", "[default]\nfixed = '5s'\n");
    let mut child = Process::new(env!("CARGO_BIN_EXE_delayline"))
        .args(["dev", "--json", "--unit-ms", "10", "--apps", "apps.toml", "--policies", "policies.toml"])
        .current_dir(directory.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let ready: Json = serde_json::from_str(&line).unwrap();
    schemas::check(&ready);
    assert_eq!((&ready["unit_ms"], ready["apps"].as_array().unwrap().len()), (&10.into(), 2), "{ready}");
    assert_eq!(ready["apps"][0]["queue"], "billing-in", "{ready}");

    // The message is delayed and rejected, and arrives again.
    let broker = |number: usize| Broker::from_url(ready["apps"][number]["url"].as_str().unwrap()).unwrap();
    let router = Router::builder(broker(1)).connect().unwrap();
    router.publish(Message::after(app("billing"), Delay::from_seconds(90).unwrap(), "x")).unwrap();
    let mut session = Session::open(&broker(0)).unwrap();
    let consumer = session.consume("billing-in", 10).unwrap();
    for attempt in [None, Some(1)] {
        let Next::Delivery(delivery) = consumer.next(PATIENCE) else {
            panic!("nothing came");
        };
        assert_eq!(delivery.headers.get("delayline-attempt").and_then(Value::as_i64), attempt);
        consumer.reject(delivery).unwrap();
    }
    // The credentials of a team work for the management API, too.
    let its = Layers::new()
        .set("url", ready["apps"][0]["url"].as_str().unwrap())
        .set("management_url", ready["management_url"].as_str().unwrap())
        .build()
        .unwrap();
    let api = ManagementApi::new(its.management.as_ref().unwrap()).unwrap();
    assert!(api.queue(&its.broker.vhost, "billing-in").unwrap().is_some());
    // Ctrl-C ends the command and its node.
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    eventually("the node is gone", || Session::open(&broker(0)).is_err());
}

#[test]
fn a_command_has_the_addresses_and_its_failure_is_ours() {
    let dev = |script: &str| {
        let mut it = delayline();
        it.args(["dev", "--app", "billing", "--app", "eu.shop", "--unit-ms", "10", "--", "sh", "-c", script]);
        it.env("COMMAND", env!("CARGO_BIN_EXE_delayline")).assert()
    };
    // The commands inside talk to that node.
    let script = r#"set -e; test "$AMQP_URL" = "$AMQP_URL_BILLING"; test -n "$AMQP_URL_EU_SHOP"
        "$COMMAND" send --app billing --delay 90s --body x
        "$COMMAND" listen --app billing --queue billing --count 1 --json | grep -q '"body":"x"'
        "$COMMAND" app show eu.shop --for go; exit 7"#;
    dev(script).code(7).stdout(contains("confirmed; due").and(contains("const app = \"eu.shop\"")));
}

#[test]
fn errors_are_reported_before_a_node_is_started() {
    let mut it = delayline();
    it.args(["dev", "--unit-ms", "0"]).assert().code(2).stderr(contains("1 to 1000"));
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, "[apps.billing]\nqeue = 'x'\n").unwrap();
    let mut it = delayline();
    it.args(["dev", "--apps"]).arg(file.path()).assert().code(2).stderr(contains("qeue"));
}
