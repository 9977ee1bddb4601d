//! The daemon's web server: its answers, its access rules, and its behaviour with bad clients.

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
    common::{
        Inbox, app, eventually, eventually_seen, install, installed, raw::answering, shared_node, vhost,
    },
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
fn a_management_api_that_fails_stops_nothing_else_and_its_reason_is_shown() {
    let settings = installed(1_000);
    let reason = "the node is about to stop";
    let url = answering("503 Service Unavailable", r#"{"error":"x","reason":"the node is about to stop"}"#);
    let daemon = Daemon::start(&settings, &url, &[]);
    eventually("canaries arrive", || {
        daemon.metric("delayline_canary_lateness_seconds_count{levels=\"00\"}") >= Some(1.0)
    });
    daemon.shows(reason);
    eventually_seen(
        "the log warns of queues that may be stuck",
        || daemon.log(),
        |log| log.lines().any(|it| it.contains("stuck queues cannot be detected") && it.contains(reason)),
    );
    for unknown in ["delayline_unstick_blocked", "delayline_level_stuck_messages{level=\"00\"}"] {
        assert_eq!(daemon.metric(unknown), None, "{unknown}");
    }
    for command in ["verify", "doctor"] {
        let run = on(&settings).env("DELAYLINE_MANAGEMENT_URL", &url).arg(command).assert();
        let output = run.get_output();
        let text = [&output.stdout[..], &output.stderr[..]].concat();
        assert!(String::from_utf8_lossy(&text).contains(reason), "{command}: {output:?}");
    }
}

#[test]
fn metrics_are_what_the_broker_has() {
    let settings = installed(1_000);
    // The delay has bits 20 and 4: the messages enter at level 20 and stay there.
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
    // The number of findings depends on other tests on this node.
    eventually("the doctor has looked", || {
        daemon.metric("delayline_findings{severity=\"problem\"}").is_some()
    });
    eventually("the age of the oldest", || {
        daemon.metric("delayline_unroutable_oldest_age_seconds") > Some(0.0)
    });
    eventually("canaries arrive", || {
        daemon.metric("delayline_canary_lateness_seconds_count{levels=\"00\"}") >= Some(1.0)
    });
    eventually("the messages are counted as published", || {
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
    // The bindings of applications that reject all messages.
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
    eventually_seen("the remaining applications are counted as `other`", of_other, |count| {
        *count >= Some(20.0)
    });
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
    assert_eq!(check(0).2["ok"], true, "the broker is reachable");
    install(&settings);
    eventually_seen(
        "the daemon is ready",
        || check(1),
        |(status, word, _)| *status == 200 && word == "ready",
    );
}

#[test]
fn the_command_asks_a_daemon_how_it_is() {
    // A vhost without a set.
    let settings = vhost().set("unit_ms", "100").build().unwrap();
    let daemon = start(&settings, &["--no-canary"]);
    let address = daemon.address.to_string();
    let health = |listen: &str| {
        let mut health = delayline();
        health.args(["serve", "check", "--listen", listen]);
        health
    };
    let found = || json(health(&address).arg("--json"))["checks"][1]["reason"].clone();
    let missing = |reason: &Json| reason.as_str().is_some_and(|it| it.contains("missing"));
    eventually_seen("the daemon has looked at the set", found, missing);
    health(&address).assert().code(1).stdout(contains("not ready at 127.0.0.1").and(contains("✗ set: ")));
    let report = json(health(&address).arg("--json"));
    assert_eq!((&report["ready"], &report["checks"][1]["ok"]), (&false.into(), &false.into()));

    install(&settings);
    let ready = || json(health(&address).arg("--json"));
    eventually_seen("the daemon is ready", ready, |report| report["ready"] == true);
    health(&address).assert().success().stdout(contains("ready at 127.0.0.1").and(contains("✓ broker: ")));
    // As in a container: the address is in the environment, and the proxy must not be used.
    let mut contained = delayline();
    contained.args(["serve", "check"]).env("DELAYLINE_WEB_LISTEN", &address);
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
    health(&other).assert().code(3).stderr(contains("another program than `delayline serve`"));
    delayline().args(["serve", "check", "--no-retry"]).assert().code(2).stderr(contains("--no-retry"));
}

#[test]
fn a_daemon_with_a_token_gives_reasons_only_with_the_token() {
    let settings = vhost().set("unit_ms", "100").build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("delayline.toml");
    fs::write(&file, format!("web_token = {TOKEN:?}\n")).unwrap();
    let config = format!("--config={}", file.display());
    let daemon = start(&settings, &["--listen=0.0.0.0:0", "--no-canary", &config]);
    // The daemon listens on all addresses, so the command asks one of them.
    let everywhere = format!("0.0.0.0:{}", daemon.address.port());
    let health = |token: Option<&str>| {
        let mut health = delayline();
        health.args(["serve", "check", "--json", "--listen", &everywhere]);
        token.map(|token| health.env("DELAYLINE_WEB_TOKEN", token));
        json(&mut health)
    };
    assert_eq!(health(Some(TOKEN))["checks"].as_array().map(Vec::len), Some(3));
    for token in [None, Some("another-one-0123456789")] {
        let told = health(token);
        assert!(told["checks"].is_null() && told["ready"] == false, "{told}");
    }
    let mut health = delayline();
    health.args(["serve", "check", "--listen", &everywhere]);
    health.assert().code(1).stdout(contains("web_token_file").and(contains(TOKEN).not()));
}

#[test]
fn an_unchecked_set_is_not_called_verified() {
    let settings = installed(100);
    let daemon = Daemon::start(&settings, "none", &["--no-canary"]);
    let ready =
        eventually_seen("the set was compared", || daemon.get("/readyz"), |ready| ready.status == 200);
    assert!(ready.body.contains("not checked: bindings"), "{}", ready.body);
    assert_eq!(daemon.metric("delayline_broker_reachable"), Some(1.0));
    assert_eq!(daemon.metric("delayline_set_verified"), None);
    assert_eq!(daemon.metric("delayline_set_problems"), None);
}

#[test]
fn layouts_are_watched_when_named() {
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
    eventually("waiting messages are counted", || level("ready_messages", "20") == Some(3.0));
    eventually("stuck messages are counted, too", || level("stuck_messages", "00") == Some(40.0));
    assert!(level("held_up_seconds", "00").is_some());
    assert_eq!((metric("guarded", ""), metric("unroutable_messages", "")), (Some(0.0), None));
    let picture = || serde_json::from_str::<Json>(&daemon.get("/api/picture").body).unwrap();
    let stuck = "Level 00 of layout `nservicebus` is stuck: 40 messages cannot move on.";
    let seen = eventually_seen("the page shows the stuck level", picture, |seen| {
        seen["layouts"][0]["verdict"]["headline"] == stuck && seen["layouts"][1]["problem"].is_string()
    });
    assert_eq!(seen["layouts"].as_array().unwrap().len(), 2, "each once");
    let why = seen["layouts"][1]["problem"].as_str().unwrap();
    assert!(why.contains("no exchange of the layout `celery`"), "{why}");
    eventually_seen(
        "the doctor has looked",
        || picture()["checkup"]["findings"].clone(),
        |findings| findings.to_string().contains("layout `nservicebus`"),
    );

    on(&settings).args(["guard", "add", "nservicebus"]).assert().success();
    eventually("the layout has a guard", || metric("guarded", "") == Some(1.0));
    eventually("the messages that the guard keeps are counted", || {
        metric("unroutable_messages", "") == Some(40.0)
    });
    eventually("no message is stuck", || level("stuck_messages", "00") == Some(0.0));

    let mut wrong = command(&settings, "none");
    let output = wrong.env("DELAYLINE_LAYOUTS", "masstransit").stdin(Stdio::null()).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && error.contains("`layouts`"), "{error}");
}

#[test]
fn without_a_set_only_layouts_are_watched() {
    let settings = vhost().build().unwrap();
    let mut session = Session::open(&settings.broker).unwrap();
    let layout = nservicebus(&mut session, 1_000);
    bound(&mut session, &layout, "Sales");
    others::publish(&settings, &layout, "Sales", 1 << 20, 0..3);
    on(&settings).args(["guard", "add", "nservicebus"]).assert().success();
    let daemon = start(&settings, &["--layout=nservicebus"]);
    let picture = || daemon.json("/api/picture");
    let ready = eventually_seen("the daemon is ready", || daemon.get("/readyz"), |ready| ready.status == 200);
    assert!(ready.body.contains("No set `delay` here; watching nservicebus"), "{}", ready.body);
    assert!(ready.body.contains("layout `nservicebus` was counted"), "{}", ready.body);
    delayline().args(["serve", "check", "--listen", &daemon.address.to_string()]).assert().success();
    let seen = eventually_seen("the doctor has looked, and the broker has counted", picture, |seen| {
        seen["checkup"]["at"].is_string() && seen["verdict"]["headline"] == "No message is stuck."
    });
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
    eventually("failed messages are consumed", || {
        daemon.log().contains("taking messages from `delay.retry`")
    });

    // A set that existed before is reported as missing.
    on(&settings).args(["uninstall", "--yes", "--force"]).assert().success();
    let seen = || (daemon.metric("delayline_set_verified"), picture()["verified"].clone());
    eventually_seen("the missing set is reported", seen, |(verified, _)| *verified == Some(0.0));
    eventually("the daemon is not ready", || daemon.get("/readyz").status == 503);
}

#[test]
fn a_missing_layout_is_reported_by_a_metric() {
    let settings = vhost().build().unwrap();
    let daemon = start(&settings, &["--layout=celery", "--no-canary"]);
    let seen = || daemon.metric("delayline_layout_seen{layout=\"celery\"}");
    eventually_seen("the layout cannot be seen", seen, |seen| *seen == Some(0.0));
    let ready = || daemon.get("/readyz");
    let why = "layout `celery` cannot be seen: ";
    let ready = eventually_seen("the reason", ready, |ready| ready.body.contains(why));
    assert_eq!(ready.status, 503);
    eventually("the daemon reports the unseen layout", || {
        daemon.json("/api/picture")["verdict"]["headline"] == "Layout `celery` cannot be seen."
    });
}

#[test]
fn clients_without_the_token_are_refused() {
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
    // The default port was not requested explicitly, so the daemon may use another one.
    let daemons = [(); 2].map(|()| Daemon::start(&settings, "none", &[DEFAULT]));
    assert_ne!(daemons[0].address, daemons[1].address);
    for daemon in &daemons {
        assert_eq!(daemon.get("/healthz").status, 200);
    }
}

#[test]
fn slow_and_malformed_clients_keep_no_client_out() {
    let settings = installed(100);
    let _inbox = Inbox::open(&settings, "app");
    let daemon = start(&settings, &["--no-canary"]);
    eventually("all services have started", || {
        daemon.get("/readyz").status == 200 && daemon.log().contains("taking messages from `delay.retry`")
    });
    let threads = || fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().count();
    let before = threads();

    // 200 clients send only half a request, and 200 more never read the answer: more than the
    // server has places.
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
        // The server has closed the connections that had to make room.
        let _ = stream.write_all(b"a");
    }
    assert_eq!(daemon.get("/metrics").status, 200);
    // The daemon starts a few threads of its own now and then, but none for each of the 400
    // connections.
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
        // The daemon may close the connection before everything is sent.
        let _ = stream.write_all(garbage.as_bytes());
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let answer = read(stream);
        let begin: String = garbage.chars().take(60).collect();
        assert!(answer.status != 200 || begin.contains("localhost\r\nAuth"), "{begin:?}: {answer:?}");
        assert_eq!(daemon.get("/healthz").status, 200, "after {begin:?}");
    }
    // The server closes each of the slow connections after a time.
    let mut rest = Vec::new();
    slow.pop().unwrap().read_to_end(&mut rest).ok();
    assert!(!String::from_utf8_lossy(&rest).contains("delayline_"));
    eventually("all connections are closed", || {
        fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count() < 60
    });
}
