//! Foreign layouts get stuck, and a guard frees them. The broker of these tests tries again only
//! after an hour, so messages move only because of the guard.

use std::{sync::atomic::AtomicBool, time::Duration};

use delayline_admin::{
    self as admin, AdminError, Applied, DoctorOptions, FindingCode, GuardOptions, GuardReport, Kept, Layout,
    ReplayReport, Selection,
};
use delayline_amqp::Session;
use delayline_core::topology::{Binding, Endpoint};
use delayline_settings::Settings;
use serde_json::{Value as Json, json};

use crate::common::Counting;
use crate::{
    common::{NO_SIGNAL, PATIENCE, eventually_seen, http, topology, vhost_on},
    others::{accumulated, bound, classic_kombu, kombu, nservicebus, nservicebus_v1, publish},
    unstick::{node, policies, stuck},
};

fn empty() -> (Settings, Session) {
    let settings = vhost_on(node()).build().unwrap();
    let session = Session::open(&settings.broker).unwrap();
    (settings, session)
}

fn options() -> GuardOptions {
    let mut options = GuardOptions::default();
    // The wait is long, so that it ends because no dead letter is left.
    options.wait = PATIENCE;
    options
}

fn guard(settings: &Settings, layout: &Layout, options: &GuardOptions) -> GuardReport {
    admin::guard(settings, &topology(settings), layout, options).unwrap()
}

fn holds(session: &mut Session, queue: &str, count: u32) {
    let depth = || session.counts(queue).unwrap().map_or(0, |depth| depth.ready);
    eventually_seen("the messages are there", depth, |&ready| ready == count);
}

fn replay(settings: &Settings, layout: &Layout) -> ReplayReport {
    let (all, stop) = (Selection::default(), AtomicBool::new(false));
    let kept = Kept::Guarded(layout.clone());
    kept.replay(settings, &topology(settings), &all, true, &stop, |_| {}).unwrap().unwrap()
}

/// The names, types and arguments of all exchanges and queues, and all bindings.
fn objects(settings: &Settings) -> Vec<Json> {
    let ask = |what: &str| http(node(), "GET", &format!("{what}/{}", settings.broker.vhost), &Json::Null);
    let mut all = Vec::new();
    for what in ["exchanges", "queues", "bindings"] {
        for object in ask(what).as_array().unwrap() {
            let of = |key: &str| object[key].clone();
            all.push(json!([
                what,
                of("name"),
                of("type"),
                of("arguments"),
                of("source"),
                of("destination"),
                of("routing_key")
            ]));
        }
    }
    all.sort_by_key(Json::to_string);
    all
}

/// The policy that applies to an exchange.
fn applies(settings: &Settings, exchange: &str) -> Json {
    http(node(), "GET", &format!("exchanges/{}/{exchange}", settings.broker.vhost), &Json::Null)["policy"]
        .clone()
}

#[test]
fn without_the_right_to_set_policies_nothing_is_changed() {
    let (settings, mut session) = empty();
    let layout = nservicebus(&mut session, 10);
    let vhost = settings.broker.vhost.as_str();
    http(node(), "PUT", "users/guardian", &json!({"password": "guardian", "tags": "monitoring"}));
    let all = json!({"configure": ".*", "write": ".*", "read": ".*"});
    http(node(), "PUT", &format!("permissions/{vhost}/guardian"), &all);
    let url = format!("{}/{vhost}", node().url());
    let layers = node().settings().set("url", url).set("username", "guardian").set("password", "guardian");
    let theirs = layers.build().unwrap();
    let before = objects(&settings);
    for dry_run in [true, false] {
        let mut options = options();
        options.dry_run = dry_run;
        let refused = admin::guard(&theirs, &topology(&theirs), &layout, &options).unwrap_err();
        assert!(refused.to_string().contains("`policymaker`"), "{refused}");
        assert_eq!(objects(&settings), before);
    }
}

