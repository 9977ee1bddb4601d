//! Messages that are missing in a journal, because of its limits or for another reason.

use super::*;

/// Sets the limits of the application's journal by the policy that `app add` recommends.
fn keep(settings: &Settings, max_age: &str, max_bytes: u64) {
    let path = format!("policies/{}/retention-delay.journal.billing", settings.broker.vhost);
    let definition = json!({ "max-age": max_age, "max-length-bytes": max_bytes });
    let policy = json!({
        "pattern": r"^delay\.journal\.billing$", "apply-to": "queues", "priority": 1, "definition": definition,
    });
    common::http(&common::shared_node(), "PUT", &path, &policy);
}

#[test]
fn the_limits_of_a_journal_are_changed_by_a_policy() {
    let settings = installed(1_000);
    let topology = topology(&settings);
    registered(&settings);
    assert_eq!(found_by_doctor(&settings), [""; 0]);
    // Other limits are a conflict, and nothing is changed.
    let week = JournalSettings::default()
        .with_max_age("7d".parse().unwrap())
        .with_max_bytes(NonZeroU64::new(2_000_000).unwrap());
    let other = journalled(&settings, "billing", week);
    let add = || admin::add_app(&settings, &topology, &other, true, false).unwrap();
    let report = add();
    assert_eq!(report.outcome, Applied::Conflict, "{report:?}");
    let command = r#"'^delay\.journal\.billing$' '{"max-age":"604800s","max-length-bytes":2000000}'"#;
    assert!(report.conflicts[0].contains("x-max-") && report.conflicts[0].contains(command), "{report:?}");
    keep(&settings, "604800s", 2_000_000);
    eventually("the journal has the new limits", || add().outcome == Applied::Unchanged);
    let shown = || {
        let list = admin::list_apps(&settings, &topology).unwrap();
        let journal = list.apps[0].recall.as_ref().and_then(|it| it.journal.clone()).expect("a journal");
        (journal.max_age, journal.max_bytes)
    };
    assert_eq!(shown(), (Some("604800s".into()), Some(2_000_000)));
    assert_eq!(found_by_doctor(&settings), ["journal-limited"]);
    assert_eq!(admin::verify(&settings, &topology).unwrap().findings, []);
}

/// Publishes 600 messages of 10 kB.
fn publish_600(router: &Router) {
    let mut pipeline = router.pipeline();
    for number in 0..600 {
        let mut large = message(&format!("m-{number}"), 3_600);
        large.body = vec![b'x'; 10_000];
        if let Some(outcome) = pipeline.push(number, large) {
            outcome.result.unwrap();
        }
    }
    assert!(pipeline.all(|outcome| outcome.result.is_ok()));
}

#[test]
fn by_a_policy_a_journal_keeps_more_than_it_was_made_for() {
    let settings = installed(1_000);
    let journal = JournalSettings::default().with_max_bytes(NonZeroU64::new(1_000_000).unwrap());
    added(&settings, &journalled(&settings, "billing", journal));
    keep(&settings, "90D", 100_000_000);
    let kept = || {
        let queue = http(&settings, "queues");
        queue.contains("retention-delay.journal.billing")
    };
    eventually("the policy applies", kept);
    publish_600(&settings.router().connect().unwrap());
    let list = listed(&settings);
    assert_eq!((list.journal.read, list.journal.cut_off), (600, 0), "{:?}", list.journal);
}

#[test]
fn unlisted_messages_are_reported() {
    let settings = installed(1_000);
    let journal = JournalSettings::default().with_max_bytes(NonZeroU64::new(1_000_000).unwrap());
    added(&settings, &journalled(&settings, "billing", journal));
    assert_eq!(listed(&settings).journal.read, 0);
    let mut session = Session::open(&settings.broker).unwrap();
    let destination = Endpoint::Queue("delay.journal.billing".into());
    session.bind(&Binding { source: "delay".into(), destination, key: "odd.#".into() }).unwrap();
    raw::publish(&settings, [raw::message("delay", "odd.key", "malformed", &json!({}))]);
    let list = || listed(&settings);
    let list = common::eventually_seen("it is in the journal", list, |list| list.journal.odd == 1);
    assert_eq!((list.messages.len(), list.journal.cut_off), (0, 0));

    let router = settings.router().connect().unwrap();
    publish_600(&router);
    println!("600 large messages are published");
    let mut list = listed(&settings);
    println!("the large messages are listed");
    eventually("the oldest are cut off", || {
        // The stream drops a file when it starts another.
        let mut large = message("more", 3_600);
        large.body = vec![b'x'; 120_000];
        send(&router, large);
        list = listed(&settings);
        list.journal.cut_off > 0
    });
    let known = list.messages.len() as u64 + list.more;
    assert_eq!(known, list.journal.read - list.journal.odd, "{:?}", list.journal);
    eventually("doctor reports the short journal", || found_by_doctor(&settings) == ["journal-too-short"]);
}

#[test]
fn a_journal_that_cannot_hold_a_message_is_empty_and_reports_the_loss() {
    let settings = installed(1_000);
    let journal = JournalSettings::default().with_max_bytes(NonZeroU64::new(1_000_000).unwrap());
    added(&settings, &journalled(&settings, "billing", journal));
    let router = settings.router().connect().unwrap();
    let mut large = message("large", 3_600);
    large.body = vec![b'x'; 1_500_000];
    send(&router, large);
    // The stream drops this file when it starts the next one.
    let emptied = || listed(&settings).journal;
    let journal = common::eventually_seen("the message is cut off", emptied, |journal| journal.emptied);
    assert_eq!((journal.read, journal.cut_off), (0, 0), "{journal:?}");
    eventually("doctor reports the short journal", || found_by_doctor(&settings) == ["journal-too-short"]);
    // Later messages are in the journal, and the number of missing ones is known.
    send(&router, message("small", 3_600));
    let list = listed(&settings);
    assert_eq!(states(&list), [("small", ScheduleState::Waiting)]);
    assert!(list.journal.cut_off > 0 && !list.journal.emptied, "{:?}", list.journal);
}
