//! Starting, reloading and stopping the daemon.

use std::{
    collections::HashMap,
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use delayline_amqp::{Next, Session};
use delayline_core::{
    Message,
    codec::Delay,
    message::{Properties, Value},
    topology::{Binding, Endpoint, Queue},
};
use rustix::process::Signal;
use serde_json::json;

use crate::common::{
    Inbox, PATIENCE, app,
    daemon::{Daemon, serve},
    eventually, eventually_seen, install, installed, mortal_node, permit, raw, revive,
};

use super::{POLICIES, daemon, daemon_of, faults::dead_letters, parked};

#[test]
fn a_broken_configuration_is_refused_and_the_old_one_stays() {
    let settings = installed(10);
    let inbox = Inbox::open(&settings, "app");
    let mut daemon = daemon(&settings, "[default]\nfixed = '1s'\nattempts = 1\n");
    dead_letters(&settings, "app", 0..1);
    assert!(inbox.next(PATIENCE).is_some());

    fs::write(daemon.directory().join(POLICIES), "[default]\nfixed = 'soon'\n").unwrap();
    daemon.signal(Signal::HUP);
    eventually("the new policies are refused", || {
        daemon.log().contains("the old policies stay") && daemon.log().contains("[default] `fixed`")
    });
    dead_letters(&settings, "app", 1..2);
    assert!(inbox.next(PATIENCE).is_some(), "{}", daemon.log());

    fs::write(daemon.directory().join(POLICIES), "[default]\nattempts = 0\n").unwrap();
    daemon.signal(Signal::HUP);
    eventually("the new policies are in force", || daemon.log().contains("reloaded"));
    dead_letters(&settings, "app", 2..3);
    let message = parked(&settings, 1).remove(0);
    assert_eq!((message.text("delayline-reason"), message.number("delayline-attempt")), ("attempts", 0));
    let log = eventually_seen(
        "both are logged",
        || daemon.log(),
        |log| {
            log.contains("retry app=app attempt=1/1 delay=1s reason=published id=1")
                && log.contains("park app=app attempt=0 why=attempts reason=published id=2")
        },
    );
    assert!(!log.contains("dead body"), "a body is in the log");
    assert_eq!(daemon.stop(), Some(0));
}

#[test]
fn sigterm_finishes_what_it_holds_and_several_share_the_work() {
    const COUNT: u32 = 2_500;
    let settings = installed(1);
    let inbox = Inbox::open(&settings, "app");
    let policies = "[default]\nfixed = '1s'\nattempts = 1\n";
    let mut daemons = [daemon(&settings, policies), daemon(&settings, policies)];
    // Both must consume first: on a busy machine, one may start when the other has done all the work.
    for daemon in &daemons {
        eventually("the daemon takes messages", || daemon.log().contains("taking messages"));
    }
    dead_letters(&settings, "app", 0..COUNT);
    let mut seen: HashMap<String, u32> = HashMap::new();
    let mut until = |count| {
        while seen.len() < count {
            let arrival = inbox.next(PATIENCE).unwrap_or_else(|| panic!("only {} arrived", seen.len()));
            *seen.entry(arrival.id).or_default() += 1;
        }
    };
    until(500);
    for daemon in &mut daemons {
        assert_eq!(daemon.stop(), Some(0), "{}", daemon.log());
    }
    daemons[0].again();
    until(COUNT as usize);
    // Usually none. But a slow broker may process the last acknowledgements too late.
    let twice = seen.values().filter(|times| **times > 1).count();
    println!("two services stopped regularly: {twice} of {COUNT} came twice");
    assert!(twice <= 2 * 256, "{twice} came twice, more than the two can hold");
    for daemon in &daemons {
        assert!(daemon.log().contains("retry app=app"), "a daemon had no part in the work");
    }
}

#[test]
fn it_waits_for_the_broker_and_for_the_set() {
    let mut node = mortal_node();
    let settings = node.settings().set("unit_ms", "10").build().unwrap();
    node.kill();
    let mut daemon = daemon(&settings, "[default]\nfixed = '1s'\nattempts = 1\n");
    eventually("the daemon reports that the broker is unreachable", || {
        daemon.log().contains("cannot reach the broker")
    });
    revive(&mut node);
    eventually("the daemon reports the missing set", || daemon.log().contains("delayline install"));
    install(&settings);
    let inbox = Inbox::open(&settings, "app");
    dead_letters(&settings, "app", 0..1);
    assert!(inbox.next(PATIENCE).is_some());
    drop(inbox);
    node.write_down_queues().unwrap();
    node.kill();
    revive(&mut node);
    let inbox = Inbox::open(&settings, "app");
    dead_letters(&settings, "app", 1..2);
    let arrival = inbox.next(PATIENCE).unwrap();
    assert_eq!(arrival.headers["delayline-attempt"].as_i64(), Some(1));
    assert_eq!(daemon.stop(), Some(0));
}

#[test]
fn few_permissions_are_enough_and_another_users_id_is_kept_in_a_header() {
    let settings = installed(10);
    let inbox = Inbox::open(&settings, "app");
    permit(&settings.broker.vhost, "retrier", ["^$", r"^delay(\.parked)?$", r"^delay\.retry$"]);
    let daemon = daemon_of("retrier", &settings, "[default]\nfixed = '1s'\nattempts = 1\n");

    let mut session = delayline_amqp::Session::open(&settings.broker).unwrap();
    let destination = Endpoint::Exchange("delay.retry".into());
    // Messages for `failing` fail at once.
    let key = delayline_core::codec::RoutingKey::binding_pattern(&app("failing"));
    session.bind(&Binding { source: "delay.dispatch".into(), destination, key }).unwrap();
    let router = settings.router().connect().unwrap();
    let properties = Properties { user_id: Some("guest".into()), ..Properties::default() };
    let message = Message::after(app("failing"), Delay::ZERO, "x").with_properties(properties);
    router.publish(message).unwrap();
    // The retry fails as well, and it was the only attempt.
    let message = parked(&settings, 1).remove(0);
    assert_eq!(message.text("delayline-reason"), "attempts", "{}", daemon.log());
    assert_eq!(message.number("delayline-attempt"), 1);
    assert_eq!(message.properties.user_id, None);
    assert_eq!(message.headers["delayline-user-id"], Value::from("guest"));
    // The daemon takes no messages of other applications: `app` still gets its own.
    router.publish(Message::after(app("app"), Delay::from_seconds(2).unwrap(), "its own")).unwrap();
    assert_eq!(inbox.next(PATIENCE).unwrap().body, b"its own");
}

/// Headers that an application copies from a retry to another message do not count as attempts.
#[test]
fn attempts_are_counted_by_what_was_retried() {
    let settings = installed(10);
    let inbox = Inbox::open(&settings, "app");
    let mut session = Session::open(&settings.broker).unwrap();
    let arguments = [("x-dead-letter-exchange", "delay.retry"), ("x-dead-letter-routing-key", "app")];
    let arguments = arguments.map(|(name, value)| (name.to_owned(), value.into()));
    session.declare_queue(&Queue::new("copies").with_arguments(arguments)).unwrap();
    let _daemon = daemon(&settings, "[default]\nfixed = '1s'\nattempts = 1\n");
    let copied = json!({
        "message_id": "copy",
        "headers": { "delayline-attempt": 7, "delayline-first-failed": 1, "delayline-exchange": "other",
            "delayline-routing-key": "other" },
    });
    raw::publish(&settings, [raw::message("", "copies", "x", &copied)]);
    let consumer = session.consume("copies", 1).unwrap();
    let Next::Delivery(delivery) = consumer.next(PATIENCE) else { panic!("nothing came") };
    consumer.reject(delivery).unwrap();
    let arrival = inbox.next(PATIENCE).unwrap();
    let header = |name: &str| arrival.headers.get(name).cloned();
    assert_eq!(header("delayline-attempt").and_then(|attempt| attempt.as_i64()), Some(1));
    assert_eq!(header("delayline-routing-key"), Some("copies".into()));
}

/// A proxy to the management API. While `slow` is set, it replaces the date of answers by a date in
/// the past. Returns its port.
fn slow_clock(management: u16, slow: &Arc<AtomicBool>) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let slow = Arc::clone(slow);
    thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, management)) else { continue };
            let (mut asking, mut asked) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut asking, &mut asked));
            let slow = Arc::clone(&slow);
            thread::spawn(move || {
                let mut buffer = vec![0; 64 * 1024];
                while let Ok(length @ 1..) = server.read(&mut buffer) {
                    let answer = &mut buffer[..length];
                    let date = answer.windows(8).position(|bytes| bytes.eq_ignore_ascii_case(b"\r\ndate: "));
                    if let Some(at) = date.map(|at| at + 8).filter(|_| slow.load(Ordering::SeqCst)) {
                        // A date in the past, which has the same length.
                        answer[at..at + 29].copy_from_slice(b"Tue, 14 Nov 2023 22:13:20 GMT");
                    }
                    if client.write_all(answer).is_err() {
                        break;
                    }
                }
            });
        }
    });
    port
}

