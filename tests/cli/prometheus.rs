//! Metrics, alert rules and dashboards in a real Prometheus.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use delayline_admin::{add_gateway, list_gateways};
use delayline_amqp::Session;
use delayline_core::{
    Message,
    codec::{Delay, RoutingKey},
    message::direct,
    topology::{Binding, Endpoint, ExchangeKind, Queue, Topology},
};
use delayline_node::{FreePort, NodeOptions, PrivateNode};
use delayline_settings::Settings;
use delayline_watch::metrics::{Kind, NAMES};
use jiff::{Timestamp, ToSpan};
use serde_json::Value as Json;
use tempfile::TempDir;

use crate::{
    common::{PATIENCE, app, eventually, eventually_seen, install},
    daemon::Daemon,
};

const NOT_THERE: &str = "Debian's package `prometheus` is needed: scripts/test installs it";

fn packaged(path: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(path)
}

fn text(path: &str) -> String {
    fs::read_to_string(packaged(path)).unwrap()
}

/// The names of the alerts, in their order.
fn alerts() -> Vec<String> {
    let rules = text("packaging/prometheus/alerts.yml");
    rules.lines().filter_map(|line| Some(line.trim().strip_prefix("- alert: ")?.to_owned())).collect()
}

/// A Prometheus server that scrapes one daemon every second.
struct Prometheus {
    child: Child,
    base: String,
    _directory: TempDir,
}

impl Prometheus {
    fn start(daemon: &Daemon) -> Self {
        let directory = tempfile::tempdir().unwrap();
        // The real rules with short times, because `for: 10m` would make the test too slow.
        let rules = text("packaging/prometheus/alerts.yml");
        let quick: Vec<_> = rules
            .lines()
            .map(|line| if line.trim_start().starts_with("for: ") { "        for: 2s" } else { line })
            .collect();
        assert_ne!(quick.join("\n"), rules.trim_end(), "there is something to shorten");
        fs::write(directory.path().join("alerts.yml"), quick.join("\n")).unwrap();
        let config = text("packaging/prometheus/prometheus.yml")
            .replace("127.0.0.1:15628", &daemon.address.to_string());
        assert!(config.contains(&daemon.address.to_string()));
        let config = format!("global:\n  scrape_interval: 1s\n  evaluation_interval: 1s\n{config}");
        fs::write(directory.path().join("prometheus.yml"), config).unwrap();
        let free = FreePort::claim().unwrap();
        let port = free.number();
        let log = fs::File::create(directory.path().join("log")).unwrap();
        let child = Command::new("prometheus")
            .arg("--config.file=prometheus.yml")
            .arg("--storage.tsdb.path=data")
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect(NOT_THERE);
        let prometheus = Self { child, base: format!("http://127.0.0.1:{port}"), _directory: directory };
        eventually("Prometheus answers", || prometheus.try_get("-/ready").is_some());
        prometheus
    }

