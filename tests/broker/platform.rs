//! Vhosts that are described by a platform file.

use std::fmt::Write;

use delayline_admin::{self as admin, Applied, ApplyOptions, ApplyReport, Platform, RemoveOptions};
use delayline_amqp::Session;
use delayline_broker::{Difference, ManagementApi};
use delayline_core::{
    codec::AppKey,
    topology::{Queue, Topology},
};
use delayline_settings::Settings;
use serde_json::json;

use crate::common::Counting;
use crate::common::{NO_SIGNAL, eventually, eventually_seen, http, installed, shared_node, vhost};

fn platform(text: &str, settings: &Settings) -> Platform {
    Platform::parse(text, &settings.topology).unwrap()
}

fn apply(settings: &Settings, text: &str, options: ApplyOptions) -> ApplyReport {
    admin::apply(settings, &platform(text, settings), options, &NO_SIGNAL, |_, _| {}).unwrap()
}

fn applied(settings: &Settings, text: &str) -> ApplyReport {
    apply(settings, text, ApplyOptions::default())
}

fn difference(settings: &Settings, text: &str) -> ApplyReport {
    apply(settings, text, ApplyOptions { dry_run: true, ..ApplyOptions::default() })
}

fn pruned(settings: &Settings, text: &str) -> ApplyReport {
    apply(settings, text, ApplyOptions { prune: true, ..ApplyOptions::default() })
}

/// The texts of all differences.
fn differing(report: &ApplyReport) -> Vec<String> {
    let steps = report.sets.iter().flat_map(|set| &set.apps).flat_map(|app| &app.steps);
    steps.filter(|step| !step.stood).map(|step| step.what.clone()).collect()
}

/// A file with `count` applications. Their users exist already, and every second application has a
/// landing queue.
fn many(settings: &Settings, count: usize) -> String {
    let mut text = "[sets.delay]\n".to_owned();
    for number in 0..count {
        let user = format!("app-{number}-of-{}", settings.broker.vhost);
        http(&shared_node(), "PUT", &format!("users/{user}"), &json!({ "password_hash": "", "tags": "" }));
        writeln!(text, "[sets.delay.apps.app-{number}]\nuser = \"{user}\"").unwrap();
        if number % 2 == 0 {
            writeln!(text, "retry = true\nlanding = true").unwrap();
        }
    }
    text
}

#[test]
fn a_vhost_becomes_what_the_file_says_and_stays_so() {
    let settings = vhost().build().unwrap();
    let text = many(&settings, 3);
    let dry = difference(&settings, &text);
    assert_eq!(dry.outcome, Applied::DryRun, "{dry:?}");
    assert_eq!((dry.sets[0].install.created.len(), differing(&dry).len()), (63, 3 * 5 + 2 * 2));
    let untouched = difference(&settings, &text);
    assert_eq!(untouched.sets[0].install.created.len(), 63, "a dry run changed something");

    assert_eq!(applied(&settings, &text).outcome, Applied::Installed);
    let findings = admin::verify(&settings, &Topology::new(settings.topology.clone())).unwrap().findings;
    assert!(findings.is_empty(), "{findings:?}");
    for report in [difference(&settings, &text), applied(&settings, &text), pruned(&settings, &text)] {
        assert_eq!(report.outcome, Applied::Unchanged, "{report:?}");
    }
}

#[test]
fn changes_by_hand_are_found_and_repaired() {
    let settings = vhost().build().unwrap();
    let vhost = &settings.broker.vhost;
    let text = many(&settings, 3);
    applied(&settings, &text);
    // Changes by hand: wider permissions, a deleted queue with its binding, and a deleted exchange
    // of the set.
    let path = format!("permissions/{vhost}/app-2-of-{vhost}");
    http(&shared_node(), "PUT", &path, &json!({ "configure": ".*", "write": ".*", "read": ".*" }));
    let mut session = Session::open(&settings.broker).unwrap();
    session.delete_queue("app-1").unwrap();
    session.delete_exchange("delay.level.03").unwrap();

    let found = difference(&settings, &text);
    assert_eq!(found.outcome, Applied::DryRun, "{found:?}");
    assert_eq!(found.sets[0].install.created, ["exchange `delay.level.03`"]);
    let texts = differing(&found);
    assert_eq!(texts.len(), 3, "{texts:?}");
    for words in ["permissions of user `app-2", "queue `app-1`", "binding of queue `app-1`"] {
        assert!(texts.iter().any(|text| text.starts_with(words)), "{words}: {texts:?}");
    }
    let replaced: Vec<_> =
        found.sets[0].apps.iter().flat_map(|app| &app.steps).filter_map(|it| it.replaces.as_ref()).collect();
    assert!(replaced.len() == 1 && replaced[0].contains("configure `.*`"), "{replaced:?}");

    assert_eq!(applied(&settings, &text).outcome, Applied::Installed);
    assert_eq!(http(&shared_node(), "GET", &path, &json!(null))["configure"], "^$");
    assert_eq!(difference(&settings, &text).outcome, Applied::Unchanged);
}