#[test]
fn a_stall_of_nservicebus_is_cured_and_nothing_is_lost() {
    let (settings, mut session) = empty();
    let layout = nservicebus(&mut session, 10);
    bound(&mut session, &layout, "Sales");
    let (before, policies_before) = (objects(&settings), policies(&settings));
    publish(&settings, &layout, "Gone", 1, 0..40);
    stuck(&settings, "nsb.v2.delay-level-00", 40);
    publish(&settings, &layout, "Sales", 3, 0..20);
    // Level 0 is stuck for every endpoint.
    stuck(&settings, "nsb.v2.delay-level-00", 60);
    assert_eq!(session.counts("Sales").unwrap().unwrap().ready, 0);

    let mut dry = options();
    dry.dry_run = true;
    assert_eq!(guard(&settings, &layout, &dry).outcome, Applied::DryRun);
    assert_eq!((objects(&settings), policies(&settings)), (before.clone(), policies_before.clone()));
    let list = |settings: &Settings| {
        Kept::Guarded(layout.clone()).list(settings, &topology(settings), 1_000, |_| {})
    };
    assert!(matches!(list(&settings), Err(AdminError::NoGuard { .. })));

    let report = guard(&settings, &layout, &options());
    assert_eq!((report.outcome, report.policies.len()), (Applied::Installed, 1), "{report:#?}");
    assert_eq!((report.policies[0].exchanges.len(), report.missing.len()), (29, 0));
    let released = report.released.unwrap();
    let level = released.touched.iter().find(|queue| queue.queue == "nsb.v2.delay-level-00").unwrap();
    assert_eq!((level.dead_letters, level.left), (Some(60), Some(0)), "{level:?}");
    holds(&mut session, "Sales", 20);
    holds(&mut session, &layout.kept(), 40);
    // Messages that are published from now on block nothing.
    publish(&settings, &layout, "Gone", 1, 40..80);
    publish(&settings, &layout, "Sales", 1, 20..25);
    holds(&mut session, "Sales", 25);
    holds(&mut session, &layout.kept(), 80);
    assert_eq!(guard(&settings, &layout, &options()).outcome, Applied::Unchanged);

    let kept = list(&settings).unwrap();
    let [group] = &kept.groups[..] else { panic!("{kept:#?}") };
    assert_eq!((group.cause.app.as_deref(), group.cause.reason.as_str()), (Some("Gone"), "nobody-bound"));
    assert_eq!((group.group.count, group.bound), (80, Some(false)));
    assert_eq!(replay(&settings, &layout).unbound, [("Gone".to_owned(), 80)].into());
    let undone = admin::unguard(&settings, &topology(&settings), &layout, true, &NO_SIGNAL).unwrap();
    assert_eq!(undone.kept.unwrap().messages, Some(80));
    bound(&mut session, &layout, "Gone");
    assert_eq!(replay(&settings, &layout).drained.sent, 80);
    holds(&mut session, "Gone", 80);

    session.delete_queue("Gone").unwrap();
    let undone = admin::unguard(&settings, &topology(&settings), &layout, false, &NO_SIGNAL).unwrap();
    assert_eq!((undone.policies.len(), undone.removed.len()), (1, 2), "{undone:#?}");
    assert_eq!((objects(&settings), policies(&settings)), (before, policies_before));
    let nothing = admin::unguard(&settings, &topology(&settings), &layout, false, &NO_SIGNAL).unwrap();
    assert!(nothing.policies.is_empty() && nothing.removed.is_empty(), "{nothing:#?}");
}

