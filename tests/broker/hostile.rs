//! A tenant with valid credentials and bad intentions.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use delayline_admin::{self as admin, AppQueue, AppSpec, AppUser, Applied, Delivery};
use delayline_amqp::{
    Session,
    broker::{Credentials, Secret},
};
use delayline_core::{
    codec::{Delay, RoutingKey},
    topology::{Binding, Endpoint, Exchange, ExchangeKind, JournalSettings, Queue, RecallSettings},
};
use delayline_node::{NodeOptions, PrivateNode};
use delayline_settings::Settings;
use serde_json::json;

use crate::common::Counting;
use crate::{
    common::{self, raw},
    tenant::{key, mend},
};

const ATTEMPTS: &str = include_str!("../../docs/reference/tenant-attempts.tsv");
const PASSWORD: &str = "tenant's own";

/// The program that makes the attempts, and its protocol in the document.
const OVER_0_9_1: (&str, &str) = ("hostile.py", "AMQP 0-9-1");
const OVER_1_0: (&str, &str) = ("hostile.js", "AMQP 1.0");

/// For each attempt over a protocol, the documented result on this version of the broker.
fn promised(protocol: &str, version: &str) -> BTreeMap<String, String> {
    let series: Vec<u32> = version.split('.').filter_map(|part| part.parse().ok()).take(2).collect();
    let column = match series.as_slice() {
        [..=3, ..] => 2,
        [4, ..=2] => 3,
        _ => 4,
    };
    let rows = ATTEMPTS.lines().skip(1).map(|row| row.split('\t').collect::<Vec<_>>());
    rows.filter(|cells| cells[0] == protocol)
        .map(|cells| {
            assert_eq!(cells.len(), 5, "{cells:?}");
            assert!(
                cells[2..].iter().all(|cell| ["refused", "harmless", "limit", "off"].contains(cell)),
                "{cells:?}"
            );
            (cells[1].to_owned(), cells[column].to_owned())
        })
        .collect()
}

/// The tenant: a process that makes the requested attempts, and prints the broker's answers.
struct Tenant {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    promised: BTreeMap<String, String>,
    attempts: Vec<String>,
}

impl Tenant {
    fn start(
        node: &PrivateNode,
        settings: &Settings,
        version: &str,
        (program, protocol): (&str, &str),
    ) -> Self {
        let variable = if program.ends_with(".py") { "TEST_PYTHON" } else { "TEST_NODE_PATH" };
        let place = std::env::var(variable).expect("scripts/test sets TEST_PYTHON and TEST_NODE_PATH");
        let interpreter = if program.ends_with(".py") { place } else { "node".into() };
        let mut child = Command::new(interpreter)
            .arg(format!("{}/tests/broker/{program}", concat!(env!("CARGO_MANIFEST_DIR"), "/../..")))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let setup = json!({
            "own": "billing", "victim": "orders", "user": "tenant-billing", "password": PASSWORD,
            "port": settings.broker.port, "vhost": settings.broker.vhost,
            "management": node.management_url(),
        });
        writeln!(input, "{setup}").unwrap();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let attempts: Vec<String> = serde_json::from_str(&line).unwrap();
        let promised = promised(protocol, version);
        let documented: Vec<_> = promised.keys().cloned().collect();
        let mut sorted = attempts.clone();
        sorted.sort();
        assert_eq!(
            sorted, documented,
            "docs/reference/tenant-attempts.tsv lists other attempts than {program}"
        );
        Self { child, input, output, promised, attempts }
    }

    fn promised(&self, attempt: &str) -> &str {
        &self.promised[attempt]
    }

