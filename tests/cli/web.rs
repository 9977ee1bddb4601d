//! The daemon's web server: what it says, whom it tells, and who cannot keep it from
//! telling others.

use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    process::Stdio,
};

use delayline_amqp::Session;
use delayline_core::{Message, codec::Delay};
use delayline_node::FreePort;
use delayline_settings::Settings;
use delayline_watch::metrics::{Kind, NAMES};
use predicates::{prelude::PredicateBooleanExt, str::contains};
use serde_json::Value as Json;

use crate::{
    common::{Inbox, app, eventually, eventually_seen, install, installed, shared_node, vhost},
    daemon::{Answer, DEFAULT, Daemon, command, read},
    delayline, json, on,
    others::{self, bound, nservicebus},
};

const TOKEN: &str = "tell-nobody-0123456789";

fn start(settings: &Settings, arguments: &[&str]) -> Daemon {
    Daemon::start(settings, &shared_node().management_url(), arguments)
}

fn publish(settings: &Settings, key: &str, seconds: u64, count: u32) {
    let router = settings.router().connect().unwrap();
    let mut pipeline = router.pipeline();
    for _ in 0..count {
        pipeline.push((), Message::after(app(key), Delay::from_seconds(seconds).unwrap(), "x"));
    }
    assert!(pipeline.all(|outcome| outcome.result.is_ok()));
}

#[test]
fn metrics_are_what_the_broker_has() {
    let settings = installed(1_000);
    // Bits 20 and 4: they enter at level 20 and stay there.
    publish(&settings, "later", (1 << 20) + 16, 7);
    publish(&settings, "nobody", 0, 3);
    let daemon = start(&settings, &[]);
    for (series, value) in [
        ("delayline_level_ready_messages{level=\"20\"}", 7.0),
        ("delayline_level_stuck_messages{level=\"20\"}", 0.0),
        ("delayline_unroutable_messages", 3.0),
        ("delayline_parked_messages", 0.0),
        ("delayline_broker_reachable", 1.0),
        ("delayline_set_verified", 1.0),
        ("delayline_canary_running", 1.0),
    ] {
        eventually_seen(series, || daemon.metric(series), |found| *found == Some(value));
    }
    // How many depends on what the other tests do to this node.
    eventually("the doctor has looked", || {
        daemon.metric("delayline_findings{severity=\"problem\"}").is_some()
    });
    eventually("the age of the oldest", || {
        daemon.metric("delayline_unroutable_oldest_age_seconds") > Some(0.0)
    });
    eventually("canaries arrive", || {
        daemon.metric("delayline_canary_lateness_seconds_count{levels=\"00\"}") >= Some(1.0)
    });
    eventually("they are counted as published", || {
        daemon.metric("delayline_router_confirmed_total{router=\"canary\"}") >= Some(1.0)
    });
    let Answer { head, body, .. } = daemon.get("/metrics");
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(body.ends_with("# EOF\n"));
    let set =
        format!("delayline_set_info{{set=\"delay\",vhost=\"{}\",unit_ms=\"1000\"", settings.broker.vhost);
    assert!(body.contains(&set), "{body}");
    for family in NAMES {
        let name = family.series();
        let name = name.trim_end_matches("_bucket").trim_end_matches("_total").trim_end_matches("_info");
        assert!(body.contains(&format!("# TYPE {name} ")), "{name}\n{body}");
        let units = [("_seconds", "seconds"), ("_bytes", "bytes"), ("_messages", "messages")];
        for (ending, unit) in units {
            assert_eq!(name.ends_with(ending), family.unit == Some(unit), "{name}");
        }
        assert_eq!(family.kind == Kind::Counter, family.series().ends_with("_total"), "{name}");
    }
    assert!(body.lines().count() < 1_000, "few series: {}", body.lines().count());
}

