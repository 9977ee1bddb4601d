//! Removing the recalls of messages that are over.

use std::{sync::atomic::AtomicBool, time::Duration};

use delayline_admin::{self as admin, SweepOptions, SweepReport};

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
    let latest = pending.iter().find(|it| it.handle == waiting.routing_key().encode()).unwrap().due.unwrap();
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
    let (binding, arguments) = note("delay.0000.0000.0000.0000.0000.0000.0001.billing.~.undone");
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
