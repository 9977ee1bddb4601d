//! The first week of a platform team: a vhost with forty applications, from its installation to its removal.
//! Each step is a command, and the expected result is an assertion.

use std::{fmt::Write, fs, path::Path, time::Instant};

use delayline_amqp::{Next, Session};
use delayline_broker::{ManagementApi, QueueInfo};
use delayline_core::{
    Message,
    codec::{AppKey, Delay},
    percent,
    topology::Topology,
};
use delayline_node::{NodeOptions, PrivateNode};
use delayline_settings::Settings;
use predicates::{prelude::PredicateBooleanExt, str::contains};
use serde_json::{Value as Json, json};

use crate::common::Counting;
use crate::{
    common::{PATIENCE, app, eventually, eventually_seen, fill, http, revive},
    daemon::Daemon,
    document, on, stdout,
};

const TEAMS: usize = 40;

/// Writes the platform file: so many teams, the user of the first, and the teams with a landing queue.
fn write(path: &Path, teams: usize, first_user: &str, landing: &[usize]) {
    let password = path.with_file_name("password");
    fs::write(&password, "of-a-team").unwrap();
    let mut text = format!("[defaults]\nretry = true\npassword_file = {password:?}\n");
    for team in 0..teams {
        let user = if team == 0 { first_user.to_owned() } else { format!("team-{team}") };
        writeln!(text, "[sets.delay.apps.team-{team}]\nuser = {user:?}").unwrap();
        writeln!(text, "landing = {}", landing.contains(&team)).unwrap();
    }
    fs::write(path, text).unwrap();
}

fn send(settings: &Settings, key: &str, seconds: u64, count: usize) {
    let router = settings.router().connect().unwrap();
    let mut pipeline = router.pipeline();
    for number in 0..count {
        let message = Message::after(app(key), Delay::from_seconds(seconds).unwrap(), number.to_string());
        assert!(pipeline.push((), message).is_none_or(|outcome| outcome.result.is_ok()));
    }
    assert!(pipeline.all(|outcome| outcome.result.is_ok()));
}

/// The seconds in the condition of the alert for stuck levels, and how long it must hold.
fn alert() -> (f64, String) {
    let rules = include_str!("../../packaging/prometheus/alerts.yml");
    let (_, after) = rules.split_once("delayline_level_held_up_seconds > ").unwrap();
    let mut lines = after.lines();
    let seconds = lines.next().unwrap().parse().unwrap();
    (seconds, lines.next().unwrap().trim().strip_prefix("for: ").unwrap().to_owned())
}

/// The longest time for which a level has been stuck, as the alert reads it.
fn stuck_seconds(daemon: &Daemon) -> f64 {
    let metrics = daemon.get("/metrics").body;
    let lines = metrics.lines().filter(|line| line.starts_with("delayline_level_held_up_seconds"));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).fold(0.0, f64::max)
}