#[test]
fn apps_beyond_a_hundred_share_a_series() {
    let settings = installed(10);
    let mut daemon = start(&settings, &[]);
    // As from applications that reject all.
    let mut session = delayline_amqp::Session::open(&settings.broker).unwrap();
    for number in 0..120 {
        let key = format!("app-{number}");
        let source = "delay.dispatch".to_owned();
        let destination = delayline_core::topology::Endpoint::Exchange("delay.retry".into());
        let key = delayline_core::codec::RoutingKey::binding_pattern(&app(&key));
        session.bind(&delayline_core::topology::Binding { source, destination, key }).unwrap();
    }
    for number in 0..120 {
        publish(&settings, &format!("app-{number}"), 0, 1);
    }
    let of_other = || daemon.metric("delayline_retries_total{app=\"other\"}");
    eventually_seen("the rest is counted as other", of_other, |count| *count >= Some(20.0));
    let body = daemon.get("/metrics").body;
    let apps = body.lines().filter(|line| line.starts_with("delayline_retries_total{")).count();
    assert_eq!(apps, 101, "{body}");
    assert_eq!(daemon.stop(), Some(0));
}

#[test]
fn health_and_readiness() {
    // A vhost without a set.
    let settings = vhost().set("unit_ms", "100").build().unwrap();
    let daemon = start(&settings, &[]);
    assert_eq!(
        (daemon.get("/healthz").status, daemon.json("/healthz")["status"].as_str()),
        (200, Some("ok"))
    );
    let check = |number: usize| {
        let answer = daemon.get("/readyz");
        let body: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
        (answer.status, body["status"].clone(), body["checks"][number].clone())
    };
    let (status, word, set) = eventually_seen(
        "the set is missing",
        || check(1),
        |(_, _, set)| set["reason"].as_str().is_some_and(|reason| reason.contains("missing")),
    );
    assert_eq!((status, word.as_str(), set["ok"].as_bool()), (503, Some("not ready"), Some(false)));
    assert_eq!(check(0).2["ok"], true, "the broker is there");
    install(&settings);
    eventually_seen("it is ready", || check(1), |(status, word, _)| *status == 200 && word == "ready");
}

#[test]
fn the_command_asks_a_daemon_how_it_is() {
    // A vhost without a set.
    let settings = vhost().set("unit_ms", "100").build().unwrap();
    let daemon = start(&settings, &["--no-canary"]);
    let address = daemon.address.to_string();
    let health = |listen: &str| {
        let mut health = delayline();
        health.args(["serve", "--health", "--listen", listen]);
        health
    };
    let found = || json(health(&address).arg("--json"))["checks"][1]["reason"].clone();
    let missing = |reason: &Json| reason.as_str().is_some_and(|it| it.contains("missing"));
    eventually_seen("it has looked at the set", found, missing);
    health(&address).assert().code(1).stdout(contains("not ready at 127.0.0.1").and(contains("✗ set: ")));
    let report = json(health(&address).arg("--json"));
    assert_eq!((&report["ready"], &report["checks"][1]["ok"]), (&false.into(), &false.into()));

    install(&settings);
    let ready = || json(health(&address).arg("--json"));
    eventually_seen("it is ready", ready, |report| report["ready"] == true);
    health(&address).assert().success().stdout(contains("ready at 127.0.0.1").and(contains("✓ broker: ")));
    // As in a container: the address stands in the environment, and a proxy is not for this.
    let mut contained = delayline();
    contained.args(["serve", "--health"]).env("DELAYLINE_WEB_LISTEN", &address);
    contained.env("http_proxy", "http://127.0.0.1:1").env("HTTP_PROXY", "http://127.0.0.1:1");
    contained.assert().success();
    drop(daemon);

    let free = FreePort::claim().unwrap();
    let nobody = format!("127.0.0.1:{}", free.number());
    for (listen, code, words) in [
        (nobody.as_str(), 3, "no daemon answers"),
        ("none", 2, "web_listen"),
        ("127.0.0.1:0", 2, "any free port"),
        ("nonsense", 2, "web_listen"),
    ] {
        health(listen).assert().code(code).stdout("").stderr(contains(words));
    }
    let node = shared_node().management_url();
    let other = node.trim_start_matches("http://").trim_end_matches('/').replace("localhost", "127.0.0.1");
    health(&other).assert().code(3).stderr(contains("is not `delayline serve`"));
    delayline().args(["serve", "--health", "--no-retry"]).assert().code(2).stderr(contains("--no-retry"));
}

