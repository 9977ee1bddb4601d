//! The JSON of every command on a real broker, compared with docs/schemas. A command that prints
//! JSON and has no schema fails here.

use std::{collections::BTreeSet, fs, thread};

use assert_cmd::Command;
use delayline_amqp::Session;
use delayline_core::{
    Message,
    codec::Delay,
    topology::{Binding, Endpoint, Exchange, ExchangeKind, Queue},
};
use delayline_settings::Settings;
use serde_json::{Map, Value as Json, json};

use crate::{
    common::{
        app, eventually, eventually_seen, http,
        schemas::{folder, schema, shortened},
        shared::on_node,
        shared_node, topology, vhost,
    },
    daemon::Daemon,
    delayline,
    exit_codes::commands,
    on,
};

pub(crate) use crate::common::schemas::check;

/// Commands that start nodes. Their own tests compare their output.
const ELSEWHERE: [&str; 2] = ["demo", "dev"];

/// Runs commands in one vhost, and compares their output with the schemas.
struct Walk {
    settings: Settings,
    seen: BTreeSet<String>,
}

impl Walk {
    /// The output of a command with the additional arguments `more`.
    fn run(&mut self, command: &str, more: &[&str]) -> Vec<Json> {
        self.fed(command, more, "")
    }

    fn fed(&mut self, command: &str, more: &[&str], input: &str) -> Vec<Json> {
        let mut run = on(&self.settings);
        run.args(command.split(' ')).arg("--json").args(more).write_stdin(input);
        run.env("DELAYLINE_APP_PASSWORD", &self.settings.broker.vhost);
        let printed = printed(&mut run);
        assert!(!printed.is_empty(), "{command} {more:?} prints nothing: {run:?}");
        for value in &printed {
            assert_eq!(value["schema"], command.replace(' ', "-"), "{value}");
            check(value);
        }
        self.seen.insert(command.to_owned());
        printed
    }

    /// The JSON on standard error when the command fails.
    fn fails(&mut self, command: &str, more: &[&str]) -> Json {
        let mut run = on(&self.settings);
        error(run.args(command.split(' ')).arg("--json").args(more).write_stdin(""))
    }
}

fn printed(run: &mut Command) -> Vec<Json> {
    let output = run.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout);
    let read = |line: &str| {
        serde_json::from_str(line)
            .unwrap_or_else(|error| panic!("{run:?}: {error}: {}\n{said}", shortened(line)))
    };
    let lines: Vec<Json> = text.lines().map(read).collect();
    assert!(!lines.is_empty(), "{run:?} prints nothing: {said}");
    lines
}