#[test]
fn every_step_has_the_expected_result() {
    // By default, the broker offers refused messages again after 3 minutes.
    let mut node = PrivateNode::start(NodeOptions {
        rabbit: vec!["{dead_letter_worker_publisher_confirm_timeout, 2000}".into()],
        ..NodeOptions::default()
    })
    .unwrap();
    let settings = node.settings().set("unit_ms", "100").build().unwrap();
    let management = settings.management.as_ref().unwrap().url.to_string();
    let vhost = percent::encode(&settings.broker.vhost);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("platform.toml");
    let platform = path.to_str().unwrap();
    let run = |arguments: &[&str]| {
        let mut command = on(&settings);
        command.args(arguments);
        command
    };
    let policy = |node: &PrivateNode, (name, priority): (&str, i32), pattern: &str, definition: Json| {
        let body = json!({
            "pattern": pattern, "definition": definition, "priority": priority, "apply-to": "queues"
        });
        http(node, "PUT", &format!("policies/{vhost}/{name}"), &body);
    };
    let is_ready = |daemon: &Daemon| {
        eventually_seen("the daemon is ready", || daemon.get("/readyz").status, |status| *status == 200);
    };

    // Monday: a company's policy for every queue. The installation reports its effect, and verify fails.
    policy(&node, ("company", 1), ".*", json!({ "max-length": 100_000 }));
    write(&path, TEAMS, "team-0", &[]);
    run(&["diff", platform]).assert().code(1).stdout(contains("warning:").and(contains("policy `company`")));
    let said = stdout(&mut run(&["install"]));
    assert!(said.contains("policy `company`") && said.contains("set_policy"), "{said}");
    run(&["verify"]).assert().code(1).stdout(contains("company"));
    policy(&node, ("company", 1), r"^(?!delay\.)", json!({ "max-length": 100_000 }));
    run(&["verify"]).assert().success();

    // Forty applications by file.
    stdout(&mut run(&["apply", platform]));
    run(&["diff", platform]).assert().success();
    let mut daemon = Daemon::start(&settings, &management, &[]);
    is_ready(&daemon);

    // Tuesday: a user gets another name, and a team goes. Both are shown, and pruned while the canary runs.
    write(&path, TEAMS - 1, "first", &[]);
    let shown = run(&["diff", platform]).assert().code(1).get_output().stdout.clone();
    let shown = String::from_utf8(shown).unwrap();
    for words in ["application `team-39`", "permissions of user `team-0`"] {
        assert!(shown.contains(words), "{words} in {shown}");
    }
    stdout(&mut run(&["apply", platform, "--prune", "--yes"]));
    run(&["diff", platform, "--prune"]).assert().success();
    let api = ManagementApi::new(settings.management.as_ref().unwrap()).unwrap();
    let topology = Topology::new(settings.topology.clone());
    let canary: AppKey = "delayline-canary.0".parse().unwrap();
    let canary = topology.app_binding(&canary, &topology.names().canary(0));
    assert!(api.has_binding(&settings.broker.vhost, &canary).unwrap());

    // Wednesday: a queue is full. It is named, and the file gives it a landing queue.
    policy(&node, ("full", 2), "^team-1$", json!({ "max-length": 5, "overflow": "reject-publish" }));
    let queue = || http(&node, "GET", &format!("queues/{vhost}/team-1"), &Json::Null);
    eventually_seen("the policy applies", queue, |queue| queue["policy"] == "full");
    fill(&settings, "team-1");
    let mut session = Session::open(&settings.broker).unwrap();
    let depth = |session: &mut Session, queue: &str| session.counts(queue).unwrap().unwrap().ready;
    let accepted = depth(&mut session, "team-1");
    send(&settings, "team-1", 1, 100);
    let begun = Instant::now();
    let after = |what: &str| println!("{:>4.0} s: {what}", begun.elapsed().as_secs_f64());
    eventually_seen(
        "doctor names the application",
        || document(&mut run(&["doctor", "--json"])),
        |report| {
            report["findings"].as_array().unwrap().iter().any(|it| {
                it["code"] == "target-refuses"
                    && it["apps"] == json!(["team-1"])
                    && it["advice"].as_str().unwrap().contains("delayline app add team-1 --to-queue team-1")
            })
        },
    );
    after("doctor names it");
    eventually_seen(
        "status shows the stuck level",
        || document(&mut run(&["status", "--json"]))["verdict"].clone(),
        |verdict| verdict["severity"] == "problem" && verdict.to_string().contains("stuck"),
    );
    after("status shows it");
    let (least, lasting) = alert();
    let holds = |seconds: &f64| *seconds > least;
    eventually_seen("the alert's condition holds", || stuck_seconds(&daemon), holds);
    after(&format!("the alert's condition holds; it fires after {lasting}"));
    write(&path, TEAMS - 1, "first", &[1]);
    let said = stdout(&mut run(&["apply", platform]));
    assert!(said.contains("in place of queue `team-1`"), "{said}");
    after("the landing queue is there");
    send(&settings, "team-2", 1, 10);
    eventually("others get their messages", || depth(&mut session, "team-2") == 10);
    after("others get their messages");
    eventually_seen("the alert clears", || stuck_seconds(&daemon), |seconds| !holds(seconds));
    after("the alert's condition is gone");
    http(&node, "DELETE", &format!("policies/{vhost}/full"), &Json::Null);
    // The broker notices a changed limit only when a message is consumed.
    let consumer = session.consume("team-1", 1).unwrap();
    for arrived in 0..accepted + 100 {
        match consumer.next(PATIENCE) {
            Next::Delivery(delivery) => consumer.ack(delivery).unwrap(),
            other => panic!("{arrived} of {accepted} and 100: {other:?}"),
        }
    }
    drop(consumer);
    // The limit is gone, and so is the landing queue.
    write(&path, TEAMS - 1, "first", &[]);
    let said = stdout(&mut run(&["apply", platform]));
    assert!(said.contains("in place of queue `delay.landing.team-1`"), "{said}");
    eventually("the landing queue is removed", || {
        stdout(&mut run(&["apply", platform]));
        session.counts("delay.landing.team-1").unwrap().is_none()
    });
    run(&["diff", platform]).assert().success();

    // Thursday: the node is killed, and a level is deleted by mistake.
    node.write_down_queues().unwrap();
    node.kill();
    revive(&mut node);
    is_ready(&daemon);
    eventually("the set is complete", || run(&["verify"]).output().unwrap().status.success());
    let mut session = Session::open(&settings.broker).unwrap();
    session.delete_queue("delay.level.20").unwrap();
    run(&["verify"]).assert().code(1).stdout(contains("delay.level.20"));
    stdout(&mut run(&["install"]));
    run(&["verify"]).assert().success();

    // Friday: a new daemon runs beside the old one, which then ends. A rejected message is retried.
    let mut new = Daemon::start(&settings, &management, &[]);
    is_ready(&new);
    is_ready(&daemon);
    assert_eq!(daemon.stop(), Some(0), "{}", daemon.log());
    let consumer = session.consume("team-2", 1).unwrap();
    let Next::Delivery(rejected) = consumer.next(PATIENCE) else { panic!("no message") };
    let body = rejected.body.clone();
    consumer.reject(rejected).unwrap();
    let mut again = 0;
    while again < 1 {
        match consumer.next(PATIENCE) {
            Next::Delivery(delivery) => {
                again += usize::from(delivery.body == body);
                consumer.ack(delivery).unwrap();
            }
            other => panic!("{other:?}"),
        }
    }
    drop(consumer);
    assert_eq!(new.stop(), Some(0), "{}", new.log());

    // The end: waiting messages prevent the removal, which then leaves nothing of the set.
    let queues = || api.queues(&settings.broker.vhost).unwrap();
    let consumed = |queue: &QueueInfo| topology.names().is_canary(&queue.name) && queue.consumers != Some(0);
    eventually("the canaries have ended", || !queues().iter().any(consumed));
    send(&settings, "team-2", 1 << 14, 1);
    run(&["uninstall", "--yes"]).assert().code(1).stdout(contains("delay.level.14"));
    stdout(&mut run(&["uninstall", "--force", "--yes"]));
    let left = queues();
    let left: Vec<_> = left.iter().map(|queue| &queue.name).filter(|it| it.starts_with("delay.")).collect();
    assert_eq!(left, [""; 0]);
}