#[test]
fn if_one_thing_is_in_the_way_nothing_is_changed() {
    let settings = installed(1_000);
    let vhost = &settings.broker.vhost;
    let other = json!({ "durable": true, "arguments": { "x-queue-type": "classic" } });
    http(&shared_node(), "PUT", &format!("queues/{vhost}/second"), &other);
    let text = "[sets.delay.apps.first]\nno_user = true\n[sets.delay.apps.second]\nno_user = true\n\
                [sets.other]\n";
    let report = applied(&settings, text);
    assert_eq!(report.outcome, Applied::Conflict, "{report:?}");
    let conflicts: Vec<_> = report.conflicts().collect();
    assert!(conflicts.len() == 1 && conflicts[0].contains("application `second`"), "{conflicts:?}");
    let mut session = Session::open(&settings.broker).unwrap();
    assert!(session.counts("first").unwrap().is_none());
    assert!(session.counts("other.level.00").unwrap().is_none());
}

#[test]
fn another_number_of_replicas_is_one_conflict_for_all_queues() {
    let settings = installed(1_000);
    let apps = "[sets.delay.apps.first]\nno_user = true\n[sets.delay.apps.second]\nno_user = true\n";
    applied(&settings, apps);
    let conflicts = eventually_seen(
        "the broker reports the members of its queues",
        || {
            let report = applied(&settings, &format!("[sets.delay]\nreplicas = 3\n{apps}"));
            report.conflicts().map(|conflict| conflict.to_string()).collect::<Vec<_>>()
        },
        |conflicts| conflicts.len() == 1,
    );
    assert!(conflicts[0].contains("`replicas` should be 3, but is 1; leave out"), "{conflicts:?}");
}

#[test]
fn objects_outside_the_file_are_removed_only_on_request_and_without_loss() {
    let settings = vhost().set("unit_ms", "10").build().unwrap();
    let two = "[sets.delay.apps.kept]\nno_user = true\n[sets.delay.apps.old]\nno_user = true\n";
    let one = "[sets.delay.apps.kept]\nno_user = true\n";
    applied(&settings, two);
    let report = applied(&settings, one);
    assert_eq!(report.outcome, Applied::Unchanged);
    assert_eq!(report.sets[0].not_in_file, ["application `old`"]);
    // A message waits in the queue of `old`.
    let router = settings.router().connect().unwrap();
    let message = delayline_core::Message::after("old".parse().unwrap(), "1".parse().unwrap(), "x");
    router.publish(message).unwrap();
    let mut session = Session::open(&settings.broker).unwrap();
    let depth = |session: &mut Session| session.counts("old").unwrap().map_or(0, |depth| depth.ready);
    eventually_seen("the message arrives", || depth(&mut session), |ready| *ready == 1);
    let report = pruned(&settings, one);
    assert_eq!(report.outcome, Applied::Conflict, "{report:?}");
    let conflicts: Vec<_> = report.conflicts().collect();
    let waits = ["application `old` cannot be removed: 1 message waits in `old`"];
    assert_eq!(conflicts, waits);
    assert_eq!(applied(&settings, two).outcome, Applied::Unchanged);

    // The API still counts the message for some seconds.
    session.purge_queue("old").unwrap();
    let prune = || pruned(&settings, one);
    let report = eventually_seen("it is pruned", prune, |report| report.outcome == Applied::Installed);
    let removed = &report.sets[0].pruned[0].report.as_ref().unwrap().removed;
    assert!(removed.contains(&"queue `old`".to_owned()), "{removed:?}");
    assert_eq!(pruned(&settings, one).outcome, Applied::Unchanged);
}