#[test]
fn a_daemon_with_a_token_tells_its_reasons_to_those_who_have_it() {
    let settings = vhost().set("unit_ms", "100").build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("delayline.toml");
    fs::write(&file, format!("web_token = {TOKEN:?}\n")).unwrap();
    let config = format!("--config={}", file.display());
    let daemon = start(&settings, &["--listen=0.0.0.0:0", "--no-canary", &config]);
    // On all addresses of the machine, so it is asked at one of them.
    let everywhere = format!("0.0.0.0:{}", daemon.address.port());
    let health = |token: Option<&str>| {
        let mut health = delayline();
        health.args(["serve", "--health", "--json", "--listen", &everywhere]);
        token.map(|token| health.env("DELAYLINE_WEB_TOKEN", token));
        json(&mut health)
    };
    assert_eq!(health(Some(TOKEN))["checks"].as_array().map(Vec::len), Some(3));
    for token in [None, Some("another-one-0123456789")] {
        let told = health(token);
        assert!(told["checks"].is_null() && told["ready"] == false, "{told}");
    }
    let mut health = delayline();
    health.args(["serve", "--health", "--listen", &everywhere]);
    health.assert().code(1).stdout(contains("web_token_file").and(contains(TOKEN).not()));
}

#[test]
fn what_was_not_compared_is_not_called_verified() {
    let settings = installed(100);
    let daemon = Daemon::start(&settings, "none", &["--no-canary"]);
    let ready = eventually_seen("it has compared", || daemon.get("/readyz"), |ready| ready.status == 200);
    assert!(ready.body.contains("not checked: bindings"), "{}", ready.body);
    assert_eq!(daemon.metric("delayline_broker_reachable"), Some(1.0));
    assert_eq!(daemon.metric("delayline_set_verified"), None);
    assert_eq!(daemon.metric("delayline_set_problems"), None);
}

#[test]
fn the_delays_of_others_are_watched_when_named() {
    let settings = installed(1_000);
    let mut session = Session::open(&settings.broker).unwrap();
    let layout = nservicebus(&mut session, 1_000);
    bound(&mut session, &layout, "Sales");
    others::publish(&settings, &layout, "Sales", 1 << 20, 0..3);
    others::publish(&settings, &layout, "Gone", 1, 3..43);
    let named = ["--no-canary", "--layout=nservicebus", "--layout", "celery", "--layout=nservicebus"];
    let daemon = start(&settings, &named);
    let metric = |name: &str, labels: &str| {
        daemon.metric(&format!("delayline_layout_{name}{{layout=\"nservicebus\"{labels}}}"))
    };
    let level = |name: &str, level: &str| metric(&format!("level_{name}"), &format!(",level=\"{level}\""));
    eventually("what waits is counted", || level("ready_messages", "20") == Some(3.0));
    eventually("what is stuck is, too", || level("stuck_messages", "00") == Some(40.0));
    assert!(level("held_up_seconds", "00").is_some());
    assert_eq!((metric("guarded", ""), metric("unroutable_messages", "")), (Some(0.0), None));
    let picture = || serde_json::from_str::<Json>(&daemon.get("/api/picture").body).unwrap();
    let seen = picture();
    let stuck = "Level 00 of layout `nservicebus` is stuck: 40 messages cannot move on.";
    assert_eq!(seen["layouts"].as_array().unwrap().len(), 2, "each once");
    assert_eq!(seen["layouts"][0]["verdict"]["headline"], stuck);
    let why = seen["layouts"][1]["problem"].as_str().unwrap();
    assert!(why.contains("no exchange of the layout `celery`"), "{why}");
    eventually_seen(
        "the doctor has looked",
        || picture()["checkup"]["findings"].clone(),
        |findings| findings.to_string().contains("layout `nservicebus`"),
    );

    on(&settings).args(["guard", "nservicebus"]).assert().success();
    eventually("it is guarded", || metric("guarded", "") == Some(1.0));
    eventually("what it keeps is counted", || metric("unroutable_messages", "") == Some(40.0));
    eventually("nothing is stuck", || level("stuck_messages", "00") == Some(0.0));

    let mut wrong = command(&settings, "none");
    let output = wrong.env("DELAYLINE_LAYOUTS", "masstransit").stdin(Stdio::null()).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && error.contains("`layouts`"), "{error}");
}

