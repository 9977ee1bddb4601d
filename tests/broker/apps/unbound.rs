//! Applications whose queue or binding somebody has deleted.

use delayline_admin::{DoctorOptions, FindingCode};

use super::*;

#[test]
fn what_is_left_of_an_application_tells_that_nothing_is_bound_for_it() {
    let settings = common::installed(1_000);
    let vhost = &settings.broker.vhost;
    let other_queue = |key: &str, queue: &str| spec(&settings, key, Delivery::Direct(AppQueue::new(queue)));
    let apps = [
        direct(&settings, "billing"),
        direct(&settings, "orders"),
        other_queue("mail", "mail-in"),
        other_queue("stock", "stock-in"),
        spec(&settings, "web", Delivery::Nothing),
    ];
    apps.iter().for_each(|spec| added(&settings, spec));
    let user = |app: &str| format!("{app}-of-{vhost}");
    // A user of something else, for which a queue is missing as well.
    api("PUT", &format!("users/{}", user("else")), &json!({ "password": PASSWORD, "tags": "" }));
    let rights = json!({ "configure": "", "write": "", "read": r"^elsewhere\z" });
    api("PUT", &format!("permissions/{vhost}/{}", user("else")), &rights);
    let found = || {
        let report = admin::doctor(&settings, &topology(&settings), &DoctorOptions::default()).unwrap();
        let unbound = report.findings.into_iter().filter(|it| it.code == FindingCode::AppUnbound);
        unbound.collect::<Vec<_>>()
    };
    let list = || -> Vec<_> {
        let apps = admin::list_apps(&settings, &topology(&settings)).unwrap().apps.into_iter();
        apps.map(|it| (it.app.unwrap_or_default(), it.binding.is_some(), it.bound.to_string())).collect()
    };
    let entry = |app: &str, bound: bool, queue: &str| (app.to_owned(), bound, format!("queue `{queue}`"));
    let complete = [
        entry("billing", true, "billing"),
        entry("mail", true, "mail-in"),
        entry("orders", true, "orders"),
        entry("stock", true, "stock-in"),
    ];
    assert_eq!(found(), []);
    assert_eq!(list(), complete);

    // Two queues, one of which has the name of its application, and one binding.
    let mut session = Session::open(&settings.broker).unwrap();
    for queue in ["billing", "mail-in"] {
        session.delete_queue(queue).unwrap();
    }
    session.unbind(&topology(&settings).app_binding(&app("orders"), "orders")).unwrap();
    let findings = found();
    let [missing, unbound] = findings.as_slice() else { panic!("{findings:#?}") };
    assert_eq!(
        (missing.subject.as_str(), &missing.apps[..]),
        ("queue `billing`, queue `mail-in`", &["billing".to_owned()][..])
    );
    assert!(
        missing.what.contains("they are missing") && missing.what.contains(&user("mail")),
        "{missing:#?}"
    );
    assert_eq!(missing.details.len(), 2, "{missing:#?}");
    assert_eq!((unbound.subject.as_str(), &unbound.apps[..]), ("queue `orders`", &["orders".to_owned()][..]));
    assert!(unbound.what.contains("it is not bound"), "{unbound:#?}");
    let incomplete = [
        entry("", false, "mail-in"),
        entry("billing", false, "billing"),
        entry("orders", false, "orders"),
        entry("stock", true, "stock-in"),
    ];
    assert_eq!(list(), incomplete);

    // What the advice says mends it.
    for spec in &apps[..3] {
        added(&settings, spec);
    }
    assert_eq!(found(), []);
    assert_eq!(list(), complete);
    session.delete_queue("billing").unwrap();
    remove(&settings, &apps[0], RemoveOptions::default()).unwrap();
    assert_eq!(found(), []);
    assert_eq!(list(), complete[1..]);
}
