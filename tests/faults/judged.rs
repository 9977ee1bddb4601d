//! How a run of the faults is judged. These tests need no broker.

#![allow(dead_code, unreachable_pub, reason = "the program of the faults uses the rest of it")]

pub(crate) mod help;
pub(crate) mod ledger;
mod report;

use help::Help;
use ledger::{Ledger, Place, Recalls, Totals};
use report::Line;

/// A line of a run in which one message arrived without help.
fn line(broker: &str) -> Line {
    let ledger = Ledger::default();
    ledger.confirm(1, 0, 0);
    ledger.arrive(1, false, Place::Application);
    Line { broker: broker.into(), fault: "node-killed".into(), totals: ledger.totals(0) }
}

#[test]
fn a_help_that_is_not_known_of_the_version_fails_a_run() {
    for (broker, known) in [
        ("3.10.8", &[Help::SubscribeAgain, Help::Unstick][..]),
        ("3.10.0", &[Help::SubscribeAgain, Help::Unstick]),
        ("4.0.5", &[Help::Unstick]),
        ("4.3.6", &[Help::Unstick]),
        ("3.13.7", &[]),
        ("3.1.0", &[]),
        ("4.30.0", &[]),
        ("5.0.0", &[]),
        ("", &[]),
    ] {
        let mut line = line(broker);
        assert!(line.holds(), "without help on `{broker}`: {line:?}");
        for help in Help::ALL {
            line.totals.help = Some(help);
            assert_eq!(line.holds(), known.contains(&help), "{help} on `{broker}`");
        }
    }
}

#[test]
fn a_broken_promise_fails_a_run() {
    let recalls = Recalls { recalled: 1, ..Recalls::default() };
    type Spoil = fn(&mut Totals);
    let spoilt: [(&str, Spoil); 6] = [
        ("lost", |it| it.lost = 1),
        ("early", |it| it.early = 1),
        ("nothing published", |it| it.confirmed = 0),
        ("delivered although recalled", |it| it.recalls.as_mut().unwrap().broken = 1),
        ("aside without a recall", |it| it.recalls.as_mut().unwrap().astray = 1),
        ("nothing recalled", |it| it.recalls.as_mut().unwrap().recalled = 0),
    ];
    for (what, spoil) in spoilt {
        let mut line = line("4.3.6");
        line.totals.recalls = Some(recalls.clone());
        assert!(line.holds(), "{line:?}");
        spoil(&mut line.totals);
        assert!(!line.holds(), "{what}: {line:?}");
    }
}