#[test]
fn without_a_set_the_delays_of_others_are_all_there_is_to_watch() {
    let settings = vhost().build().unwrap();
    let mut session = Session::open(&settings.broker).unwrap();
    let layout = nservicebus(&mut session, 1_000);
    bound(&mut session, &layout, "Sales");
    others::publish(&settings, &layout, "Sales", 1 << 20, 0..3);
    on(&settings).args(["guard", "nservicebus"]).assert().success();
    let daemon = start(&settings, &["--layout=nservicebus"]);
    let picture = || daemon.json("/api/picture");
    let ready = eventually_seen("it is ready", || daemon.get("/readyz"), |ready| ready.status == 200);
    assert!(ready.body.contains("No set `delay` here; watching nservicebus"), "{}", ready.body);
    assert!(ready.body.contains("layout `nservicebus` was counted"), "{}", ready.body);
    delayline().args(["serve", "--health", "--listen", &daemon.address.to_string()]).assert().success();
    let seen = eventually_seen("the doctor has looked", picture, |seen| seen["checkup"]["at"].is_string());
    assert_eq!(seen["verdict"]["headline"], "Nothing is held up.");
    assert!(
        seen["verdict"]["more"].to_string().contains("No set `delay` here; watching nservicebus."),
        "{seen}"
    );
    assert!(!seen["checkup"].to_string().contains("set-differs"), "{}", seen["checkup"]);
    assert_eq!(seen["verified"]["problems"], Json::Array(vec![]));
    for absent in ["set_verified", "set_problems", "canary_running"] {
        assert_eq!(daemon.metric(&format!("delayline_{absent}")), None, "{absent}");
    }
    assert_eq!(daemon.metric("delayline_layout_seen{layout=\"nservicebus\"}"), Some(1.0));
    let log = daemon.log();
    assert_eq!(log.matches("no set `delay` here; watching nservicebus").count(), 1, "{log}");
    assert!(!log.contains("WARN") && !log.contains("delayline install"), "{log}");

    install(&settings);
    eventually("the canary begins", || daemon.metric("delayline_canary_running") == Some(1.0));
    eventually("the set is compared", || daemon.metric("delayline_set_verified") == Some(1.0));
    eventually("failed messages are taken", || daemon.log().contains("taking messages from `delay.retry`"));

    // Once it was there, it is missed.
    on(&settings).args(["uninstall", "--force"]).assert().success();
    eventually("the set is missed", || daemon.metric("delayline_set_verified") == Some(0.0));
    eventually("it is not ready", || daemon.get("/readyz").status == 503);
}

