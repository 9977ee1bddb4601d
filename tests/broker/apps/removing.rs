//! Removing applications.

use delayline_amqp::Publisher;

use super::*;
use crate::common::Counting;

#[test]
fn removing_waits_for_messages_and_keeps_foreign_objects() {
    let settings = common::installed(1_000);
    let spec = direct(&settings, "billing");
    added(&settings, &spec);
    publish(&settings, "billing", 3);
    let mut session = Session::open(&settings.broker).unwrap();
    common::eventually("the messages are in the queue", || {
        session.counts("billing").unwrap().unwrap().ready == 3
    });
    let before = picture(&settings);
    let refusal = remove(&settings, &spec, RemoveOptions::default()).unwrap_err();
    assert!(refusal.waiting.iter().any(|it| it.queue == "billing" && it.messages >= Some(3)), "{refusal:?}");
    assert_eq!(picture(&settings), before);
    let report = remove(&settings, &spec, RemoveOptions { keep_queue: true, ..Default::default() }).unwrap();
    assert!(report.left[0].contains("as asked"), "{report:?}");
    assert_eq!(session.counts("billing").unwrap().unwrap().ready, 3);

    // The application is registered again with the waiting messages. Then its queue gets another
    // binding by hand.
    added(&settings, &spec);
    let binding = Binding {
        source: "amq.topic".into(),
        destination: Endpoint::Queue("billing".into()),
        key: "other".into(),
    };
    session.bind(&binding).unwrap();
    let consumer = session.consume("billing", 10).unwrap();
    let report = remove(&settings, &spec, RemoveOptions::default()).unwrap();
    assert!(report.left[0].contains("amq.topic"), "{report:?}");
    drop(consumer);

    // Permissions that `app add` did not set are kept.
    let user = spec.user.as_ref().unwrap().name.clone();
    added(&settings, &spec);
    let path = format!("permissions/{}/{user}", settings.broker.vhost);
    api("PUT", &path, &json!({ "configure": "^mine", "write": ".*", "read": ".*" }));
    let before = picture(&settings);
    let refusal = remove(&settings, &spec, RemoveOptions { force: true, ..Default::default() }).unwrap_err();
    assert!(refusal.conflicts[0].contains("configure `^mine`"), "{refusal:?}");
    assert_eq!(picture(&settings), before);
}

#[test]
fn messages_that_arrive_during_a_removal_are_not_lost() {
    let settings = common::installed(1_000);
    let spec = direct(&settings, "billing");
    added(&settings, &spec);
    let before = picture(&settings);
    // It is connected, since there are only some seconds for the message.
    let mut publisher = Publisher::open(&settings.broker).unwrap();
    let removing = {
        let (settings, spec) = (settings.clone(), spec.clone());
        std::thread::spawn(move || remove(&settings, &spec, RemoveOptions::default()))
    };
    let bindings = format!("exchanges/{}/delay.dispatch/bindings/source", settings.broker.vhost);
    common::eventually("the application is unbound", || {
        api("GET", &bindings, &json!(null)).as_array().unwrap().is_empty()
    });
    let (properties, headers) = Default::default();
    publisher.publish("", "billing".into(), properties, headers, b"late");
    publisher.next_within(common::PATIENCE).unwrap();
    let refusal = removing.join().unwrap().unwrap_err();
    assert!(refusal.unbound_meanwhile && refusal.waiting[0].messages == Some(1), "{refusal:?}");
    assert_eq!(picture(&settings), before);
}

#[test]
fn an_administrator_is_not_deleted_with_an_application() {
    let settings = common::installed(1_000);
    let mut spec = direct(&settings, "billing");
    added(&settings, &spec);
    let name = format!("admin-of-{}", settings.broker.vhost);
    api("PUT", &format!("users/{name}"), &json!({ "password": PASSWORD, "tags": "administrator" }));
    spec.user.as_mut().unwrap().name = name.clone();
    let before = picture(&settings);
    let options = RemoveOptions { delete_user: true, force: true, ..RemoveOptions::default() };
    let refusal = remove(&settings, &spec, options).unwrap_err();
    assert!(refusal.conflicts[0].contains("administrator"), "{refusal:?}");
    assert_eq!(picture(&settings), before);
}

#[test]
fn a_queue_that_another_application_still_uses_is_kept() {
    let settings = common::installed(1_000);
    let first = direct(&settings, "first");
    added(&settings, &first);
    let queue = AppQueue { existing: true, ..AppQueue::new("first") };
    let second = spec(&settings, "second", Delivery::Landing(Target::Queue(queue)));
    added(&settings, &second);
    let report = remove(&settings, &first, RemoveOptions::default()).unwrap();
    assert!(report.left.iter().any(|it| it.contains("`delay.landing.second`")), "{report:?}");
    publish(&settings, "second", 1);
    let mut session = Session::open(&settings.broker).unwrap();
    common::eventually("the message is in the queue", || {
        session.queue_depth("first").unwrap().is_some_and(|depth| depth.ready == Some(1))
    });
    session.purge_queue("first").unwrap();
    // The own landing queue of the last application is no reason to keep it.
    let report = remove(&settings, &second, RemoveOptions::default()).unwrap();
    assert!(report.removed.contains(&"queue `first`".to_owned()), "{report:?}");
}
