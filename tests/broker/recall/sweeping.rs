//! Removing recalls of messages that are no longer in the set.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use delayline_admin::{self as admin, RecallCounts, RecallStats, SweepOptions, SweepReport, Sweeper};

use super::*;

fn sweep(settings: &Settings, options: &SweepOptions) -> SweepReport {
    admin::sweep_recalls(settings, &topology(settings), options, &AtomicBool::new(false)).unwrap()
}

/// Waits until the management API shows so many recalls and notes: it may show a binding a moment later.
fn are_shown(settings: &Settings, count: usize) {
    eventually_seen("the API shows the recalls", || bound(settings), |bound| bound.len() == count);
}

/// The recalls, without their notes.
fn recalls(settings: &Settings) -> BTreeSet<String> {
    bound(settings).into_iter().filter(|key| key != "due").collect()
}

#[test]
fn a_recall_is_removed_once_its_message_has_expired_and_not_before() {
    let (settings, _inbox, router, recaller) = offered();
    let over: Vec<_> = (0..3).map(|id| handle(&send(&router, message(&format!("over-{id}"), 4)))).collect();
    let waiting = handle(&send(&router, message("waiting", 3_600)));
    for handle in over.iter().chain([&waiting]) {
        // These handles have no due time, so no recall is too late.
        let unknown = Handle::new(handle.routing_key().clone(), None).unwrap();
        assert_eq!(recaller.recall(&unknown).unwrap(), Answer::Uncertain);
    }
    let names = Names::new(settings.topology.set.clone());
    let odd = Binding { key: "no key".into(), ..Binding::recalling(&names, waiting.routing_key()) };
    let mut session = Session::open(&settings.broker).unwrap();
    session.bind(&odd).unwrap();
    are_shown(&settings, 5);

    // The first run notes when each recall can be removed.
    let dry = sweep(&settings, &SweepOptions::default().dry_run());
    assert_eq!((dry.recalls, dry.noted, dry.swept, dry.odd), (5, 4, 0, 1), "{dry:?}");
    assert_eq!(bound(&settings).len(), 5);
    let first = sweep(&settings, &SweepOptions::default());
    assert_eq!((first.recalls, first.noted, first.swept, first.odd), (5, 4, 0, 1), "{first:?}");
    assert_eq!((bound(&settings).len(), recalls(&settings).len()), (9, 5));
    let pending = admin::pending_recalls(&settings, &topology(&settings), Some(&app("billing"))).unwrap();
    let latest =
        pending.pending.iter().find(|it| it.handle == waiting.routing_key().encode()).unwrap().due.unwrap();
    let left = latest.duration_since(waiting.due().unwrap());
    assert!(left >= SignedDuration::ZERO && left < SignedDuration::from_mins(10), "{left:?}");
    // The binding lists still work: arguments on a binding whose key contains `~` would break them.
    assert_eq!(admin::verify(&settings, &topology(&settings)).unwrap().findings, []);
    let second = sweep(&settings, &SweepOptions::default());
    assert_eq!((second.noted, second.swept), (0, 0), "{second:?}");

    // This message was due in 1970. Its recall stays until the node has been up for an hour: a
    // message that fell due while the node was down may still be on its way.
    let note = |handle: &str| {
        let arguments = [("handle".to_owned(), handle.into()), ("due".to_owned(), 1_000.into())].into();
        let key = "due".into();
        (Binding { key, ..Binding::recalling(&names, waiting.routing_key()) }, arguments)
    };
    let old = "delay.0000.0000.0000.0000.0000.0000.0001.billing.~.old";
    let (binding, arguments) = note(old);
    session.bind(&Binding { key: old.into(), ..binding.clone() }).unwrap();
    session.bind_with(&binding, &arguments).unwrap();
    are_shown(&settings, 11);
    let young = sweep(&settings, &SweepOptions::default());
    assert_eq!((young.swept, young.left), (0, 1), "{young:?}");
    assert!(young.postponed.is_some_and(|reason| reason.contains("has not been up")));

    let soon = SweepOptions::default().with_grace(Duration::from_millis(1));
    eventually("four notes have expired", || sweep(&settings, &soon.clone().dry_run()).swept == 4);
    let swept = sweep(&settings, &soon);
    assert_eq!((swept.swept, swept.noted, swept.left), (4, 0, 0), "{swept:?}");
    assert_eq!(recalls(&settings), [waiting.routing_key().encode(), odd.key].into());
    assert_eq!(bound(&settings).len(), 3, "one note is left");
    assert_eq!(sweep(&settings, &soon).swept, 0);
}

