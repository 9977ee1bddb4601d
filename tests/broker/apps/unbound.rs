//! Applications whose queue or binding was deleted by hand.

use delayline_admin::{DoctorOptions, Finding, FindingCode};

use super::*;
use crate::common::Counting;

fn found(settings: &Settings) -> Vec<Finding> {
    let report = admin::doctor(settings, &topology(settings), &DoctorOptions::default()).unwrap();
    report.findings.into_iter().filter(|finding| finding.code == FindingCode::AppUnbound).collect()
}

/// The listed applications: the app key, whether it is bound, and the queue that should be bound.
fn listed(settings: &Settings) -> Vec<(String, bool, String)> {
    let apps = admin::list_apps(settings, &topology(settings)).unwrap().apps.into_iter();
    apps.map(|it| (it.app.unwrap_or_default(), it.binding.is_some(), it.bound.to_string())).collect()
}

fn entry(app: &str, bound: bool, queue: &str) -> (String, bool, String) {
    (app.to_owned(), bound, format!("queue `{queue}`"))
}

/// An application whose user and queue have other names than its app key.
fn other_names(settings: &Settings, key: &str) -> AppSpec {
    let queue = AppQueue::new(format!("{key}-in"));
    spec(settings, key, Delivery::Direct(queue))
}

#[test]
fn remains_of_an_application_show_that_it_is_unbound() {
    let settings = common::installed(1_000);
    let apps = [
        direct(&settings, "billing"),
        other_names(&settings, "eu.mail"),
        other_names(&settings, "stock"),
        direct(&settings, "orders"),
    ];
    apps.iter().for_each(|spec| added(&settings, spec));
    let complete = [
        entry("billing", true, "billing"),
        entry("eu.mail", true, "eu.mail-in"),
        entry("orders", true, "orders"),
        entry("stock", true, "stock-in"),
    ];
    assert_eq!(found(&settings), []);
    assert_eq!(listed(&settings), complete);

    let mut session = Session::open(&settings.broker).unwrap();
    let user = |app: &str| format!("{app}-of-{}", settings.broker.vhost);
    session.delete_queue("billing").unwrap();
    let findings = found(&settings);
    let [one] = findings.as_slice() else { panic!("{findings:#?}") };
    assert_eq!(
        (one.subject.as_str(), one.apps.as_slice()),
        ("application `billing`", &["billing".to_owned()][..])
    );
    assert!(one.what.contains("queue `billing`") && one.what.contains("is missing"), "{one:#?}");
    let remedy = format!("delayline app remove billing --user {}", user("billing"));
    assert!(one.advice.contains("delayline app add billing") && one.advice.contains(&remedy), "{one:#?}");

    // A missing binding and another missing queue belong to the same finding.
    session.unbind(&topology(&settings).app_binding(&app("eu.mail"), "eu.mail-in")).unwrap();
    session.delete_queue("stock-in").unwrap();
    let findings = found(&settings);
    let [one] = findings.as_slice() else { panic!("{findings:#?}") };
    assert_eq!(one.apps, ["billing", "eu.mail", "stock"]);
    let [billing, mail, stock] = one.details.as_slice() else { panic!("{one:#?}") };
    assert!(billing.starts_with("application `billing`") && billing.ends_with("is missing"), "{billing}");
    assert!(mail.contains("queue `eu.mail-in`") && mail.ends_with("is not bound"), "{mail}");
    assert!(stock.contains(&user("stock")) && stock.ends_with("is missing"), "{stock}");
    let incomplete = [
        entry("billing", false, "billing"),
        entry("eu.mail", false, "eu.mail-in"),
        entry("orders", true, "orders"),
        entry("stock", false, "stock-in"),
    ];
    assert_eq!(listed(&settings), incomplete);

    // The advice solves the problem.
    for spec in &apps[..3] {
        added(&settings, spec);
    }
    assert_eq!(found(&settings), []);
    assert_eq!(listed(&settings), complete);
    session.delete_queue("billing").unwrap();
    remove(&settings, &apps[0], RemoveOptions::default()).unwrap();
    assert_eq!(found(&settings), []);
    assert_eq!(listed(&settings), complete[1..]);
}

#[test]
fn a_landing_queue_without_a_binding_is_found_like_any_other() {
    let settings = common::installed(1_000);
    let spec = spec(&settings, "slow", Delivery::Landing(Target::Queue(AppQueue::new("slow-in"))));
    added(&settings, &spec);
    assert_eq!(found(&settings), []);
    let mut session = Session::open(&settings.broker).unwrap();
    session.unbind(&topology(&settings).app_binding(&app("slow"), "delay.landing.slow")).unwrap();
    let findings = found(&settings);
    assert!(findings.len() == 1 && findings[0].apps == ["slow"], "{findings:#?}");
    assert_eq!(listed(&settings), [entry("slow", false, "delay.landing.slow")]);
    added(&settings, &spec);
    assert_eq!(found(&settings), []);
}

