//! What a journal does not have, because of its limits of age and size or for another reason.

use super::*;

/// Sets what the application's journal keeps, as `app add` says.
fn keep(settings: &Settings, max_age: &str, max_bytes: u64) {
    let path = format!("policies/{}/retention-delay.journal.billing", settings.broker.vhost);
    let definition = json!({ "max-age": max_age, "max-length-bytes": max_bytes });
    let policy = json!({
        "pattern": r"^delay\.journal\.billing$", "apply-to": "queues", "priority": 1, "definition": definition,
    });
    common::http(&common::shared_node(), "PUT", &path, &policy);
}

#[test]
fn what_a_journal_keeps_is_changed_by_a_policy() {
    let settings = installed(1_000);
    let topology = topology(&settings);
    registered(&settings);
    assert_eq!(found_by_doctor(&settings), [""; 0]);
    // With other limits it is in the way, and nothing is changed.
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
    eventually("it is as it should be", || add().outcome == Applied::Unchanged);
    let shown = || {
        let list = admin::list_apps(&settings, &topology).unwrap();
        let journal = list.apps[0].recall.as_ref().and_then(|it| it.journal.clone()).expect("a journal");
        (journal.max_age, journal.max_bytes)
    };
    assert_eq!(shown(), (Some("604800s".into()), Some(2_000_000)));
    assert_eq!(found_by_doctor(&settings), ["journal-limited"]);
    assert_eq!(admin::verify(&settings, &topology).unwrap().findings, []);
}

/// Publishes 600 messages of 10 kB, with copies.
fn publish_600(router: &Router) {
    let mut pipeline = router.pipeline();
    for number in 0..600 {
        let mut large = message(&format!("m-{number}"), 3_600).journalled();
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
fn what_nobody_can_list_is_said() {
    let settings = installed(1_000);
    let journal = JournalSettings::default().with_max_bytes(NonZeroU64::new(1_000_000).unwrap());
    added(&settings, &journalled(&settings, "billing", journal));
    assert_eq!(listed(&settings).journal.read, 0);
    let bcc = json!({ "headers": { "BCC": ["journal.billing"] } });
    let key = |id: &str| format!("delay.0000.0000.0000.0000.1110.0001.0000.billing.~.{id}");
    raw::publish(
        &settings,
        [
            // In the journal alone.
            raw::message("delay", "journal.billing", "forged", &json!({})),
            raw::message("delay", "delay.not.a.key", "malformed", &bcc),
            raw::message("delay", &key("undated"), "undated", &bcc),
        ],
    );
    let list = listed(&settings);
    assert_eq!((list.messages.len(), list.undated, list.journal.odd, list.journal.cut_off), (0, 1, 2, 0));
    println!("what is odd is counted");
    let by_id = ScheduleFilter::default().with_id(Some("undated".parse().unwrap()));
    assert_eq!(states(&listed_by(&settings, &by_id, 9)), [("undated", ScheduleState::Undated)]);

    let router = settings.router().connect().unwrap();
    publish_600(&router);
    println!("many large ones follow");
    let mut list = listed(&settings);
    println!("they are listed");
    eventually("the oldest are cut off", || {
        // Files are dropped as others begin.
        let mut large = message("more", 3_600).journalled();
        large.body = vec![b'x'; 120_000];
        send(&router, large);
        list = listed(&settings);
        list.journal.cut_off > 0
    });
    let known = list.messages.len() as u64 + list.more;
    assert_eq!(known, list.journal.read, "{:?}", list.journal);
    eventually("it is said", || found_by_doctor(&settings) == ["journal-too-short"]);
    // A picture does not wait long for the management API.
    let recalls = || common::status(&settings).recalls;
    let recalls = common::eventually_seen("they are in the picture", recalls, Option::is_some).unwrap();
    let journal = recalls[0].journal.clone().unwrap();
    assert!(journal.copies > 0 && journal.cut_off.is_none(), "{journal:?}");
}

#[test]
fn a_journal_that_cannot_hold_a_message_is_empty_and_says_that_something_was_cut_off() {
    let settings = installed(1_000);
    let journal = JournalSettings::default().with_max_bytes(NonZeroU64::new(1_000_000).unwrap());
    added(&settings, &journalled(&settings, "billing", journal));
    let router = settings.router().connect().unwrap();
    let mut large = message("large", 3_600).journalled();
    large.body = vec![b'x'; 1_500_000];
    send(&router, large);
    // Its file goes once the next one is begun.
    let emptied = || listed(&settings).journal;
    let journal = common::eventually_seen("it is cut off", emptied, |journal| journal.emptied);
    assert_eq!((journal.read, journal.cut_off), (0, 0), "{journal:?}");
    eventually("doctor says it", || found_by_doctor(&settings) == ["journal-too-short"]);
    let stats = Arc::new(admin::RecallStats::default());
    stats.glance(&settings, &topology(&settings), PATIENCE, &AtomicBool::new(false)).unwrap();
    let glance = stats.counts().journals["billing"];
    assert_eq!((glance.cut_off, glance.schedule.map(|it| it.waiting)), (None, Some(0)), "{glance:?}");
    // What comes later is in it, and how much is missing is known.
    send(&router, message("small", 3_600).journalled());
    let list = listed(&settings);
    assert_eq!(states(&list), [("small", ScheduleState::Waiting)]);
    assert!(list.journal.cut_off > 0 && !list.journal.emptied, "{:?}", list.journal);
}