#[test]
fn the_note_about_a_recall_is_invalid_once_it_is_undone() {
    let (settings, _inbox, router, recaller) = offered();
    let handle = handle(&send(&router, message("back-and-forth", 3_600)));
    let pending =
        || admin::pending_recalls(&settings, &topology(&settings), Some(&app("billing"))).unwrap().pending;
    recaller.recall(&handle).unwrap();
    are_shown(&settings, 1);
    assert_eq!(sweep(&settings, &SweepOptions::default()).noted, 1);
    are_shown(&settings, 2);
    let first = pending()[0].due.expect("a note");
    // A concurrent sweep has made another note.
    let arguments = [
        ("handle".to_owned(), handle.routing_key().encode().into()),
        ("due".to_owned(), 4_000_000_000_000_i64.into()),
    ];
    let names = Names::new(settings.topology.set.clone());
    let note = Binding { key: "due".into(), ..Binding::recalling(&names, handle.routing_key()) };
    Session::open(&settings.broker).unwrap().bind_with(&note, &arguments.into()).unwrap();
    are_shown(&settings, 3);
    assert!(pending()[0].due.expect("a note") > first);
    recaller.undo(&handle).unwrap();
    eventually_seen("the recall is undone", pending, Vec::is_empty);

    let dry = sweep(&settings, &SweepOptions::default().dry_run());
    assert_eq!((dry.recalls, dry.undone, bound(&settings).len()), (0, 1, 2), "{dry:?}");
    let swept = sweep(&settings, &SweepOptions::default());
    assert_eq!((swept.recalls, swept.undone, bound(&settings).len()), (0, 1, 0), "{swept:?}");
    // The next recall of the same key is for a message that may be due later.
    recaller.recall(&handle).unwrap();
    are_shown(&settings, 1);
    let again = sweep(&settings, &SweepOptions::default());
    assert_eq!((again.recalls, again.noted, again.undone), (1, 1, 0), "{again:?}");
    assert!(pending()[0].due.expect("a note") > first);
}