#[test]
fn a_daemon_with_another_clock_or_unit_than_the_broker_does_not_act() {
    let settings = installed(10);
    let inbox = Inbox::open(&settings, "app");
    let slow = Arc::new(AtomicBool::new(true));
    let port = slow_clock(settings.management.as_ref().unwrap().url.port().unwrap(), &slow);
    let start = |unit: &str| {
        let mut command = serve(&settings);
        command.args(["--listen=127.0.0.1:0", "--no-canary"]).envs([
            ("DELAYLINE_MANAGEMENT_URL", format!("http://127.0.0.1:{port}")),
            ("DELAYLINE_UNIT_MS", unit.to_owned()),
        ]);
        Daemon::with(tempfile::tempdir().unwrap(), command)
    };
    dead_letters(&settings, "app", 0..1);
    let mut daemon = start("10");
    eventually("the daemon notices the clock", || {
        daemon.log().contains("ahead of the broker's, more than 60 s")
    });
    let ready = |daemon: &Daemon| {
        let answer =
            ureq::get(format!("{}readyz", daemon.page())).config().http_status_as_error(false).build();
        answer.call().unwrap().body_mut().read_to_string().unwrap()
    };
    let says = |word: &str| eventually_seen(word, || ready(&daemon), |ready| ready.contains(word));
    says("ahead of the broker's");
    assert!(!daemon.log().contains("taking messages"), "{}", daemon.log());
    slow.store(false, Ordering::SeqCst);
    assert!(inbox.next(PATIENCE).is_some(), "{}", daemon.log());
    says("clock and unit agree");
    let open = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count();
    assert!(open < 100, "{open} files are open, and the lowest limit is 128");
    assert_eq!(daemon.stop(), Some(0));
    let mut daemon = start("1000");
    eventually("the daemon notices the unit", || daemon.log().contains("`unit_ms` is 1000 here"));
    assert!(!daemon.log().contains("taking messages"), "{}", daemon.log());
    assert_eq!(daemon.stop(), Some(0));
}
