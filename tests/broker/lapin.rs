//! The example that publishes with lapin from tokio does what it says.

use std::{
    path::PathBuf,
    process::{Command, Output},
};

use delayline_settings::Settings;

use crate::common::{Inbox, PATIENCE, installed, run_in_time, url, vhost};

/// The example, which is built together with the tests.
fn example() -> PathBuf {
    let tests = std::env::current_exe().expect("the path of this test");
    let built = tests.ancestors().nth(2).expect("a target directory").join("examples/tokio_lapin");
    assert!(built.exists(), "{} is missing: cargo build --examples", built.display());
    built
}

fn publish(settings: &Settings, delay: &str, body: &str) -> Output {
    let mut program = Command::new(example());
    program.args([&url(settings), "billing", delay, body]);
    run_in_time(program)
}

#[test]
fn what_lapin_publishes_arrives_as_from_the_router() {
    let settings = installed(100);
    let inbox = Inbox::open(&settings, "billing");
    let output = publish(&settings, "3s", "invoice 17");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "confirmed\n");
    let delivery = inbox.next(PATIENCE).expect("the message");
    assert_eq!(delivery.body, b"invoice 17");
    assert_eq!(delivery.headers["customer"], "C-4".into());
    assert!(delivery.headers.contains_key("delayline-due"), "{:?}", delivery.headers);
}

#[test]
fn lapin_says_when_no_queue_takes_a_message() {
    // No set at all: the channel ends over an exchange that is not there.
    let settings = vhost().build().unwrap();
    let run = publish(&settings, "3s", "x");
    let text = String::from_utf8_lossy(&run.stderr);
    assert!(!run.status.success() && text.contains("not confirmed") && text.contains("delay"), "{text}");
    // A delay that is too long is refused before anything is sent.
    let run = publish(&settings, "9y", "x");
    let text = String::from_utf8_lossy(&run.stderr);
    assert!(!run.status.success() && text.contains("8.5 years"), "{text}");
}