#[test]
fn older_layouts_are_guarded_as_they_are() {
    let (settings, mut session) = empty();
    let (nsb, celery) = (nservicebus_v1(&mut session, 10), classic_kombu(&mut session, 10));
    let doctor = |layout: &Layout| {
        admin::doctor_layout(&settings, &topology(&settings), layout, &DoctorOptions::default())
            .unwrap()
            .findings
    };
    for layout in [&nsb, &celery] {
        let findings = eventually_seen("doctor finds only that", || doctor(layout), |it| it.len() == 1);
        let [open] = &findings[..] else { panic!("{findings:#?}") };
        assert_eq!(open.code, FindingCode::Unguarded);
        assert!(open.what.contains("classic queues") && open.what.contains("dropped silently"), "{open:#?}");
        let report = guard(&settings, layout, &options());
        assert_eq!((report.outcome, report.missing.len()), (Applied::Installed, 0), "{report:#?}");
        eventually_seen("doctor finds nothing", || doctor(layout), Vec::is_empty);
    }
    publish(&settings, &nsb, "Gone", 1, 0..3);
    // Tasks that were retried before.
    for (retries, first) in [(0, 0), (1, 2), (3, 4)] {
        publish(&settings, &celery, &accumulated(&celery, retries, "tasks"), 1, first..first + 2);
    }
    for (layout, app, count) in [(&nsb, "Gone", 3), (&celery, "tasks", 6)] {
        holds(&mut session, &layout.kept(), count);
        let kept =
            Kept::Guarded(layout.clone()).list(&settings, &topology(&settings), 1_000, |_| {}).unwrap();
        let [group] = &kept.groups[..] else { panic!("{kept:#?}") };
        assert_eq!((group.cause.app.as_deref(), group.group.count), (Some(app), u64::from(count)));
        bound(&mut session, layout, app);
        assert_eq!(replay(&settings, layout).drained.sent, u64::from(count));
        holds(&mut session, app, count);
        holds(&mut session, &layout.kept(), 0);
    }
}

#[test]
fn existing_policies_are_merged_or_the_guard_gives_way() {
    let (settings, mut session) = empty();
    let topology = topology(&settings);
    let missing = admin::guard(&settings, &topology, &Layout::nservicebus(), &options());
    assert!(matches!(missing, Err(AdminError::NoLayout { .. })));
    let layout = nservicebus(&mut session, 10);
    let put = |name: &str, pattern: &str, priority: i32, definition: Json| {
        let body =
            json!({"pattern": pattern, "priority": priority, "definition": definition, "apply-to": "all"});
        http(node(), "PUT", &format!("policies/{}/{name}", settings.broker.vhost), &body);
    };
    put("theirs", "^nsb", 3, json!({"max-length": 1_000_000}));
    let before = policies(&settings);
    let delivery = layout.delivery();
    eventually_seen(
        "the other policy applies",
        || applies(&settings, &delivery),
        |policy| *policy == "theirs",
    );
    let report = guard(&settings, &layout, &options());
    assert_eq!(report.policies[0].merged_with.as_deref(), Some("theirs"), "{report:#?}");
    let ours = "delayline-guard-nservicebus+theirs";
    eventually_seen(
        "the policy of the guard applies",
        || applies(&settings, &delivery),
        |policy| *policy == ours,
    );
    // A later change of the other policy has no effect until the guard is set again. `doctor` finds
    // that.
    let stale = || {
        let report = admin::doctor_layout(&settings, &topology, &layout, &DoctorOptions::default()).unwrap();
        report.findings.into_iter().find(|finding| finding.code == FindingCode::GuardStale)
    };
    assert_eq!(stale(), None);
    put("theirs", "^nsb", 3, json!({"max-length": 2_000_000}));
    let found = stale().unwrap();
    assert!(found.what.contains("`theirs`") && found.advice.contains("guard add nservicebus"), "{found:?}");
    assert_eq!(guard(&settings, &layout, &options()).outcome, Applied::Installed);
    assert_eq!(stale(), None);
    put("theirs", "^nsb", 3, json!({"max-length": 1_000_000}));
    guard(&settings, &layout, &options());
    // The other policy still applies to the queues, and unroutable messages are kept.
    publish(&settings, &layout, "Gone", 1, 0..40);
    holds(&mut session, &layout.kept(), 40);
    session.purge_queue(&layout.kept()).unwrap();
    eventually_seen(
        "the guard is removed",
        || admin::unguard(&settings, &topology, &layout, false, &NO_SIGNAL).unwrap(),
        |undone| undone.kept.is_none(),
    );
    assert_eq!(policies(&settings), before);
    eventually_seen(
        "the other policy applies again",
        || applies(&settings, &delivery),
        |policy| *policy == "theirs",
    );

    put("aside", "delivery$", 4, json!({"alternate-exchange": "amq.fanout"}));
    let (objects_before, before) = (objects(&settings), policies(&settings));
    let report = guard(&settings, &layout, &options());
    assert_eq!(report.outcome, Applied::Conflict);
    assert!(
        report.conflicts[0].contains("`aside`") && report.conflicts[0].contains("amq.fanout"),
        "{report:#?}"
    );
    assert_eq!((objects(&settings), policies(&settings)), (objects_before, before));
}