#[test]
fn other_users_are_not_mistaken_for_remains_of_an_application() {
    let settings = common::installed(1_000);
    let vhost = &settings.broker.vhost;
    let mut session = Session::open(&settings.broker).unwrap();
    let may = |user: &str, write: &str, read: &str, keys: Option<&str>| {
        let user = format!("{user}-of-{vhost}");
        api("PUT", &format!("users/{user}"), &json!({ "password": PASSWORD, "tags": "" }));
        let rights = json!({ "configure": "", "write": write, "read": read });
        api("PUT", &format!("permissions/{vhost}/{user}"), &rights);
        if let Some(keys) = keys {
            let rule = json!({ "exchange": "delay", "write": keys, "read": "" });
            api("PUT", &format!("topic-permissions/{vhost}/{user}"), &rule);
        }
    };
    // An application that only publishes, an application with a landing queue whose target is
    // missing, and an application that was registered again with another user.
    added(&settings, &spec(&settings, "web", Delivery::Nothing));
    added(&settings, &spec(&settings, "slow", Delivery::Landing(Target::Queue(AppQueue::new("slow-in")))));
    session.delete_queue("slow-in").unwrap();
    added(&settings, &direct(&settings, "stale"));
    session.delete_queue("stale").unwrap();
    let mut anew = other_names(&settings, "stale");
    anew.user.as_mut().unwrap().name = format!("anew-of-{vhost}");
    added(&settings, &anew);
    // Users with additional permissions, for example on an exchange; users without a rule for their
    // keys, or with a rule for all keys; and a user that does not use the set.
    added(&settings, &direct(&settings, "more"));
    let keys = r"^delay(\.[01]{4}){7}\.more\z";
    session.declare_exchange(&Exchange::new("events", ExchangeKind::Topic)).unwrap();
    may("more", r"^delay\z", r"^(events|gone|more)\z", Some(keys));
    may("no-rule", r"^delay\z", r"^gone\z", None);
    may("any-key", r"^delay\z", r"^gone\z", Some(r"^delay\."));
    may("else", r"^events\z", r"^gone\z", Some(r"^delay(\.[01]{4}){7}\.gone\z"));
    assert_eq!(found(&settings), []);
    assert!(listed(&settings).iter().all(|(_, bound, _)| *bound), "{:?}", listed(&settings));
    // A real case among them: its queue is deleted.
    session.delete_queue("more").unwrap();
    let findings = found(&settings);
    assert!(findings.len() == 1 && findings[0].apps == ["more"], "{findings:#?}");
}

#[test]
fn a_listener_is_not_mistaken_for_the_applications_queue() {
    let settings = common::installed(1_000);
    // In lists, one app key comes before the listener's queue, and the other comes after it.
    for name in ["billing", "orders"] {
        let spec = direct(&settings, name);
        added(&settings, &spec);
        let mut session = Session::open(&settings.broker).unwrap();
        let names = topology(&settings).names().clone();
        let listener = names.listener(name);
        let arguments = [("x-queue-type".to_owned(), "quorum".into())];
        session.declare_queue(&Queue::new(listener.clone()).with_arguments(arguments)).unwrap();
        session.bind(&topology(&settings).app_binding(&app(name), &listener)).unwrap();

        assert_eq!(add(&settings, &spec).outcome, Applied::Unchanged, "{name}");
        assert_eq!(listed(&settings), [entry(name, true, name)]);
        assert_eq!(admin::queue_of_app(&settings, &topology(&settings), &app(name)).as_deref(), Some(name));
        let removed = remove(&settings, &spec, RemoveOptions::default()).unwrap();
        assert!(removed.removed.contains(&format!("queue `{name}`")), "{removed:?}");
        assert!(session.counts(name).unwrap().is_none());
        assert!(session.counts(&listener).unwrap().is_some());
        session.unbind(&topology(&settings).app_binding(&app(name), &listener)).unwrap();
    }
    // Removing the set also removes the listeners' queues.
    admin::uninstall(&settings, &topology(&settings), false, &crate::common::NO_SIGNAL).unwrap().unwrap();
    let queues = api("GET", &format!("queues/{}", settings.broker.vhost), &Json::Null);
    assert_eq!(queues, json!([]));
}
