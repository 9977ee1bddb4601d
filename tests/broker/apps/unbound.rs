//! Applications whose queue or binding somebody has deleted.

use delayline_admin::{DoctorOptions, Finding, FindingCode};

use super::*;

fn found(settings: &Settings) -> Vec<Finding> {
    let report = admin::doctor(settings, &topology(settings), &DoctorOptions::default()).unwrap();
    report.findings.into_iter().filter(|finding| finding.code == FindingCode::AppUnbound).collect()
}

/// Which applications are listed, whether they are bound, and what would be.
fn listed(settings: &Settings) -> Vec<(String, bool, String)> {
    let apps = admin::list_apps(settings, &topology(settings)).unwrap().apps.into_iter();
    apps.map(|it| (it.app.unwrap_or_default(), it.binding.is_some(), it.bound.to_string())).collect()
}

fn entry(app: &str, bound: bool, queue: &str) -> (String, bool, String) {
    (app.to_owned(), bound, format!("queue `{queue}`"))
}

/// Neither the user nor the queue is called like the application.
fn other_names(settings: &Settings, key: &str) -> AppSpec {
    let queue = AppQueue::new(format!("{key}-in"));
    spec(settings, key, Delivery::Direct(queue))
}

#[test]
fn what_is_left_of_an_application_tells_that_nothing_is_bound_for_it() {
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

    // A binding and another queue as well: it is one finding, which has them all.
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

    // What the advice says mends it.
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
fn nobody_is_taken_for_what_is_left_of_an_application_who_is_not() {
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
    // What only publishes, what has a landing queue whose end is missing, and what another user
    // consumes by now than the one it was registered with.
    added(&settings, &spec(&settings, "web", Delivery::Nothing));
    added(&settings, &spec(&settings, "slow", Delivery::Landing(Target::Queue(AppQueue::new("slow-in")))));
    session.delete_queue("slow-in").unwrap();
    added(&settings, &direct(&settings, "stale"));
    session.delete_queue("stale").unwrap();
    let mut anew = other_names(&settings, "stale");
    anew.user.as_mut().unwrap().name = format!("anew-of-{vhost}");
    added(&settings, &anew);
    // What was given more by hand, among it an exchange; what has no rule for its keys, or one
    // that leaves them open; and what has nothing to do with delays.
    added(&settings, &direct(&settings, "more"));
    let keys = r"^delay(\.[01]{4}){7}\.more\z";
    session.declare_exchange(&Exchange::new("events", ExchangeKind::Topic)).unwrap();
    may("more", r"^delay\z", r"^(events|gone|more)\z", Some(keys));
    may("no-rule", r"^delay\z", r"^gone\z", None);
    may("any-key", r"^delay\z", r"^gone\z", Some(r"^delay\."));
    may("else", r"^events\z", r"^gone\z", Some(r"^delay(\.[01]{4}){7}\.gone\z"));
    assert_eq!(found(&settings), []);
    assert!(listed(&settings).iter().all(|(_, bound, _)| *bound), "{:?}", listed(&settings));
    // One of them with reason.
    session.delete_queue("more").unwrap();
    let findings = found(&settings);
    assert!(findings.len() == 1 && findings[0].apps == ["more"], "{findings:#?}");
}

#[test]
fn who_listens_to_an_application_is_none_of_its_queues() {
    let settings = common::installed(1_000);
    // One that comes before the listener's in every list, and one that comes after it.
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
        assert!(session.queue_depth(name).unwrap().is_none());
        assert!(session.queue_depth(&listener).unwrap().is_some());
        session.unbind(&topology(&settings).app_binding(&app(name), &listener)).unwrap();
    }
    // What is left of those who listened goes with the set.
    admin::uninstall(&settings, &topology(&settings), false).unwrap().unwrap();
    let queues = api("GET", &format!("queues/{}", settings.broker.vhost), &Json::Null);
    assert_eq!(queues, json!([]));
}
