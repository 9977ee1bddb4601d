//! Moving messages to another vhost and to another broker, with the command.

use delayline_settings::Settings;
use serde_json::Value as Json;

use crate::common::{Inbox, PATIENCE, install, url, vhost, vhost_on};

use super::{command, ids, of_set, send};

/// Moves all messages to the set of the same name elsewhere, and checks that they arrive on time.
fn moves(old: &Settings, new: &Settings, more: &[&str]) {
    const COUNT: u32 = 50;
    for settings in [old, new] {
        install(settings);
    }
    // A minute and a half is enough even on a busy machine. The other messages wait for a day.
    let due = send(old, 900, 0..COUNT, true);
    send(old, 864_000, COUNT..COUNT + 10, true);
    let inbox = Inbox::open(new, "app");
    let output = command(old, more).arg("--json").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said} {}", String::from_utf8_lossy(&output.stderr));
    let report: Json = serde_json::from_str(&said).unwrap();
    assert_eq!(report["moved"], 60, "{report}");
    assert_eq!((of_set(old), of_set(new)), (0, 60));
    let arrivals = inbox.collect(COUNT as usize, PATIENCE);
    assert_eq!(ids(&arrivals), (0..COUNT).map(|id| (id, 1)).collect());
    for arrival in &arrivals {
        assert!(arrival.at.as_millisecond() >= due, "early: {arrival:?}");
    }
}

#[test]
fn waiting_messages_move_to_another_vhost() {
    let [old, new] = [(); 2].map(|()| vhost().set("unit_ms", "100").build().unwrap());
    moves(&old, &new, &["delay", "--to-vhost", &new.broker.vhost]);
}

#[test]
fn waiting_messages_move_to_another_broker() {
    let node = crate::unstick::node();
    let old = vhost().set("unit_ms", "100").build().unwrap();
    let new = vhost_on(node).set("unit_ms", "100").build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("new.toml");
    let lines = [
        format!("url = {:?}", url(&new)),
        format!("management_url = {:?}", node.management_url()),
        "unit_ms = 100".into(),
    ];
    std::fs::write(&file, lines.join("\n")).unwrap();
    moves(&old, &new, &["delay", "--to-config", file.to_str().unwrap()]);
}

#[test]
fn messages_stay_if_the_destination_is_missing() {
    let [old, new] = [(); 2].map(|()| vhost().set("unit_ms", "100").build().unwrap());
    install(&old);
    send(&old, 864_000, 0..10, true);
    // A vhost without the set, and a vhost that does not exist.
    for (vhost, why) in [(new.broker.vhost.as_str(), "there is no set `delay`"), ("nowhere", "nowhere")] {
        let output = command(&old, &["delay", "--to-vhost", vhost]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(3) && said.contains(why), "{:?}: {said}", output.status);
        assert_eq!(of_set(&old), 10);
    }
}