#[test]
fn remains_of_an_application_are_pruned_as_well() {
    let settings = vhost().build().unwrap();
    let vhost = &settings.broker.vhost;
    applied(&settings, &many(&settings, 2));
    // A queue is deleted by hand, and another user may read everything.
    Session::open(&settings.broker).unwrap().delete_queue("app-1").unwrap();
    let watcher = format!("aaa-of-{vhost}");
    http(&shared_node(), "PUT", &format!("users/{watcher}"), &json!({ "password_hash": "", "tags": "" }));
    let rights = json!({ "configure": "", "write": "", "read": ".*" });
    http(&shared_node(), "PUT", &format!("permissions/{vhost}/{watcher}"), &rights);
    let report = pruned(&settings, &many(&settings, 1));
    assert_eq!(report.outcome, Applied::Installed, "{report:?}");
    assert_eq!(report.sets[0].pruned_users, [format!("app-1-of-{vhost}")]);
    assert_eq!(pruned(&settings, &many(&settings, 1)).outcome, Applied::Unchanged);
}

#[test]
fn a_canary_is_no_application_and_its_binding_stays() {
    let settings = vhost().build().unwrap();
    let text = "[sets.delay.apps.billing]\nno_user = true\n";
    applied(&settings, text);
    let topology = Topology::new(settings.topology.clone());
    let canary: AppKey = "delayline-canary.0".parse().unwrap();
    let binding = topology.app_binding(&canary, &topology.names().canary(0));
    let mut session = Session::open(&settings.broker).unwrap();
    session.declare_queue(&Queue::new("delay.canary.0")).unwrap();
    session.bind(&binding).unwrap();
    let report = pruned(&settings, text);
    assert_eq!(report.outcome, Applied::Unchanged, "{report:?}");
    let apps = admin::list_apps(&settings, &topology).unwrap().apps;
    assert_eq!(apps.iter().map(|it| it.app.as_deref()).collect::<Vec<_>>(), [Some("billing")]);
    let options = RemoveOptions::default();
    let refusal =
        admin::remove_app(&settings, &topology, &canary, &options, &NO_SIGNAL).unwrap().unwrap_err();
    assert!(refusal.to_string().contains("is a canary of `delayline serve`"), "{refusal}");
    let api = ManagementApi::new(settings.management.as_ref().unwrap()).unwrap();
    assert!(api.has_binding(&settings.broker.vhost, &binding).unwrap());
}

#[test]
fn the_rights_of_a_user_that_the_file_no_longer_names_are_shown_and_pruned() {
    let settings = vhost().build().unwrap();
    let vhost = &settings.broker.vhost;
    let (node, name) = (shared_node(), |user: &str| format!("{user}-of-{vhost}"));
    for user in ["a", "b", "c", "monitor"] {
        http(&node, "PUT", &format!("users/{}", name(user)), &json!({ "password_hash": "", "tags": "" }));
    }
    // This user may do more than an application, so these permissions were not made for one.
    let rights = json!({ "configure": "", "write": ".*", "read": ".*" });
    http(&node, "PUT", &format!("permissions/{vhost}/{}", name("monitor")), &rights);
    let file =
        |user: &str, more: &str| format!("[sets.delay.apps.billing]\nuser = \"{}\"\n{more}", name(user));
    let publisher = format!("[sets.delay.apps.shop]\nuser = \"{}\"\npublish_only = true\n", name("c"));
    applied(&settings, &file("a", &publisher));
    let now = file("b", "");
    let former = ["a", "c"].map(|user| format!("permissions of user `{}`", name(user)));
    assert_eq!(difference(&settings, &now).sets[0].not_in_file, former);
    assert_eq!(applied(&settings, &now).sets[0].not_in_file, former);
    let report = pruned(&settings, &now);
    assert_eq!(
        (report.outcome, &report.sets[0].pruned_users),
        (Applied::Installed, &vec![name("a"), name("c")])
    );
    let users: Vec<_> = http(&node, "GET", &format!("vhosts/{vhost}/permissions"), &json!(null))
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["user"].as_str().unwrap().to_owned())
        .collect();
    assert!(users.contains(&name("b")) && users.contains(&name("monitor")), "{users:?}");
    assert!(!users.contains(&name("a")) && !users.contains(&name("c")), "{users:?}");
    let topics = http(&node, "GET", &format!("vhosts/{vhost}/topic-permissions"), &json!(null));
    assert!(!topics.to_string().contains(&name("a")), "{topics}");
    assert_eq!(pruned(&settings, &now).outcome, Applied::Unchanged);
    assert_eq!(difference(&settings, &now).sets[0].not_in_file, [""; 0]);
}

