//! The private node that all these tests use.

use std::{
    fs, io,
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    thread,
    time::Duration,
};

use delayline_amqp::Session;
use delayline_node::{NodeOptions, PrivateNode};

use crate::common::shared_node;

/// Waits until a node has chosen its port, takes the port before the node does, and forwards
/// connections to another server. A node whose configuration contains `not` does not count.
fn take_port(place: &Path, line: &str, server: SocketAddr, not: &str) -> u16 {
    let port = loop {
        let files = fs::read_dir(place).unwrap().flatten().map(|entry| entry.path().join("rabbitmq.conf"));
        let texts = files.filter_map(|file| fs::read_to_string(file).ok()).filter(|text| !text.contains(not));
        let texts: Vec<_> = texts.collect();
        let port = |text: &String| {
            let (_, rest) = text.split_once(line)?;
            // The line must be complete.
            rest.split_once('\n')?.0.parse::<u16>().ok()
        };
        match texts.iter().find_map(port) {
            Some(port) => break port,
            None => thread::sleep(Duration::from_millis(5)),
        }
    };
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("the node is not so fast");
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(server) else { continue };
            for (mut from, mut to) in [
                (client.try_clone().unwrap(), server.try_clone().unwrap()),
                (server.try_clone().unwrap(), client.try_clone().unwrap()),
            ] {
                thread::spawn(move || io::copy(&mut from, &mut to));
            }
        }
    });
    port
}

#[test]
fn a_node_whose_port_is_taken_meanwhile_starts_on_another() {
    let other = shared_node();
    let address = |authority: &str| authority.parse::<SocketAddr>().unwrap();
    let (amqp, management) = (address(&other.authority()), other.management_url());
    let management = address(management.trim_start_matches("http://"));
    let place = tempfile::tempdir().unwrap();
    let taken = {
        let place = place.path().to_owned();
        // One port of the first node, and the other one of the next.
        thread::spawn(move || {
            let line = "listeners.tcp.1 = 127.0.0.1:";
            let first = take_port(&place, line, amqp, "no such text");
            let second = take_port(&place, "management.tcp.port = ", management, &format!("{line}{first}\n"));
            [first, second]
        })
    };
    let options = NodeOptions { place: Some(place.path().to_owned()), ..NodeOptions::default() };
    let node = PrivateNode::start(options).unwrap();
    for taken in taken.join().unwrap().map(|port| format!(":{port}")) {
        assert!(!node.authority().ends_with(&taken) && !node.management_url().ends_with(&taken), "{node:?}");
    }
    // The answers come from the node itself, not from the server behind the taken port.
    let mut session = Session::open(&node.settings().build().unwrap().broker).unwrap();
    let queue = session.declare_own_queue().unwrap();
    let listed = node.tell(&["list_queues", "name"]).unwrap();
    assert!(listed.contains(&queue), "{listed}");
}

fn commands_wait_for_a_node_that_takes_connections_and_has_not_started_yet(node: &PrivateNode) {
    // The last state before the node has started, held for ten seconds.
    let starting = "rabbit_boot_state:set(core_started),
        spawn(fun() -> timer:sleep(10000), rabbit_boot_state:set(ready) end).";
    node.tell(&["eval", starting]).unwrap();
    node.tell(&["add_user", "operator", "unused"]).unwrap();
    assert!(node.tell(&["list_users"]).unwrap().contains("operator"));
    // Other refusals are reported with their reason.
    let error = node.tell(&["add_user", "operator", "unused"]).unwrap_err().to_string();
    assert!(error.contains("already exists"), "{error}");
}

#[test]
fn a_node_that_ends_for_another_reason_is_not_started_again() {
    let options = NodeOptions { config: "no.such.setting = 1\n".into(), ..NodeOptions::default() };
    let error = PrivateNode::start(options).unwrap_err().to_string();
    assert!(error.contains("it ended") && !error.contains("another program uses its port"), "{error}");
}

#[test]
fn a_node_keeps_its_files_in_the_given_place_and_removes_them() {
    let place = tempfile::tempdir().unwrap();
    let options = NodeOptions { place: Some(place.path().to_owned()), ..NodeOptions::default() };
    let node = PrivateNode::start(options).unwrap();
    Session::open(&node.settings().build().unwrap().broker).unwrap();
    commands_wait_for_a_node_that_takes_connections_and_has_not_started_yet(&node);
    let stored = node.directory().join("data");
    assert!(stored.read_dir().unwrap().next().is_some(), "nothing is stored under {}", stored.display());
    assert_eq!(node.directory().parent(), Some(place.path()));
    drop(node);
    assert_eq!(place.path().read_dir().unwrap().count(), 0);
}

#[test]
fn a_place_that_is_not_there_is_named() {
    let options = NodeOptions { place: Some("/no/such/place".into()), ..NodeOptions::default() };
    let error = PrivateNode::start(options).unwrap_err().to_string();
    assert!(error.contains("/no/such/place"), "{error}");
}
