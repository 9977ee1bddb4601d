//! The daemon's index of scheduled messages: its API, the tokens of applications, and the commands that ask it.

use std::fs;

use delayline_settings::Settings;
use predicates::{prelude::PredicateBooleanExt, str::contains};
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use crate::{
    common::{eventually_seen, installed, schemas, shared_node},
    daemon::{Answer, Daemon},
    json, on, stdout,
};

const TOKEN: &str = "tell-nobody-0123456789";

/// Two applications with journals, and a daemon with a token that indexes them.
fn served() -> (Settings, (Daemon, TempDir), String) {
    let settings = installed(1_000);
    for app in ["billing", "orders"] {
        let add = ["app", "add", app, "--no-user", "--recall", "--journal", "7d"];
        on(&settings).args(add).assert().success();
    }
    let lines = [
        json!({ "app": "billing", "id": "a", "delay": "1h", "body": "one", "headers": { "customer": "C-4" } }),
        json!({ "app": "billing", "id": "b", "delay": "2h", "body": "two", "headers": { "customer": "C-5" } }),
        json!({ "app": "billing", "delay": "3h", "body": "three" }),
        json!({ "app": "orders", "id": "secret-of-orders", "delay": "1h", "body": "four" }),
    ];
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    on(&settings).args(["send", "--jsonl"]).write_stdin(lines).assert().success();
    let directory = tempfile::tempdir().unwrap();
    let (file, config) = (directory.path().join("token"), directory.path().join("delayline.toml"));
    fs::write(&file, TOKEN).unwrap();
    fs::write(&config, format!("web_token_file = {file:?}\nindex_headers = 'customer'\n")).unwrap();
    let config = format!("--config={}", config.display());
    let daemon = Daemon::start(&settings, &shared_node().management_url(), &["--no-canary", &config]);
    let url = format!("http://{}", daemon.address);
    let ready = || ask(&daemon, TOKEN, "count?by=app");
    eventually_seen("the index has both", ready, |answer| {
        answer.status == 200 && {
            let apps = parsed(answer)["apps"].as_array().cloned().unwrap_or_default();
            apps.iter().map(|it| it["waiting"].as_u64().unwrap()).eq([3, 1])
        }
    });
    (settings, (daemon, directory), url)
}