#[test]
fn a_sweeper_removes_and_counts_expired_recalls() {
    let (settings, _inbox, router, recaller) = offered();
    let over = handle(&send(&router, message("over", GOOD_TIME)));
    let waiting = handle(&send(&router, message("waiting", 3_600)));
    for handle in [&over, &waiting] {
        assert_eq!(recaller.recall(handle).unwrap(), Answer::InTime);
    }
    let stats = Arc::new(RecallStats::default());
    assert_eq!(stats.counts(), RecallCounts::default());
    let stop = AtomicBool::new(false);
    // No recall has been expired for an hour, so this sweeper removes none.
    let patient = Sweeper::new(settings.clone(), Arc::clone(&stats)).every(Duration::from_millis(10));
    let hasty = Sweeper::new(settings.clone(), Arc::clone(&stats))
        .with(SweepOptions::default().with_grace(Duration::from_millis(1)))
        .every(Duration::from_millis(10));
    thread::scope(|scope| {
        let first = scope.spawn(|| patient.run(&stop));
        eventually("the recalls are counted", || {
            stats.counts().apps.get("billing").is_some_and(|it| it.pending == 2)
        });
        eventually("the notes are made", || bound(&settings).len() == 4);
        eventually("one recalled message has arrived", || recalled(&settings) == 1);
        let seen = stats.counts().at;
        eventually("the sweeper has looked again", || stats.counts().at > seen);
        assert_eq!(stats.counts().apps["billing"].swept, 0);
        stop.store(true, Ordering::Relaxed);
        first.join().unwrap();
        stop.store(false, Ordering::Relaxed);
        scope.spawn(|| hasty.run(&stop));
        eventually("one recall is removed", || stats.counts().apps["billing"].swept == 1);
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(recalls(&settings), [waiting.routing_key().encode()].into());
    let counts = stats.counts();
    assert_eq!((counts.apps["billing"].pending, counts.apps["billing"].over), (1, 0), "{counts:?}");
    // Without the management API, it reports that it can do nothing, and ends.
    let mut blind = settings.clone();
    blind.management = None;
    Sweeper::new(blind, stats).run(&stop);
}

#[test]
fn doctor_judges_how_many_recalls_are_pending() {
    let (mut settings, _inbox, router, recaller) = offered();
    settings.max_recalls = "billing=3".parse().unwrap();
    let mut found = |count: usize| {
        let handle = handle(&send(&router, message(&format!("m-{count}"), 3_600)));
        recaller.recall(&handle).unwrap();
        are_shown(&settings, count);
        let report =
            admin::doctor(&settings, &topology(&settings), &admin::DoctorOptions::default()).unwrap();
        let codes = report.findings.iter().filter(|it| it.subject == "app key `billing`");
        codes.map(|it| it.code.as_str()).filter(|code| code.starts_with("recalls")).collect::<Vec<_>>()
    };
    let all: Vec<_> = (1..=4).map(&mut found).collect();
    let near = vec!["recalls-near-quota"];
    assert_eq!(all, [vec![], vec![], near, vec!["recalls-over-quota"]]);
}

#[test]
fn one_application_hides_no_recalls_of_the_others() {
    let (settings, _inbox, router, recaller) = offered();
    let topology = topology(&settings);
    Inbox::open(&settings, "mail");
    offer(&settings, "mail");
    let waiting = handle(&send(&router, message("waiting", 3_600)));
    recaller.recall(&waiting).unwrap();
    // Any user that may recall messages of `mail` can do this.
    let theirs: RoutingKey = "delay.0000.0000.0000.0000.0000.0000.0001.mail.~.x".parse().unwrap();
    let binding = Binding::recalling(topology.names(), &theirs);
    let arguments = [("due".to_owned(), 1.into())].into();
    let mut session = Session::open(&settings.broker).unwrap();
    session.bind_with(&binding, &arguments).unwrap();

    let says = |why: &str| why.contains("`mail`") && why.contains("Bind without arguments");
    let swept = sweep(&settings, &SweepOptions::default());
    assert_eq!((swept.recalls, swept.noted), (1, 1), "{swept:?}");
    assert!(swept.unchecked.len() == 1 && says(&swept.unchecked["mail"]), "{swept:?}");
    let pending = admin::pending_recalls(&settings, &topology, None).unwrap();
    assert!(pending.pending.len() == 1 && says(&pending.unchecked[0]), "{pending:?}");
    let refused = admin::pending_recalls(&settings, &topology, Some(&app("mail"))).unwrap_err();
    assert!(says(&refused.to_string()), "{refused}");
    let list = admin::list_apps(&settings, &topology).unwrap();
    assert!(list.unchecked.iter().any(|why| says(why)), "{list:#?}");
    let doctor = admin::doctor(&settings, &topology, &admin::DoctorOptions::default()).unwrap();
    assert!(doctor.unchecked.iter().any(|why| says(why)), "{doctor:#?}");
    let stats = RecallStats::default();
    let told = stats.count(&settings, &topology).unwrap_err().to_string();
    assert!(says(&told) && stats.counts().apps["billing"].pending == 1, "{told}");

    session.unbind_with(&binding, &arguments).unwrap();
    assert_eq!(sweep(&settings, &SweepOptions::default()).unchecked.len(), 0);
}