#[test]
fn a_canary_flies_through_the_delays_of_others_while_they_have_a_guard() {
    let settings = vhost().build().unwrap();
    let mut session = Session::open(&settings.broker).unwrap();
    nservicebus(&mut session, 1_000);
    let daemon = start(&settings, &["--layout=nservicebus"]);
    let running = || daemon.metric("delayline_canary_running{layout=\"nservicebus\"}");
    let arrived = || daemon.metric("delayline_canary_arrived_total{layout=\"nservicebus\",levels=\"00\"}");
    let view = || daemon.json("/api/picture")["layouts"][0].clone();
    let guarded = |expected: u64| {
        eventually_seen("it was looked at", view, |view| {
            view["guarded"] == expected && view["counted"].is_string()
        })
    };
    guarded(0);
    assert_eq!((running(), session.queue_depth("delayline.canary.nservicebus.0").unwrap()), (None, None));
    assert!(view()["canary"].is_null(), "{}", view());

    on(&settings).args(["guard", "nservicebus"]).assert().success();
    eventually("it flies", || running() == Some(1.0));
    eventually("its messages come back", || arrived() > Some(0.0));
    let counted = "delayline_router_confirmed_total{router=\"canary\",layout=\"nservicebus\"}";
    assert!(daemon.metric(counted) > Some(0.0), "{}", daemon.get("/metrics").body);
    let seen =
        eventually_seen("the page shows it", view, |view| view["canary"]["arrived"].as_u64() > Some(0));
    assert_eq!((&seen["canary"]["missing"], &seen["canary"]["twice"]), (&0.into(), &0.into()), "{seen}");
    assert_eq!(daemon.metric("delayline_canary_running"), None, "that of a set that is not here");

    on(&settings).args(["guard", "nservicebus", "--undo"]).assert().success();
    eventually("it rests", || running().is_none());
    guarded(0);
    assert!(
        daemon.log().contains("canary of nservicebus: no message while there is no guard"),
        "{}",
        daemon.log()
    );
    on(&settings).args(["guard", "nservicebus"]).assert().success();
    eventually("it flies again", || running() == Some(1.0));
}

#[test]
fn a_layout_that_is_not_there_is_told_by_a_metric() {
    let settings = vhost().build().unwrap();
    let daemon = start(&settings, &["--layout=celery", "--no-canary"]);
    let seen = || daemon.metric("delayline_layout_seen{layout=\"celery\"}");
    eventually_seen("it is not seen", seen, |seen| *seen == Some(0.0));
    let ready = || daemon.get("/readyz");
    let why = "layout `celery` cannot be seen: ";
    let ready = eventually_seen("the reason", ready, |ready| ready.body.contains(why));
    assert_eq!(ready.status, 503);
    eventually("it is said", || {
        daemon.json("/api/picture")["verdict"]["headline"] == "Layout `celery` cannot be seen."
    });
}