fn ask(daemon: &Daemon, token: &str, question: &str) -> Answer {
    let path = format!("/api/scheduled/{question}");
    daemon
        .request(&format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"))
}

fn parsed(answer: &Answer) -> Json {
    serde_json::from_str(&answer.body).unwrap_or_else(|_| panic!("{answer:?}"))
}

#[test]
fn a_daemon_answers_for_the_commands_as_the_journal_does() {
    let (settings, (_daemon, _token), url) = served();
    let words = |words: &[&str]| {
        let mut run = on(&settings);
        run.arg("scheduled").args(words).env("DELAYLINE_WEB_TOKEN", TOKEN);
        run
    };
    for question in [
        &["list", "--app", "billing"][..],
        &["list", "--app", "billing", "--header", "customer=C-4"],
        &["list", "--app", "billing", "--skip", "1", "--limit", "1"],
        &["list", "--app", "billing", "--id", "b"],
        &["show", "--app", "billing", "--id", "b"],
        &["count", "--app", "billing", "--by", "day"],
        &["count", "--app", "billing"],
        &["count", "--by", "app"],
    ] {
        let read = words(&[question, &["--json"]].concat()).assert().success();
        let asked = words(&[question, &["--json", "--serve-url", &url]].concat()).assert().success();
        assert_eq!(asked.get_output().stderr, b"", "{question:?}");
        assert_eq!(read.get_output().stdout, asked.get_output().stdout, "{question:?}");
        // For people, too.
        let table = |more: &[&str]| stdout(&mut words(&[question, more].concat()));
        assert_eq!(table(&[]), table(&["--serve-url", &url]), "{question:?}");
    }
    let list = json(&mut words(&["list", "--app", "billing", "--json", "--serve-url", &url]));
    let handle = list["messages"][0]["handle"].as_str().unwrap();
    words(&["show", handle, "--serve-url", &url]).assert().success().stdout(contains("one")).stderr("");

    // By settings, and what a daemon cannot answer is read from the journal.
    let mut by_settings = words(&["list", "--app", "billing", "--header", "other=1"]);
    by_settings
        .env("DELAYLINE_SERVE_URL", &url)
        .assert()
        .success()
        .stderr(contains("does not keep the header `other`").and(contains("reading the journal instead")));
    let past = words(&["list", "--app", "billing", "--due-after", "2020-01-01", "--serve-url", &url]);
    { past }.assert().success().stdout(contains("3 waiting")).stderr(contains("due from now on"));
    let mut nobody = words(&["list", "--app", "billing"]);
    nobody.env("DELAYLINE_WEB_LISTEN", "127.0.0.1:1").assert().success().stderr(contains("cannot be asked"));
    let mut wrong = words(&["list", "--app", "billing", "--serve-url", &url]);
    let wrong = wrong.env("DELAYLINE_WEB_TOKEN", "0123456789abcdef").assert().success();
    wrong.stdout(contains("3 waiting")).stderr(contains("the token is wrong or missing; set web_token_file"));
    let mut elsewhere = words(&["list", "--app", "billing", "--serve-url", &url]);
    elsewhere.args(["--set", "other"]).assert().failure().stderr(contains("this daemon is for set `delay`"));
    words(&["list", "--app", "billing", "--serve-url", "ftp://x"]).assert().code(2);
}

#[test]
fn the_api_has_the_schemas_of_the_commands_and_refuses_what_it_does_not_know() {
    let (_, (daemon, _token), _) = served();
    for (question, messages) in
        [("list?app=billing&limit=2", 2), ("list?app=billing&header=customer%3DC-5", 1)]
    {
        let list = parsed(&ask(&daemon, TOKEN, question));
        schemas::check(&list);
        assert_eq!(list["messages"].as_array().unwrap().len(), messages, "{list:#}");
    }
    for question in ["count?app=billing", "count?app=billing&by=day&zone=Europe/Berlin", "count?by=app"] {
        schemas::check(&parsed(&ask(&daemon, TOKEN, question)));
    }
    let first = parsed(&ask(&daemon, TOKEN, "list?app=billing&limit=1"))["messages"][0].clone();
    let question = format!("show?app=billing&place={}&body_bytes=2", first["place"]);
    let shown = parsed(&ask(&daemon, TOKEN, &question))["messages"][0].clone();
    schemas::check(&shown);
    assert_eq!(
        (&shown["id"], &shown["body"], &shown["truncated"]),
        (&first["id"], &json!("on"), &json!(true))
    );
    for (question, status, said) in [
        ("list", 400, "name the application"),
        ("list?app=a..b", 400, "app"),
        ("list?app=billing&limit=10001", 400, "10000 at most"),
        ("list?app=billing&limit=-1", 400, "limit"),
        ("list?app=billing&due_after=18:00", 400, "due_after"),
        ("list?app=billing&due_after=2020-01-01T00:00:00Z", 400, "from now on"),
        ("list?app=billing&header=customer", 400, "customer=C-4"),
        ("list?app=billing&header=a%3Db", 400, "index_headers"),
        ("list?app=billing&set=other", 400, "for set"),
        ("list?app=billing&order=desc", 400, "no parameter `order`"),
        ("list?app=nobody", 404, "nobody"),
        ("count?app=billing&by=year", 400, "minute, hour, day"),
        ("count?app=billing&zone=Mars/One", 400, "zone"),
        ("", 404, "list"),
        ("recall?app=billing", 404, "list"),
    ] {
        let answer = ask(&daemon, TOKEN, question);
        let error = parsed(&answer)["error"].as_str().unwrap().to_owned();
        assert!(answer.status == status && error.contains(said), "{question}: {answer:?}");
    }
    for method in ["POST", "DELETE", "PUT"] {
        let request = format!(
            "{method} /api/scheduled/list?app=billing HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        );
        assert_eq!(daemon.request(&request).status, 405);
    }
    for series in ["delayline_indexed_messages{app=\"billing\"}", "delayline_index_bytes"] {
        let positive = |value: &Option<f64>| value.is_some_and(|value| value > 0.0);
        eventually_seen(series, || daemon.metric_with(TOKEN, series), positive);
    }
}

#[test]
fn an_application_sees_its_own_messages_and_nothing_else() {
    let (settings, (daemon, _token), url) = served();
    let token = |app: &str| {
        let mut show = on(&settings);
        show.args(["app", "show", app, "--token", "--json"]).env("DELAYLINE_WEB_TOKEN", TOKEN);
        json(&mut show)["token"].as_str().unwrap().to_owned()
    };
    let (billing, orders) = (token("billing"), token("orders"));
    on(&settings)
        .args(["app", "show", "billing", "--token"])
        .assert()
        .code(2)
        .stderr(contains("web_token_file"));
    for question in ["list", "list?app=billing", "count", "count?by=app", "count?by=app&app=billing", "show"]
    {
        let answer = ask(&daemon, &billing, question);
        assert!(answer.status == 200 && answer.body.contains("billing"), "{question}: {answer:?}");
        assert!(!answer.body.contains("orders"), "{question}: {answer:?}");
    }
    // Neither bodies nor counts of others, however the question is asked.
    for question in [
        "list?app=orders",
        "show?app=orders",
        "count?app=orders",
        "count?by=app&app=orders",
        "show?app=orders&place=0",
        "list?app=billing&app=orders",
        "list?app=nobody",
    ] {
        let answer = ask(&daemon, &billing, question);
        assert_eq!(answer.status, 403, "{question}: {answer:?}");
        assert!(!answer.body.contains("secret") && !answer.body.contains("four"), "{question}: {answer:?}");
    }
    assert!(ask(&daemon, &orders, "show").body.contains("four"));
    let get = |token: &str, path: &str| {
        let head = format!("Host: localhost\r\nAuthorization: Bearer {token}");
        daemon.request(&format!("GET {path} HTTP/1.1\r\n{head}\r\n\r\n"))
    };
    for path in ["/", "/metrics", "/api/picture", "/api/unroutable", "/api/parked", "/nowhere"] {
        let answer = get(&billing, path);
        assert!(answer.status == 403 && !answer.body.contains("delayline_"), "{path}: {answer:?}");
    }
    let forged = billing.replacen("billing", "orders", 1);
    for wrong in [&*forged, &billing[..billing.len() - 1], "app:orders:", ""] {
        let answer = ask(&daemon, wrong, "list?app=orders");
        assert!(answer.status == 401 && !answer.body.contains("secret"), "{wrong}: {answer:?}");
    }
    assert!(!get(&billing, "/readyz").body.contains("checks"));
    // Its team uses the token as its own.
    let mut list = on(&settings);
    list.args(["scheduled", "list", "--app", "billing", "--serve-url", &url])
        .env("DELAYLINE_WEB_TOKEN", &billing);
    list.assert().success().stdout(contains("3 waiting")).stderr("");
    for secret in [TOKEN, &billing, &orders] {
        assert!(!daemon.log().contains(secret));
    }
}