#[test]
fn two_hundred_applications_are_one_file() {
    let settings = vhost().build().unwrap();
    let text = many(&settings, 200);
    let mut session = Session::open(&settings.broker).unwrap();
    println!(
        "RabbitMQ {}, one private node, {} processors, compiled {}; load before: {}",
        session.server_version().unwrap(),
        std::thread::available_parallelism().map_or(0, usize::from),
        if cfg!(debug_assertions) { "for debugging" } else { "with optimizations" },
        std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim()
    );
    let timed = |what: &str| {
        let start = std::time::Instant::now();
        let report = applied(&settings, &text);
        println!("200 applications with a user each, {what}: {:.1} s", start.elapsed().as_secs_f64());
        report
    };
    assert_eq!(timed("from nothing").outcome, Applied::Installed);
    assert_eq!(timed("again").outcome, Applied::Unchanged);
    session.delete_queue("app-77").unwrap();
    let report = timed("one queue deleted by hand, found and repaired");
    assert_eq!(
        (report.outcome, differing(&report).len()),
        (Applied::Installed, 2),
        "{:?}",
        differing(&report)
    );
    let verified = admin::verify(&settings, &Topology::new(settings.topology.clone())).unwrap();
    let missing = |it: &&Difference| matches!(it, Difference::Missing { .. });
    assert_eq!(verified.differences.iter().filter(missing).count(), 0, "{verified:?}");
}

#[test]
fn gateways_are_made_kept_and_pruned_like_applications() {
    let settings = vhost().build().unwrap();
    let text = "[sets.delay.apps.billing]\nno_user = true\n\
                [sets.delay.gateways.\"orders.delayed\"]\ntype = \"topic\"\n\
                [sets.delay.gateways.old]\ntype = \"fanout\"\n";
    let dry = difference(&settings, text);
    assert_eq!((dry.outcome, dry.sets[0].gateways.len()), (Applied::DryRun, 2), "{dry:?}");
    assert_eq!(applied(&settings, text).outcome, Applied::Installed);
    let gateways = || {
        let list = admin::list_gateways(&settings, &Topology::new(settings.topology.clone())).unwrap();
        list.gateways.into_iter().map(|it| it.gateway).collect::<Vec<_>>()
    };
    assert_eq!(gateways(), ["old", "orders.delayed"]);
    // The binding of a gateway belongs to no application, so pruning keeps it.
    eventually("no change is left", || pruned(&settings, text).outcome == Applied::Unchanged);

    // A deleted exchange is found and repaired.
    let mut session = Session::open(&settings.broker).unwrap();
    session.delete_exchange("old.in").unwrap();
    let found = difference(&settings, text);
    let missing: Vec<_> = found.sets[0].gateways.iter().filter(|it| it.outcome == Applied::DryRun).collect();
    assert_eq!(
        (found.outcome, missing.len(), &*missing[0].gateway),
        (Applied::DryRun, 1, "old"),
        "{found:?}"
    );
    assert_eq!(applied(&settings, text).outcome, Applied::Installed);
    assert_eq!(difference(&settings, text).outcome, Applied::Unchanged);

    // A gateway of another type is a conflict, and nothing is changed.
    let other = text.replace("fanout", "direct");
    let refused = applied(&settings, &other);
    assert_eq!(refused.outcome, Applied::Conflict, "{refused:?}");
    assert!(refused.conflicts().any(|it| it.starts_with("gateway `old`: ")), "{refused:?}");

    let less = &text[..text.find("[sets.delay.gateways.old]").unwrap()];
    assert_eq!(applied(&settings, less).outcome, Applied::Unchanged, "only pruning removes objects");
    let report = pruned(&settings, less);
    assert_eq!(report.sets[0].pruned_gateways.len(), 1, "{report:?}");
    assert_eq!(gateways(), ["orders.delayed"]);
}