#[test]
fn a_stall_of_kombu_is_cured_and_nothing_is_lost() {
    let (settings, mut session) = empty();
    let layout = Layout::celery(None);
    let keys = kombu(&settings, 10, "tasks", &[5]);
    assert_eq!(keys[&5], layout.key(delayline_core::codec::Delay::from_seconds(5).unwrap(), "tasks"));
    publish(&settings, &layout, "gone", 1, 0..40);
    stuck(&settings, "celery_delayed_0", 40);
    publish(&settings, &layout, "tasks", 3, 0..20);
    stuck(&settings, "celery_delayed_0", 60);
    let report = guard(&settings, &layout, &options());
    assert_eq!((report.outcome, &report.uncovered[..]), (Applied::Installed, &["celery".to_owned()][..]));
    holds(&mut session, "tasks", 20);
    holds(&mut session, &layout.kept(), 40);
    bound(&mut session, &layout, "gone");
    assert_eq!(replay(&settings, &layout).drained.sent, 40);
    holds(&mut session, "gone", 40);
}

/// Due messages of kombu go on to the exchange of the tasks. If no queue is bound there, the
/// alternate exchange of the layout's last exchange does not help, because that exchange has routed
/// the messages.
#[test]
fn kombu_also_stalls_at_the_exchange_of_the_tasks() {
    let (settings, mut session) = empty();
    let layout = Layout::celery(None);
    kombu(&settings, 10, "tasks", &[]);
    bound(&mut session, &layout, "direct");
    let unbind = Binding {
        source: "celery".into(),
        destination: Endpoint::Queue("tasks".into()),
        key: "#.tasks".into(),
    };
    session.unbind(&unbind).unwrap();
    session.unbind(&Binding { key: "tasks".into(), ..unbind.clone() }).unwrap();
    publish(&settings, &layout, "tasks", 1, 0..40);
    stuck(&settings, "celery_delayed_0", 40);
    let mut short = options();
    short.wait = Duration::from_secs(12);
    let report = guard(&settings, &layout, &short);
    assert_eq!(report.uncovered, ["celery"]);
    let left = |report: &GuardReport| {
        let released = report.released.as_ref().unwrap();
        released.touched.iter().find(|queue| queue.queue == "celery_delayed_0").and_then(|queue| queue.left)
    };
    assert_eq!(left(&report), Some(40), "{report:#?}");
    let mut all = options();
    all.targets = true;
    let report = guard(&settings, &layout, &all);
    assert_eq!((left(&report), report.uncovered.len()), (Some(0), 0), "{report:#?}");
    holds(&mut session, &layout.kept(), 40);
    // A later run without `targets` keeps this policy.
    assert_eq!(guard(&settings, &layout, &options()).outcome, Applied::Unchanged);
    publish(&settings, &layout, "direct", 1, 0..5);
    holds(&mut session, "direct", 5);
    session.bind(&unbind).unwrap();
    assert_eq!(replay(&settings, &layout).drained.sent, 40);
    holds(&mut session, "tasks", 40);
}
