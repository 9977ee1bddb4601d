//! A password is never shown, even by a panic of a program that prints all its settings.

use std::{process::Command, thread};

use delayline_admin::{self as admin, DoctorOptions};
use delayline_amqp::Session;
use delayline_broker::ManagementApi;
use delayline_core::topology::Topology;
use delayline_settings::{Layers, Settings};

use crate::{
    common::{http, installed, shared_node},
    secrets::{MARK, assert_hidden, search},
};

/// The variable makes this process panic; its value is a URL with the password.
const PANICKING: &str = "TEST_PANICS_ON";

fn settings(url: &str) -> Settings {
    Layers::new()
        .set("url", url)
        .set("management_url", std::env::var("TEST_MANAGEMENT").unwrap())
        .set("connect_timeout", "5s")
        .build()
        .unwrap()
}

/// Panics in every way that a careless program might.
#[test]
#[ignore = "run by the next test, in a process of its own"]
fn a_program_that_panics_with_all_it_has() {
    let url = std::env::var(PANICKING).expect("the next test sets the URL");
    let settings = settings(&url);
    let ways: [fn(Settings); 8] = [
        |settings| panic!("{settings:?} {:#?}", settings.broker),
        |settings| panic!("{:?} {}", settings.management, settings.broker),
        |settings| drop(Session::open(&settings.broker).unwrap()),
        |settings| drop(settings.router().connect().unwrap()),
        |settings| {
            ManagementApi::new(settings.management.as_ref().unwrap()).unwrap().overview().unwrap();
        },
        |settings| {
            let topology = Topology::new(settings.topology.clone());
            admin::verify(&settings, &topology).unwrap();
        },
        |settings| {
            let topology = Topology::new(settings.topology.clone());
            admin::doctor(&settings, &topology, &DoctorOptions::default()).unwrap();
        },
        |settings| panic!("{:?}", Layers::new().set("url", format!("{:?}", settings.broker.host)).build()),
    ];
    for (number, way) in ways.into_iter().enumerate() {
        let settings = settings.clone();
        let result = thread::spawn(move || way(settings)).join();
        eprintln!("way {number}: {}", if result.is_err() { "panicked" } else { "went well" });
    }
}

#[test]
fn no_panic_shows_the_password() {
    let address = shared_node().url().replace("amqp://", "");
    for url in [format!("amqp://nobody:{MARK}@{address}"), format!("amqp://nobody:{MARK}@127.0.0.1:1/x")] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "cli::panics::a_program_that_panics_with_all_it_has",
                "--ignored",
                "--nocapture",
            ])
            .env(PANICKING, &url)
            .env("TEST_MANAGEMENT", shared_node().management_url())
            .env("RUST_BACKTRACE", "full")
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert_eq!(text.matches(": panicked\n").count(), 8, "{text}");
        assert!(text.contains("nobody"), "the settings were not printed: {text}");
        assert_hidden(&text, "a panic");
    }
}

#[test]
fn doctor_and_held_commands_never_show_the_password() {
    let node = &shared_node();
    let settings = installed(1_000);
    let vhost = &settings.broker.vhost;
    http(node, "PUT", "users/looker", &serde_json::json!({"password": MARK, "tags": "administrator"}));
    let all = serde_json::json!({"configure": ".*", "write": ".*", "read": ".*"});
    http(node, "PUT", &format!("permissions/{vhost}/looker"), &all);
    let address = node.url().replace("amqp://", "");
    let management = node.management_url();
    for user in ["looker", "nobody"] {
        let url = format!("amqp://{user}:{MARK}@{address}/{vhost}");
        // The password is in the URL of the management API as well.
        let management = management.replace("http://", &format!("http://{user}:{MARK}@"));
        let variables = [("DELAYLINE_URL", url.as_str()), ("DELAYLINE_MANAGEMENT_URL", &management)];
        search(&["doctor"], &variables);
        search(&["doctor", "--json"], &variables);
        search(&["held", "list", "--kind", "unroutable", "--json"], &variables);
        search(&["held", "replay", "--kind", "unroutable", "--all"], &variables);
        search(&["held", "list", "--kind", "parked"], &variables);
    }
}