#[test]
fn nobody_else_is_told() {
    let settings = installed(100);
    let management = shared_node().management_url();
    let refused = |arguments: &[&str], token: Option<&str>| {
        let mut command = command(&settings, &management);
        token.map(|token| command.env("DELAYLINE_WEB_TOKEN", token));
        let output = command.args(arguments).stdin(Stdio::null()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, error) = refused(&["--listen", "0.0.0.0:0"], None);
    assert!(code == Some(2) && error.contains("a token is needed"), "{error}");
    let (code, error) = refused(&["--listen", "[::]:0"], Some("hunter2"));
    assert!(code == Some(2) && error.contains("16") && !error.contains("hunter2"), "{error}");
    let (code, error) = refused(&["--listen", "somewhere"], None);
    assert!(code == Some(2) && error.contains("web_listen"), "{error}");

    let local = start(&settings, &["--no-canary"]);
    let elsewhere = "GET / HTTP/1.1\r\nHost: rebound.example\r\n\r\n";
    assert_eq!(local.request(elsewhere).status, 421);
    let answer = local.get("/");
    assert!(answer.head.contains("content-security-policy: default-src 'none'"), "{}", answer.head);
    assert!(!answer.head.contains("access-control-"), "{}", answer.head);
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT"] {
        let answer = local.request(&format!("{method} /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        assert!(
            (400..500).contains(&answer.status) && !answer.body.contains("delayline_"),
            "{method}: {answer:?}"
        );
    }
    let head = local.request("HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(head.status == 200 && head.body.is_empty(), "{head:?}");
    drop(local);

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    fs::write(&file, format!("{TOKEN}\n")).unwrap();
    fs::write(directory.path().join("delayline.toml"), format!("web_token_file = {file:?}\n")).unwrap();
    let config = directory.path().join("delayline.toml");
    let config = format!("--config={}", config.display());
    let open = start(&settings, &["--listen=0.0.0.0:0", "--no-canary", &config]);
    let open = open.at([127, 0, 0, 1].into());
    for path in ["/", "/metrics", "/api/picture", "/api/parked"] {
        assert_eq!(open.get(path).status, 401, "{path}");
        let with = |authorization: &str| {
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {authorization}\r\n\r\n");
            open.request(&request).status
        };
        assert_eq!(with(&format!("Bearer {TOKEN}")), 200);
        // anyone:tell-nobody-0123456789
        assert_eq!(with("Basic YW55b25lOnRlbGwtbm9ib2R5LTAxMjM0NTY3ODk="), 200);
        assert_eq!(with("Bearer tell-nobody-0123456780"), 401);
    }
    assert_eq!(open.get("/healthz").status, 200);
    assert!(!open.get("/readyz").body.contains("checks"));
    assert!(!open.log().contains(TOKEN));
}

#[test]
fn a_port_that_is_taken() {
    let settings = installed(100);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output =
        command(&settings, "none").args(["--listen", &address]).stdin(Stdio::null()).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(2) && error.contains(&address) && error.contains("--listen"),
        "{error}"
    );
    // Nobody asked for the default port, so that another will do.
    let daemons = [(); 2].map(|()| Daemon::start(&settings, "none", &[DEFAULT]));
    assert_ne!(daemons[0].address, daemons[1].address);
    for daemon in &daemons {
        assert_eq!(daemon.get("/healthz").status, 200);
    }
}

#[test]
fn slow_and_malformed_clients_keep_nobody_out() {
    let settings = installed(100);
    let _inbox = Inbox::open(&settings, "app");
    let daemon = start(&settings, &["--no-canary"]);
    eventually("all of it has begun", || {
        daemon.get("/readyz").status == 200 && daemon.log().contains("taking messages from `delay.retry`")
    });
    let threads = || fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().count();
    let before = threads();

    // 200 that begin and do not go on, and more that read nothing, than there are places.
    let mut slow = Vec::new();
    for _ in 0..200 {
        let mut stream = daemon.connect();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: loc").unwrap();
        slow.push(stream);
    }
    assert_eq!(daemon.get("/healthz").status, 200);
    assert!(daemon.get("/").body.contains("</html>"));
    let mut deaf = Vec::new();
    for _ in 0..200 {
        let mut stream = daemon.connect();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        deaf.push(stream);
    }
    for stream in &mut slow {
        // Those that had to give way see an end.
        let _ = stream.write_all(b"a");
    }
    assert_eq!(daemon.get("/metrics").status, 200);
    // What the daemon does by itself begins a few now and then, but none of 400 connections has one.
    assert!(threads() < before + 100, "{} threads, {before} before", threads());

    let long = "x".repeat(1 << 20);
    for garbage in [
        format!("GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: {long}\r\n\r\n"),
        format!("GET /{long} HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "A: b\r\n".repeat(50_000)),
        format!("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n{long}"),
        "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n".into(),
        "GET / HTTP/9.9\r\n\r\n".into(),
        "GET\r\n\r\n".into(),
        "\r\n\r\n\r\n\r\n\r\n".into(),
        "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}\u{fc}\u{3}\u{3}".into(),
        "\0".repeat(10_000),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(),
        format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", "h".repeat(8_000)),
        "GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: \u{ff}\u{fe}\r\n\r\n".into(),
    ] {
        let mut stream = daemon.connect();
        // It may be cut off before all is sent.
        let _ = stream.write_all(garbage.as_bytes());
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let answer = read(stream);
        let begin: String = garbage.chars().take(60).collect();
        assert!(answer.status != 200 || begin.contains("localhost\r\nAuth"), "{begin:?}: {answer:?}");
        assert_eq!(daemon.get("/healthz").status, 200, "after {begin:?}");
    }
    // Each of the slow ones ends by itself.
    let mut rest = Vec::new();
    slow.pop().unwrap().read_to_end(&mut rest).ok();
    assert!(!String::from_utf8_lossy(&rest).contains("delayline_"));
    eventually("all are gone", || fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count() < 60);
}