    /// Makes an attempt. Returns the broker's refusal, if there was one.
    fn tries(&mut self, attempt: &str) -> Option<String> {
        writeln!(self.input, "{attempt}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{attempt}: {error}: {line}"))
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn register(settings: &Settings, app: &str, max_delay: Option<&str>) {
    let spec = AppSpec {
        app: common::app(app),
        delivery: Delivery::Direct(AppQueue::new(app)),
        user: Some(AppUser {
            name: format!("tenant-{app}"),
            password: Some(Secret::new(PASSWORD)),
            max_delay: max_delay.map(|delay| delay.parse().unwrap()),
            ..AppUser::default()
        }),
        recall: Some(RecallSettings::default().with_journal(JournalSettings::default())),
    };
    let report = admin::add_app(settings, &common::topology(settings), &spec, false, false).unwrap();
    assert_eq!(report.outcome, Applied::Installed, "{report:?}");
}

/// Whether the broker refused because of missing permissions, or because it does not support the
/// operation. A refusal for another reason does not count, such as a missing object or a mistake in
/// the attempt.
fn denied(attempt: &str, refusal: &str) -> bool {
    let precondition =
        ["publish 17 MiB in one message", "publish in another user's name (`user_id`)"].contains(&attempt);
    let denials: &[&str] = match precondition {
        true => &["406 "],
        false => &[
            "403 ",
            "login: ProbableAccessDenied",
            "HTTP 401",
            "HTTP 403",
            "amqp:unauthorized-access ",
            "amqp:not-implemented ",
            "amqp:invalid-field Attach refused: {amqp_address_v1_not_permitted",
        ],
    };
    let reserved = "publish another key in the annotation `CC`";
    // If the key contains `~`, RabbitMQ 4 fails to format its refusal (rabbit_amqp_util).
    let unsaid = attempt == "publish another application's key with an id"
        && refusal.starts_with("amqp:internal-error badarg")
        && refusal.contains("refused for user");
    denials.iter().any(|denial| refusal.starts_with(denial))
        || reserved == attempt && refusal.contains("reserved_annotation_key")
        || unsaid
}

/// The harm that an attempt has done: messages in other queues, or changes to the set.
fn harm(settings: &Settings, session: &mut Session) -> Vec<String> {
    let topology = common::topology(settings);
    let mut harm: Vec<_> =
        admin::verify(settings, &topology).unwrap().differences.iter().map(ToString::to_string).collect();
    let recalled = ["delay.recalled.orders", "delay.recalled.billing"];
    for queue in ["orders", "delay.unroutable", "delay.retry", "delay.parked"].into_iter().chain(recalled) {
        match session.counts(queue).unwrap() {
            Some(depth) if depth.ready == 0 => {}
            other => harm.push(format!("{queue}: {other:?}")),
        }
    }
    let bound = admin::list_apps(settings, &topology).unwrap().apps;
    let recalls = bound.iter().filter_map(|entry| entry.recall.as_ref()).map(|recall| recall.pending);
    let recalls: Vec<_> = recalls.collect();
    if recalls != [0, 0] {
        harm.push(format!("recalls: {recalls:?}"));
    }
    let keys: Vec<_> = bound.iter().map(|entry| (entry.app.as_deref(), entry.queue.as_deref())).collect();
    if keys != [(Some("billing"), Some("billing")), (Some("orders"), Some("orders"))] {
        harm.push(format!("bound: {keys:?}"));
    }
    harm
}

#[test]
fn attempts_of_a_tenant_are_refused_or_harmless_or_documented_limits() {
    // This test needs its own node, because the attempts can end all delays of a node.
    let node = PrivateNode::start(NodeOptions::default()).unwrap();
    let settings = common::named_vhost(&node, "shared").build().unwrap();
    common::install(&settings);
    register(&settings, "billing", Some("1h"));
    register(&settings, "orders", None);
    let mut session = Session::open(&settings.broker).unwrap();
    let version = session.server_version().unwrap();
    let [mut old, mut new] =
        [OVER_0_9_1, OVER_1_0].map(|protocol| Tenant::start(&node, &settings, &version, protocol));
    let mut attempts = old.attempts.clone();
    let last = attempts.pop().unwrap();
    let forged = "publish with an `x-death` that no broker writes";
    assert_eq!(last, forged, "nothing is delayed after it on some brokers");
    let attempts: Vec<_> = attempts.into_iter().map(|attempt| (true, attempt)).collect();
    let over_1_0 = new.attempts.clone().into_iter().map(|attempt| (false, attempt));
    let attempts: Vec<_> = attempts.into_iter().chain(over_1_0).chain([(true, last)]).collect();
    assert!(attempts.len() >= 100);

    let mut wrong = Vec::new();
    for (is_old, attempt) in &attempts {
        let tenant = if *is_old { &mut old } else { &mut new };
        let refusal = tenant.tries(attempt);
        let outcome = match (tenant.promised(attempt), &refusal) {
            ("refused", Some(refusal)) if denied(attempt, refusal) => continue,
            // The broker closes the connection before a login.
            ("off", Some(refusal)) if refusal.starts_with("not spoken") => continue,
            ("limit", None) => {
                for queue in ["orders", "billing"] {
                    let path = format!("queues/{}/{queue}/contents", settings.broker.vhost);
                    common::http(&node, "DELETE", &path, &json!(null));
                }
                continue;
            }
            ("harmless", None) => harm(&settings, &mut session),
            (_, Some(refusal)) => vec![refusal.clone()],
            (_, None) => vec!["the broker did not refuse".into()],
        };
        if !outcome.is_empty() {
            let (promised, over) = (tenant.promised(attempt), if *is_old { "0-9-1" } else { "1.0" });
            wrong.push(format!("{attempt}, over AMQP {over}: promised {promised}, found {outcome:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // Delays still work. If an attempt is a documented limit, they work after the documented
    // command.
    let message = raw::message("delay", &key(3, "orders"), "good", &json!({}));
    raw::publish(&settings, [message]);
    if old.promised(forged) == "limit" {
        let code = "whereis(rabbit_fifo_dlx_sup) =:= undefined.";
        let ended = || String::from_utf8_lossy(&node.ctl(&["eval", code]).unwrap().stdout).trim() == "true";
        common::eventually("all delays of the node have ended", ended);
        node.tell(&["eval", mend()]).unwrap();
    }
    let mut arrived = || session.counts("orders").unwrap().unwrap().ready;
    common::eventually("the other application's message arrives", || arrived() == 1);
    common::http(&node, "DELETE", "queues/shared/orders/contents", &json!(null));
    // The refused attempts have left nothing behind.
    assert_eq!(harm(&settings, &mut session), Vec::<String>::new());
}

/// The reason why `app add` never grants `configure`: a user with it can evade the rules on keys.
#[test]
fn a_user_that_may_declare_is_not_bound_by_the_rules_on_keys() {
    let settings = common::installed(1_000);
    register(&settings, "billing", None);
    register(&settings, "orders", None);
    let node = &common::shared_node();
    let path = format!("permissions/{}/tenant-billing", settings.broker.vhost);
    let own = r"^(mine|mine\.\w+)\z";
    let body = json!({ "configure": own, "write": r"^(delay|mine|mine\.\w+)\z", "read": own });
    common::http(node, "PUT", &path, &body);
    let credentials =
        Credentials::Plain { username: "tenant-billing".into(), password: Secret::new(PASSWORD) };
    let mut session = Session::open(&settings.broker.clone().with_credentials(credentials)).unwrap();
    let stolen = RoutingKey::new(Delay::ZERO, common::app("orders")).encode();

    // First way: a queue that dead-letters with the other application's key.
    let exchange = |name: &str, arguments: &[(&str, &str)]| {
        Exchange::new(name, ExchangeKind::Fanout)
            .with_arguments(arguments.iter().map(|&(key, value)| (key.to_owned(), value.into())))
    };
    let mut arguments =
        exchange("", &[("x-dead-letter-exchange", "delay"), ("x-dead-letter-routing-key", &stolen)])
            .arguments;
    arguments.insert("x-queue-type".into(), "quorum".into());
    arguments.insert("x-message-ttl".into(), 0.into());
    session.declare_exchange(&exchange("mine", &[])).unwrap();
    session.declare_queue(&Queue::new("mine").with_arguments(arguments)).unwrap();
    let binding =
        Binding { source: "mine".into(), destination: Endpoint::Queue("mine".into()), key: String::new() };
    session.bind(&binding).unwrap();
    // Second way: an exchange with the entry exchange as its alternate.
    session.declare_exchange(&exchange("mine.too", &[("alternate-exchange", "delay")])).unwrap();
    let harm = [("mine", "any"), ("mine.too", stolen.as_str())];
    raw::publish(&settings, harm.map(|(exchange, key)| raw::message(exchange, key, "harm", &json!({}))));
    let mut root = Session::open(&settings.broker).unwrap();
    common::eventually("both messages are there", || root.counts("orders").unwrap().unwrap().ready == 2);
}