    fn try_get(&self, path: &str) -> Option<String> {
        let agent = ureq::Agent::new_with_config(
            ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).build(),
        );
        agent.get(format!("{}/{path}", self.base)).call().ok()?.body_mut().read_to_string().ok()
    }

    fn json(&self, path: &str) -> Json {
        let answer = self.try_get(path).unwrap_or_else(|| panic!("{path} of Prometheus"));
        serde_json::from_str(&answer).unwrap()
    }

    /// The names of the alerts that fire.
    fn firing(&self) -> BTreeSet<String> {
        let alerts = self.json("api/v1/alerts");
        let alerts = alerts["data"]["alerts"].as_array().unwrap();
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        firing.map(|alert| alert["labels"]["alertname"].as_str().unwrap().to_owned()).collect()
    }

    /// When the rules were last evaluated, by the clock of Prometheus.
    fn evaluated(&self) -> Timestamp {
        let rules = self.json("api/v1/rules");
        let group = &rules["data"]["groups"][0]["lastEvaluation"];
        group.as_str().and_then(|at| at.parse().ok()).unwrap_or_else(|| panic!("{rules}"))
    }

    /// Waits until all of `these` alerts fire, and for the time that an alert takes to fire. Then none of
    /// `not` fires, or not for long: with these short times, a busy machine is enough to fire some. Other
    /// alerts may.
    fn fires(&self, these: &[&str], not: &[&str]) {
        let all = |firing: &BTreeSet<String>| these.iter().all(|alert| firing.contains(*alert));
        eventually_seen(&format!("{these:?} fire"), || self.firing(), all);
        // A scrape, an evaluation, the alert's own 2 s, and another evaluation.
        let until = self.evaluated() + 5.seconds();
        eventually("the rules were evaluated again", || self.evaluated() > until);
        let none = |firing: &BTreeSet<String>| not.iter().all(|alert| !firing.contains(*alert));
        eventually_seen(&format!("none of {not:?} fires"), || self.firing(), none);
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn queue(session: &mut Session, name: &str, limit: Option<i64>, key: &str) {
    let mut arguments = vec![("x-queue-type".to_owned(), "classic".into())];
    if let Some(limit) = limit {
        arguments.push(("x-max-length".to_owned(), limit.into()));
        arguments.push(("x-overflow".to_owned(), "reject-publish".into()));
    }
    let arguments = arguments.into_iter();
    session.declare_queue(&Queue::new(name).with_arguments(arguments)).unwrap();
    session.bind(&to(name, key)).unwrap();
}

fn to(queue: &str, key: &str) -> Binding {
    Binding {
        source: "delay.dispatch".into(),
        destination: Endpoint::Queue(queue.into()),
        key: RoutingKey::binding_pattern(&app(key)),
    }
}

fn publish(settings: &Settings, key: &str, delay: u64, count: u32) {
    let router = settings.router().connect().unwrap();
    let mut pipeline = router.pipeline();
    for _ in 0..count {
        pipeline.push((), Message::after(app(key), Delay::from_seconds(delay).unwrap(), "x"));
    }
    assert!(pipeline.all(|outcome| outcome.result.is_ok()));
}

#[test]
fn each_fault_fires_its_alert() {
    let mut node = PrivateNode::start(NodeOptions::default()).unwrap();
    let settings = node.settings().set("unit_ms", "100").build().unwrap();
    install(&settings);
    // Messages wait in a gateway that no daemon serves. They are there from the beginning: the doctor of the
    // daemon looks only every two minutes.
    let topology = Topology::new(settings.topology.clone());
    add_gateway(&settings, &topology, "orders", ExchangeKind::Topic, false).unwrap().unwrap();
    let router = settings.router().connect().unwrap();
    router.publish(direct::keyed(app("shop"), "orders.in".into(), "order".into(), "x")).unwrap();
    let gateways = || list_gateways(&settings, &topology).unwrap().gateways;
    eventually_seen("the broker has counted them", gateways, |all| all[0].waiting == Some(1));
    let daemon = Daemon::start(&settings, &node.management_url(), &["--no-gateways"]);
    let prometheus = Prometheus::start(&daemon);

    // Nothing else is wrong: every metric of the daemon that has a value is there, and no other alert fires.
    eventually("the daemon is scraped", || {
        let targets = prometheus.json("api/v1/targets");
        targets["data"]["activeTargets"][0]["health"] == "up"
    });
    eventually("canaries arrive through every level", || {
        let answer = prometheus.json("api/v1/query?query=count(delayline_canary_arrived_total%3E0)");
        answer["data"]["result"][0]["value"][1] == "10"
    });
    // On a busy machine, canaries may have been late at the beginning.
    let expected = ["DelaylineGatewayUnserved", "DelaylineProblemFound"].map(str::to_owned).into();
    eventually_seen("only the gateway is reported", || prometheus.firing(), |firing| *firing == expected);
    let rules = prometheus.json("api/v1/rules");
    let rules = rules["data"]["groups"][0]["rules"].as_array().unwrap();
    assert_eq!(rules.len(), alerts().len());
    assert!(rules.iter().all(|rule| rule["health"] == "ok"), "{rules:?}");

    // The canaries go to another queue, and everything else works.
    let mut session = Session::open(&settings.broker).unwrap();
    queue(&mut session, "hole", None, "delayline-canary.0");
    session.unbind(&to("delay.canary.0", "delayline-canary.0")).unwrap();
    prometheus.fires(
        &["DelaylineCanaryLate"],
        &["DelaylineLevelStuck", "DelaylineUnroutableGrowing", "DelaylineBrokerUnreachable"],
    );
    session.bind(&to("delay.canary.0", "delayline-canary.0")).unwrap();
    // The queue is only unbound: while a queue is deleted, a message that 3.10 is handing to it
    // blocks its level for three minutes.
    session.unbind(&to("hole", "delayline-canary.0")).unwrap();

    // No queue is bound for this app key.
    publish(&settings, "nobody", 0, 5);
    prometheus.fires(&["DelaylineUnroutableGrowing"], &["DelaylineLevelStuck", "DelaylineBrokerUnreachable"]);

    // A full queue refuses the messages of level 0.
    queue(&mut session, "full", Some(1), "full");
    publish(&settings, "full", 63, 60);
    prometheus.fires(&["DelaylineLevelStuck"], &["DelaylineBrokerUnreachable"]);
    let stuck = prometheus.json("api/v1/query?query=delayline_level_held_up_seconds%3E30");
    let stuck = stuck["data"]["result"].as_array().unwrap();
    assert!(!stuck.is_empty());
    assert!(stuck.iter().all(|level| level["metric"]["level"] == "00"), "{stuck:?}");

    drop(session);
    node.kill();
    prometheus.fires(&["DelaylineBrokerUnreachable"], &["DelaylineDown"]);
    drop(daemon);
    prometheus.fires(&["DelaylineDown"], &[]);
}

#[test]
fn promtool_finds_nothing_wrong() {
    let check = |arguments: &[&str]| {
        let output = Command::new("promtool")
            .args(arguments)
            .current_dir(packaged("packaging/prometheus"))
            .output()
            .expect(NOT_THERE);
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    };
    check(&["check", "rules", "alerts.yml"]);
    check(&["check", "config", "prometheus.yml"]);
    check(&["test", "rules", "alerts.test.yml"]);
}

/// The metrics in a text of queries.
fn named(queries: &str) -> BTreeSet<String> {
    let words = queries.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let ours = words.filter(|word| word.starts_with("delayline_") || word.starts_with("process_"));
    ours.map(str::to_owned).collect()
}

fn exist() -> BTreeSet<String> {
    let histogram = |series: &str| {
        let name = series.trim_end_matches("_bucket");
        [format!("{name}_sum"), format!("{name}_count")]
    };
    let series = NAMES.iter().flat_map(|family| {
        let series = family.series();
        let more = if family.kind == Kind::Histogram { Vec::from(histogram(&series)) } else { Vec::new() };
        std::iter::once(series).chain(more)
    });
    series.collect()
}

#[test]
fn rules_dashboards_and_documents_name_only_metrics_that_exist() {
    let exist = exist();
    let dashboard: Json = serde_json::from_str(&text("packaging/grafana/delayline.json")).unwrap();
    let mut queries = Vec::new();
    expressions(&dashboard, &mut queries);
    assert!(queries.len() > 10, "{queries:?}");
    for (what, queries) in [
        ("packaging/prometheus/alerts.yml", text("packaging/prometheus/alerts.yml")),
        ("packaging/grafana/delayline.json", queries.join("\n")),
        ("docs/how-to/monitor.md", text("docs/how-to/monitor.md")),
        ("docs/runbook/late.md", text("docs/runbook/late.md")),
    ] {
        let named = named(&queries);
        assert!(!named.is_empty(), "{what}");
        let unknown: Vec<_> = named.difference(&exist).collect();
        assert!(unknown.is_empty(), "{what} names {unknown:?}");
    }
}

#[test]
fn the_page_on_metrics_is_the_table_of_the_program() {
    let path = packaged("docs/reference/metrics.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, _) = page.split_once("|---|---|\n").expect("a table");
    let rows: String = NAMES.iter().map(|it| format!("| `{}` | {} |\n", it.series(), it.help)).collect();
    let page_now = format!("{before}|---|---|\n{rows}");
    if std::env::var("METRICS").is_ok_and(|it| it == "write") {
        fs::write(path, page_now).unwrap();
    } else {
        assert_eq!(page, page_now, "METRICS=write renews docs/reference/metrics.md");
    }
}

#[test]
fn a_dashboard_does_not_show_old_values_as_current() {
    // A range query can show a value that is hours old. An instant query shows that there is none
    // now.
    let dashboard: Json = serde_json::from_str(&text("packaging/grafana/delayline.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let figures: Vec<_> = panels.iter().filter(|panel| panel["type"] == "stat").collect();
    assert!(figures.len() > 5);
    for panel in figures {
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty());
        for target in targets {
            assert_eq!((&target["instant"], &target["range"]), (&true.into(), &false.into()), "{panel}");
        }
    }
}

/// All queries in a dashboard.
fn expressions(value: &Json, found: &mut Vec<String>) {
    match value {
        Json::Object(map) => {
            for (key, value) in map {
                match value {
                    Json::String(query) if key == "expr" || key == "query" => found.push(query.clone()),
                    _ => expressions(value, found),
                }
            }
        }
        Json::Array(values) => values.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

#[test]
fn every_alert_leads_to_a_section_of_the_runbook_that_names_it() {
    let rules = text("packaging/prometheus/alerts.yml");
    let alerts = alerts();
    assert!(alerts.len() > 10);
    for (alert, rule) in alerts.iter().zip(rules.split("- alert: ").skip(1)) {
        let (_, url) = rule.split_once("runbook_url: \"https://delayline.example/").expect("a link");
        let (path, anchor) = url.split_once('"').unwrap().0.split_once('#').expect("an anchor");
        let page = text(path);
        let mut sections = page.split("\n## ").skip(1);
        let led_to = sections.any(|section| {
            let title = section.lines().next().unwrap_or_default();
            let name = title.to_lowercase().replace(' ', "-").replace(['(', ')'], "");
            name == anchor && section.contains(alert.as_str())
        });
        assert!(led_to, "{alert}: {path} has no section {anchor} that names it");
    }
}
