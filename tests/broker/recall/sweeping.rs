//! Removing the recalls of messages that are over.

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

/// Recalls, without the notes about them.
fn recalls(settings: &Settings) -> BTreeSet<String> {
    bound(settings).into_iter().filter(|key| key != "due").collect()
}

#[test]
fn a_recall_is_swept_up_once_its_message_is_over_and_not_before() {
    let (settings, _inbox, router, mut recaller) = offered();
    let over: Vec<_> = (0..3).map(|id| handle(&send(&router, message(&format!("over-{id}"), 4)))).collect();
    let waiting = handle(&send(&router, message("waiting", 3_600)));
    for handle in over.iter().chain([&waiting]) {
        // Nobody says when they are due, so none is too late.
        let unknown = Handle::new(handle.routing_key().clone(), None).unwrap();
        assert_eq!(recaller.recall(&unknown).unwrap(), Answer::Uncertain);
    }
    let names = Names::new(settings.topology.set.clone());
    let odd = Binding { key: "no key".into(), ..Binding::recalling(&names, waiting.routing_key()) };
    let mut session = Session::open(&settings.broker).unwrap();
    session.bind(&odd).unwrap();

    // At first it is noted when they can go.
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
    // Lists of bindings still work: arguments on a key with `~` would break them.
    assert_eq!(admin::verify(&settings, &topology(&settings)).unwrap().findings, []);
    let second = sweep(&settings, &SweepOptions::default());
    assert_eq!((second.noted, second.swept), (0, 0), "{second:?}");

    // One whose message was due in 1970 stays while the node has not been up for the hour:
    // what fell due while it was down may still be on its way.
    let note = |handle: &str| {
        let arguments = [("handle".to_owned(), handle.into()), ("due".to_owned(), 1_000.into())].into();
        let key = "due".into();
        (Binding { key, ..Binding::recalling(&names, waiting.routing_key()) }, arguments)
    };
    let old = "delay.0000.0000.0000.0000.0000.0000.0001.billing.~.old";
    let (binding, arguments) = note(old);
    session.bind(&Binding { key: old.into(), ..binding.clone() }).unwrap();
    session.bind_with(&binding, &arguments).unwrap();
    let young = sweep(&settings, &SweepOptions::default());
    assert_eq!((young.swept, young.left), (0, 1), "{young:?}");
    assert!(young.postponed.is_some_and(|reason| reason.contains("has not been up")));

    let soon = SweepOptions::default().with_grace(Duration::from_millis(1));
    eventually("the notes of four are over", || sweep(&settings, &soon.clone().dry_run()).swept == 4);
    let swept = sweep(&settings, &soon);
    assert_eq!((swept.swept, swept.noted, swept.left), (4, 0, 0), "{swept:?}");
    assert_eq!(recalls(&settings), [waiting.routing_key().encode(), odd.key].into());
    assert_eq!(bound(&settings).len(), 3, "one note is left");
    assert_eq!(sweep(&settings, &soon).swept, 0);
}

#[test]
fn what_was_noted_about_a_recall_ends_when_it_is_undone() {
    let (settings, _inbox, router, mut recaller) = offered();
    let handle = handle(&send(&router, message("back-and-forth", 3_600)));
    let pending =
        || admin::pending_recalls(&settings, &topology(&settings), Some(&app("billing"))).unwrap().pending;
    recaller.recall(&handle).unwrap();
    assert_eq!(sweep(&settings, &SweepOptions::default()).noted, 1);
    let first = pending()[0].due.expect("it was noted");
    // Another sweep that ran at the same time noted it, too.
    let arguments = [
        ("handle".to_owned(), handle.routing_key().encode().into()),
        ("due".to_owned(), 4_000_000_000_000_i64.into()),
    ];
    let names = Names::new(settings.topology.set.clone());
    let note = Binding { key: "due".into(), ..Binding::recalling(&names, handle.routing_key()) };
    Session::open(&settings.broker).unwrap().bind_with(&note, &arguments.into()).unwrap();
    assert!(pending()[0].due.expect("it was noted") > first);
    recaller.undo(&handle).unwrap();
    assert_eq!(pending(), []);

    let dry = sweep(&settings, &SweepOptions::default().dry_run());
    assert_eq!((dry.recalls, dry.undone, bound(&settings).len()), (0, 1, 2), "{dry:?}");
    let swept = sweep(&settings, &SweepOptions::default());
    assert_eq!((swept.recalls, swept.undone, bound(&settings).len()), (0, 1, 0), "{swept:?}");
    // The next recall of the same key is of a message that may be due later.
    recaller.recall(&handle).unwrap();
    let again = sweep(&settings, &SweepOptions::default());
    assert_eq!((again.recalls, again.noted, again.undone), (1, 1, 0), "{again:?}");
    assert!(pending()[0].due.expect("it was noted") > first);
}

#[test]
fn a_sweeper_removes_what_is_over_and_counts_it() {
    let (settings, _inbox, router, mut recaller) = offered();
    let over = handle(&send(&router, message("over", GOOD_TIME)));
    let waiting = handle(&send(&router, message("waiting", 3_600)));
    for handle in [&over, &waiting] {
        assert_eq!(recaller.recall(handle).unwrap(), Answer::InTime);
    }
    let stats = Arc::new(RecallStats::default());
    assert_eq!(stats.counts(), RecallCounts::default());
    let stop = AtomicBool::new(false);
    // Nothing has been over for an hour, whatever it looks at.
    let patient = Sweeper::new(settings.clone(), Arc::clone(&stats)).every(Duration::from_millis(10));
    let hasty = Sweeper::new(settings.clone(), Arc::clone(&stats))
        .with(SweepOptions::default().with_grace(Duration::from_millis(1)))
        .every(Duration::from_millis(10));
    thread::scope(|scope| {
        let first = scope.spawn(|| patient.run(&stop));
        eventually("they are counted", || {
            stats.counts().apps.get("billing").is_some_and(|it| it.pending == 2)
        });
        eventually("it is noted when they can go", || bound(&settings).len() == 4);
        eventually("one has come", || recalled(&settings) == 1);
        let seen = stats.counts().at;
        eventually("it has looked again", || stats.counts().at > seen);
        assert_eq!(stats.counts().apps["billing"].swept, 0);
        stop.store(true, Ordering::Relaxed);
        first.join().unwrap();
        stop.store(false, Ordering::Relaxed);
        scope.spawn(|| hasty.run(&stop));
        eventually("one is swept up", || stats.counts().apps["billing"].swept == 1);
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(recalls(&settings), [waiting.routing_key().encode()].into());
    let counts = stats.counts();
    assert_eq!((counts.apps["billing"].pending, counts.apps["billing"].over), (1, 0), "{counts:?}");
    // Without the management API it says that it can do nothing, and ends.
    let mut blind = settings.clone();
    blind.management = None;
    Sweeper::new(blind, stats).run(&stop);
}

#[test]
fn doctor_judges_how_many_recalls_are_pending() {
    let (mut settings, _inbox, router, mut recaller) = offered();
    settings.max_recalls = "billing=3".parse().unwrap();
    let mut found = |count: usize| {
        let handle = handle(&send(&router, message(&format!("m-{count}"), 3_600)));
        recaller.recall(&handle).unwrap();
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
    let (settings, _inbox, router, mut recaller) = offered();
    let topology = topology(&settings);
    Inbox::open(&settings, "mail");
    offer(&settings, "mail");
    let waiting = handle(&send(&router, message("waiting", 3_600)));
    recaller.recall(&waiting).unwrap();
    // As anybody can who may recall the messages of `mail`.
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