/// The JSON error with which a command ends.
fn error(run: &mut Command) -> Json {
    let output = run.output().unwrap();
    assert!(!output.status.success(), "{run:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().last().unwrap_or_else(|| panic!("{run:?} says nothing"));
    let error: Json = serde_json::from_str(last).unwrap_or_else(|error| panic!("{run:?}: {error}: {said}"));
    assert_eq!(error["schema"], "error", "{error}");
    assert_eq!(error["exit_code"].as_i64(), output.status.code().map(i64::from), "{error}");
    check(&error);
    error
}

/// All commands except the daemon, which prints no JSON.
fn printing() -> BTreeSet<String> {
    commands().into_iter().filter(|command| command != "serve").collect()
}

#[test]
fn every_command_has_a_schema_and_every_schema_a_command() {
    let files: BTreeSet<String> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    let mut wanted: BTreeSet<String> =
        printing().into_iter().map(|command| command.replace(' ', "-")).collect();
    wanted.insert("error".into());
    let missing: Vec<_> = wanted.difference(&files).collect();
    assert!(
        missing.is_empty(),
        "generate docs/schemas/NAME.json, as docs/reference/json.md says, for {missing:?}"
    );
    // The schemas of `delayline-bench` are compared by its own tests.
    let over: Vec<_> = files.difference(&wanted).filter(|name| !name.starts_with("bench-")).collect();
    assert!(over.is_empty(), "docs/schemas has files without a command: {over:?}");
    for name in &files {
        let schema = schema(name);
        jsonschema::meta::validate(&schema).unwrap_or_else(|error| panic!("{name}: {error}"));
        let shapes = schema["oneOf"].as_array().cloned().unwrap_or_else(|| vec![schema.clone()]);
        for shape in shapes {
            assert_eq!(shape["properties"]["schema"]["const"], **name, "{name}");
        }
        assert!(schema["description"].is_string(), "{name} has no description");
    }
}

/// Proves that the schemas are strict.
#[test]
fn output_that_a_schema_does_not_describe_is_noticed() {
    let good = json!({ "schema": "version", "schema_version": 1, "version": "0.1.0", "wire_contract": 1 });
    check(&good);
    let refused = |change: &dyn Fn(&mut Map<String, Json>)| {
        let mut value = good.clone();
        change(value.as_object_mut().unwrap());
        std::panic::catch_unwind(|| check(&value)).is_err()
    };
    assert!(refused(&|it| drop(it.insert("new".into(), Json::Null))), "a name that is new");
    assert!(refused(&|it| drop(it.remove("version"))), "a name that is gone");
    assert!(refused(&|it| drop(it.insert("version".into(), 1.into()))), "another type");
    assert!(refused(&|it| drop(it.insert("schema_version".into(), 2.into()))), "another version");
    assert!(refused(&|it| drop(it.insert("schema".into(), "versions".into()))), "no such schema");
}

#[test]
fn all_that_is_printed_is_as_the_schemas_say() {
    let node = shared_node();
    let walk = |steps: fn(&mut Walk)| {
        let settings = vhost().set("unit_ms", "100").build().unwrap();
        let mut walk = Walk { settings, seen: BTreeSet::new() };
        steps(&mut walk);
        walk.seen
    };
    // Two at a time, since each waits for the other commands of its vhost.
    let seen = thread::scope(|scope| {
        let other = scope.spawn(|| {
            on_node(&node);
            walk(set_and_held_messages)
        });
        let mut seen = walk(applications_and_their_messages);
        seen.append(&mut other.join().unwrap());
        seen
    });
    let expected: BTreeSet<String> =
        printing().into_iter().filter(|command| !ELSEWHERE.contains(&command.as_str())).collect();
    let missing: Vec<_> = expected.difference(&seen).collect();
    assert!(
        missing.is_empty(),
        "run these commands here, too, with arguments for which they print something: {missing:?}"
    );
}

fn set_and_held_messages(walk: &mut Walk) {
    not_installed(walk);
    walk.run("app add", &["billing", "--no-user"]);
    held(walk);
    others(walk);
    offline(walk);
}

fn applications_and_their_messages(walk: &mut Walk) {
    let user = walk.settings.broker.vhost.clone();
    walk.run("install", &[]);
    applications(walk, &user);
    messages(walk);
    broker(walk);
    removed(walk, &user);
}

/// A vhost without a set, then with one.
fn not_installed(walk: &mut Walk) {
    let report = &walk.run("verify", &[])[0];
    assert_eq!((&report["installed"], &report["differences"]), (&false.into(), &json!([])));
    assert!(report.to_string().len() < 2_000, "too much output for a missing set: {report}");
    let status = &walk.run("status", &[])[0];
    assert_eq!(status["verified"]["installed"], false);
    assert!(status.to_string().len() < 20_000, "too much output for a missing set: {status}");
    for command in ["doctor", "app list", "gateway list"] {
        walk.run(command, &[]);
    }
    walk.run("uninstall", &["--yes"]);
    walk.fails("held list", &[]);
    walk.fails("send", &["--app", "a", "--delay", "1s", "--body", "x"]);
    walk.run("install", &["--dry-run"]);
    walk.run("install", &[]);
    assert_eq!(walk.run("install", &[])[0]["outcome"], "unchanged");
    walk.run("install", &["--queue-type", "classic"]);
    assert_eq!(walk.run("verify", &[])[0]["installed"], true);
    walk.run("verify", &["--unit-ms", "200"]);
    walk.run("verify", &["--management-url", "none"]);
    walk.run("status", &["--management-url", "none"]);
    walk.run("install", &["--management-url", "none"]);
    walk.run("uninstall", &["--yes", "--management-url", "none"]);
}

fn applications(walk: &mut Walk, user: &str) {
    let add =
        |more: &[&'static str]| [&["billing", "--recall", "--journal", "90d", "--retry"][..], more].concat();
    walk.run("app add", &add(&["--dry-run", "--no-user"]));
    walk.run("app add", &[&add(&["--for", "python", "--user"])[..], &[user]].concat());
    walk.run("app add", &[&add(&["--user"])[..], &[user]].concat());
    walk.run("app add", &["landed", "--no-user", "--landing"]);
    walk.run("app add", &["billing", "--no-user", "--queue", "elsewhere", "--existing"]);
    walk.run("app add", &["other", "--no-user", "--print", "terraform"]);
    walk.run("app list", &[]);
    walk.run("app show", &["billing", "--for", "python"]);
    walk.run("app check", &["billing", "--recall", "--journal", "--user", user]);
    walk.fails("app show", &["nobody"]);
    unlimited(&walk.settings);
    walk.run("app discard", &["billing", "--dry-run"]);
    let directory = tempfile::tempdir().unwrap();
    let platform = directory.path().join("platform.toml");
    fs::write(&platform, "[sets.delay.apps.nobody]\nno_user = true\n").unwrap();
    let platform = platform.to_str().unwrap();
    walk.run("diff", &[platform]);
    walk.run("diff", &[platform, "--prune"]);
    walk.run("apply", &[platform, "--dry-run"]);
    walk.run("apply", &[platform]);
    assert_eq!(walk.run("apply", &[platform])[0]["outcome"], "unchanged");
    walk.run("app pause", &["nobody"]);
    walk.run("app resume", &["nobody", "--dry-run"]);
    walk.run("app remove", &["nobody", "--no-user", "--yes"]);
    for more in [&["--type", "topic", "--dry-run"][..], &["--type", "topic"], &["--type", "direct"]] {
        walk.run("gateway add", &[&["orders.delayed"], more].concat());
    }
    walk.run("gateway list", &[]);
    walk.run("gateway check", &["orders.delayed"]);
    walk.run("gateway remove", &["orders.delayed", "--dry-run"]);
}

/// Makes the levels readable: from 4.0 on, a queue drops a message after 20 deliveries.
fn unlimited(settings: &Settings) {
    let policy = json!({
        "pattern": r"^delay\.level\.", "apply-to": "queues", "definition": { "delivery-limit": -1 },
    });
    let vhost = &settings.broker.vhost;
    let version = http(&shared_node(), "GET", "overview", &Json::Null)["rabbitmq_version"].clone();
    if !version.as_str().unwrap().starts_with("3.") {
        http(&shared_node(), "PUT", &format!("policies/{vhost}/readable"), &policy);
    }
    eventually("the levels can be read", || {
        let mut discard = on(settings);
        discard.args(["app", "discard", "billing", "--dry-run"]).output().unwrap().status.success()
    });
}

fn messages(walk: &mut Walk) {
    walk.run("send", &["--app", "billing", "--delay", "1", "--body", "now"]);
    walk.run("listen", &["--app", "billing", "--queue", "billing", "--count", "1"]);
    let sent = walk.run("send", &["--app", "billing", "--delay", "10h", "--id", "one", "--body", "later"]);
    let handle = sent[0]["message"]["handle"].as_str().unwrap().to_owned();
    let lines = "{\"body\": \"a\", \"id\": \"two\"}\nnonsense\n{\"body\": \"b\"}\n";
    let sent = walk.fed("send", &["--app", "billing", "--delay", "9h", "--jsonl", "--handles"], lines);
    assert_eq!(sent.len(), 2, "a handle and a report: {sent:?}");
    assert!(walk.run("scheduled list", &["--recalls"])[0]["pending"].as_array().unwrap().is_empty());
    walk.run("scheduled recall", &[&handle]);
    assert_eq!(walk.run("scheduled list", &["--recalls"])[0]["pending"].as_array().unwrap().len(), 1);
    walk.run("scheduled sweep", &["--dry-run"]);
    recalled(walk);
    walk.run("scheduled unrecall", &[&handle]);
    scheduled(walk);
    walk.run("app discard", &["billing", "--yes"]);
    assert_eq!(walk.run("held list", &[])[0]["waiting"], 0);
}

/// Messages that no application receives.
fn held(walk: &mut Walk) {
    for app in ["gone", "gone", "lost"] {
        walk.run("send", &["--app", app, "--delay", "0", "--body", "x"]);
    }
    schedules(walk);
    parked(&walk.settings);
    for kind in ["unroutable", "parked"] {
        let list = || {
            let mut list = on(&walk.settings);
            printed(list.args(["held", "list", "--kind", kind, "--json"])).remove(0)
        };
        eventually_seen("the messages are there", list, |list| list["waiting"].as_u64() >= Some(2));
        walk.run("held list", &["--kind", kind]);
        walk.run("held show", &["--kind", kind]);
    }
    walk.fails("held replay", &["--kind", "unroutable", "--app", "gone"]);
    walk.run("held replay", &["--kind", "unroutable", "--app", "gone", "--unbound"]);
    for kind in ["unroutable", "parked"] {
        let counted = &walk.run("held discard", &["--kind", kind, "--all", "--dry-run"])[0];
        assert_eq!((&counted["dry_run"], &counted["discarded"]), (&true.into(), &0.into()), "{counted}");
        assert!(counted["selected"].as_u64() >= Some(2), "{counted}");
    }
    let discard = |kind| ["--kind", kind, "--all", "--yes"];
    assert!(walk.run("held discard", &discard("unroutable"))[0]["discarded"].as_u64() >= Some(2));
    walk.run("held replay", &["--kind", "parked", "--app", "billing"]);
    walk.run("held discard", &discard("parked"));
}

/// A schedule of an application that does not exist.
fn schedules(walk: &mut Walk) {
    let add = ["nightly", "--app", "nobody", "--cron", "@daily", "--zone", "Europe/Berlin"];
    walk.run("schedule add", &[&add[..], &["--dry-run"]].concat());
    walk.run(
        "schedule add",
        &[&add[..], &["--header", "kind=news", "--end", "2099-01-01T00:00:00Z"]].concat(),
    );
    walk.run("schedule list", &[]);
    walk.run("schedule show", &["nightly"]);
    walk.run("schedule pause", &["nightly"]);
    walk.run("schedule resume", &["nightly"]);
    walk.run("schedule run", &["nightly"]);
    walk.run("schedule remove", &["nightly", "--dry-run"]);
    walk.run("schedule remove", &["nightly", "--yes"]);
}

/// The journal, and the commands that read it.
fn scheduled(walk: &mut Walk) {
    walk.run("scheduled recall", &["--app", "billing", "--id", "nobody"]);
    let send = ["--app", "billing", "--delay", "10h", "--body", "x", "--id"];
    let sent = walk.run("send", &[&send[..], &["later"]].concat());
    let handle = sent[0]["message"]["handle"].as_str().unwrap().to_owned();
    walk.run("send", &[&send[..], &["instead", "--replace", &handle]].concat());
    assert!(walk.run("scheduled list", &["--app", "billing"])[0]["journal"]["read"].as_u64() >= Some(2));
    assert_eq!(walk.run("send", &[&send[..], &["alone", "--replace"]].concat())[0]["replaced"], "nothing");
    walk.run("scheduled show", &[&handle]);
    walk.run("scheduled count", &["--app", "billing", "--by", "day"]);
    walk.run("scheduled count", &["--by", "app"]);
    let all = ["--app", "billing", "--all", "--dry-run"];
    assert_eq!(walk.run("scheduled recall", &all)[0]["dry_run"], true);
    walk.run("scheduled unrecall", &all);
    walk.run("scheduled reschedule", &[&all[..], &["--delay", "2h"]].concat());
    assert!(walk.run("scheduled reschedule", &[&handle, "--delay", "2h"])[0].get("problem").is_some());
    let list = walk.run("scheduled list", &["--app", "billing", "--id", "instead"]);
    let instead = list[0]["messages"][0]["handle"].as_str().unwrap().to_owned();
    assert_eq!(walk.run("scheduled reschedule", &[&instead, "--delay", "2h"])[0]["answer"], "recalled");
    walk.run("scheduled recall", &["--app", "billing", "--id", "instead"]);
}

/// Recalls a message and waits until it is due.
fn recalled(walk: &mut Walk) {
    let sent = walk.run("send", &["--app", "billing", "--delay", "300", "--id", "soon", "--body", "x"]);
    walk.run("scheduled recall", &[sent[0]["message"]["handle"].as_str().unwrap()]);
    let list = || {
        let mut list = on(&walk.settings);
        printed(list.args(["held", "list", "--kind", "recalled", "--json"])).remove(0)
    };
    eventually_seen("the message is due", list, |list| list["waiting"] == 1);
    let of = ["--kind", "recalled", "--app", "billing"];
    walk.run("held list", &of[..2]);
    walk.run("held show", &of);
    walk.run("held replay", &[&of[..], &["--all"]].concat());
    walk.run("held discard", &[&of[..], &["--all", "--yes"]].concat());
}

/// Puts two messages into the parked queue.
fn parked(settings: &Settings) {
    let mut session = Session::open(&settings.broker).unwrap();
    let exchange = Exchange::new("fill", ExchangeKind::Fanout);
    session.declare_exchange(&exchange).unwrap();
    let destination = Endpoint::Exchange(topology(settings).names().parked());
    session.bind(&Binding { source: "fill".into(), destination, key: String::new() }).unwrap();
    let mut into = settings.clone();
    into.topology.set = "fill".parse().unwrap();
    let router = into.router().connect().unwrap();
    for key in ["billing", "gone"] {
        router.publish(Message::after(app(key), Delay::ZERO, "body")).unwrap();
    }
}

fn broker(walk: &mut Walk) {
    let quiet =
        ["--no-canary", "--no-retry", "--no-sweep", "--no-unstick", "--no-gateways", "--no-schedules"];
    let daemon = Daemon::start(&walk.settings, &shared_node().management_url(), &quiet);
    walk.run("serve check", &["--listen", &daemon.address.to_string()]);
    walk.run("serve user", &["schemas-daemon", "--dry-run"]);
    walk.run("serve user", &["schemas-daemon", "--print"]);
    drop(daemon);
    walk.run("doctor", &[]);
    walk.run("doctor", &["stuck-dead-letters"]);
    walk.run("status", &[]);
}

/// A foreign layout, reduced to its last level.
fn others(walk: &mut Walk) {
    let mut session = Session::open(&walk.settings.broker).unwrap();
    for name in ["nsb.v2.delay-level-00", "nsb.v2.delay-delivery"] {
        let exchange = Exchange::new(name, ExchangeKind::Topic);
        session.declare_exchange(&exchange).unwrap();
    }
    let arguments = [("x-queue-type", "quorum"), ("x-dead-letter-exchange", "nsb.v2.delay-delivery")];
    let arguments = arguments.into_iter().map(|(name, value)| (name.to_owned(), value.into()));
    session.declare_queue(&Queue::new("nsb.v2.delay-level-00").with_arguments(arguments)).unwrap();
    walk.run("status", &["--layout", "nservicebus"]);
    walk.run("guard add", &["nservicebus", "--dry-run"]);
    walk.run("guard add", &["nservicebus", "--wait", "0"]);
    walk.run("doctor", &["--layout", "nservicebus"]);
    walk.run("guard remove", &["nservicebus", "--yes"]);
    walk.run("install", &["--set", "later"]);
    walk.run("transfer", &["delay", "later", "--dry-run"]);
    walk.run("unstick", &["--dry-run"]);
    walk.run("unstick", &["--all", "--wait", "0"]);
}

fn offline(walk: &mut Walk) {
    let directory = tempfile::tempdir().unwrap();
    let written = directory.path().to_str().unwrap();
    for format in ["definitions", "terraform"] {
        walk.run("export", &["--format", format]);
    }
    let key = walk.run("key encode", &["90s", "--app", "1.billing"]);
    walk.run("key decode", &[key[0]["routing_key"].as_str().unwrap()]);
    walk.fails("key decode", &["nonsense"]);
    walk.run("help", &["settings"]);
    walk.run("completions", &["bash"]);
    walk.run("man", &[]);
    walk.run("man", &["--into", written]);
    walk.run("version", &[]);
    // Wrong arguments are reported as JSON, too.
    for arguments in [
        &["nonsense"][..],
        &["key", "encode", "90s"],
        &["key", "encode", "soon", "--app", "billing"],
        &["app"],
        &["held", "discard", "--yes", "--kind", "parked"],
    ] {
        let error = error(delayline().args(arguments).arg("--json"));
        assert_eq!(error["exit_code"], 2, "{error}");
        assert!(!error["error"].as_str().unwrap().contains('\n'), "{error}");
    }
    let refused = walk.fails("verify", &["--url", "amqp://127.0.0.1:1"]);
    assert_eq!(refused["exit_code"], 3);
}

fn removed(walk: &mut Walk, user: &str) {
    walk.run("gateway remove", &["orders.delayed", "--yes"]);
    walk.run("send", &["--app", "billing", "--delay", "0", "--body", "x"]);
    let remove = ["billing", "--user", user];
    let refused = || {
        let mut remove_it = on(&walk.settings);
        printed(remove_it.args(["app", "remove", "--dry-run", "--json"]).args(remove)).remove(0)
    };
    eventually_seen("the message waits in the queue", refused, |said| said.get("refused").is_some());
    walk.run("app remove", &[&remove[..], &["--yes"]].concat());
    walk.run("app remove", &[&remove[..], &["--yes", "--force"]].concat());
    walk.run("send", &["--app", "landed", "--delay", "10h", "--body", "x"]);
    assert!(walk.run("uninstall", &["--yes"])[0].get("refused").is_some());
    let would = walk.run("uninstall", &["--force", "--dry-run"])[0]["removed"].clone();
    let did = walk.run("uninstall", &["--yes", "--force"])[0]["removed"].clone();
    let sorted = |names: &Json| {
        let names = names.as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned());
        names.collect::<BTreeSet<_>>()
    };
    assert_eq!(sorted(&would), sorted(&did), "a dry run lists exactly the objects that are removed");
}
