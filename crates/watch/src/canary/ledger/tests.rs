//! Probes that come, do not come, and come twice.

use super::*;
use crate::canary::flights::LANE;
use delayline_core::codec::Delay;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn probe(seconds: u64) -> Probe {
    Probe::new(Delay::from_seconds(seconds).unwrap())
}

fn send(ledger: &mut Ledger, id: u64, due: u64) {
    ledger.sent(id, probe(4), s(due));
    ledger.confirmed(id);
}

fn ledger() -> Ledger {
    let mut ledger = Ledger::default();
    ledger.connected(s(0));
    ledger
}

fn overdue_and_missing(ledger: &mut Ledger, now: u64) -> (u64, u64) {
    let figures = ledger.figures(s(now));
    (figures.total(|probe| probe.overdue), figures.total(|probe| probe.missing))
}

#[test]
fn says_how_late_and_notices_what_comes_twice() {
    let mut ledger = ledger();
    send(&mut ledger, 1, 4);
    assert_eq!(ledger.arrived(1, s(6)), Arrival::Late(probe(4), s(2)));
    assert_eq!(ledger.arrived(1, s(7)), Arrival::Twice(probe(4)));
    assert_eq!(ledger.arrived(2, s(7)), Arrival::Unknown);
    // Never later than nothing: clocks of a computer differ by less than they tick.
    ledger.sent(3, probe(4), s(20));
    assert_eq!(ledger.arrived(3, s(19)), Arrival::Late(probe(4), s(0)));
}

#[test]
fn is_overdue_then_missing_then_forgotten() {
    let mut ledger = ledger();
    send(&mut ledger, 1, 10);
    let seen = [14, 15, 69, 70, 609, 9_000].map(|now| overdue_and_missing(&mut ledger, now));
    assert_eq!(seen, [(0, 0), (1, 0), (1, 0), (1, 1), (1, 1), (1, 1)], "its queue does not answer");
    ledger.queue_answered(s(300));
    assert_eq!([609, 610].map(|now| overdue_and_missing(&mut ledger, now)), [(1, 1), (0, 0)]);
    assert_eq!(ledger.figures(s(4_000)).total(|probe| probe.ever_missing), 1);
}

#[test]
fn after_a_repair_the_lost_ones_expire_and_others_are_measured() {
    let mut ledger = ledger();
    (0..LANE as u64).for_each(|id| send(&mut ledger, id, 10));
    assert!(!ledger.admits(probe(4), s(209)));
    // The level is repaired at 150 s; its messages are lost.
    ledger.queue_answered(s(210));
    assert!(ledger.admits(probe(4), s(210)));
    send(&mut ledger, 9, 214);
    assert_eq!(ledger.arrived(9, s(214)), Arrival::Late(probe(4), s(0)));
    assert_eq!(overdue_and_missing(&mut ledger, 609), (LANE as u64, LANE as u64));
    let clear = ledger.figures(s(610));
    assert_eq!((clear.oldest_overdue, clear.expected), (None, 0));
    // A level that stays stuck keeps the next ones, so there is always one that is overdue.
    send(&mut ledger, 10, 620);
    assert_eq!(overdue_and_missing(&mut ledger, 1_300), (1, 1));
}

#[test]
fn what_was_missing_may_still_arrive() {
    let mut ledger = ledger();
    send(&mut ledger, 1, 10);
    assert_eq!(overdue_and_missing(&mut ledger, 100), (1, 1));
    assert_eq!(ledger.arrived(1, s(101)), Arrival::Late(probe(4), s(91)));
    assert_eq!(overdue_and_missing(&mut ledger, 101), (0, 0));
    assert_eq!(ledger.figures(s(101)).total(|probe| probe.ever_missing), 1);
}

#[test]
fn the_time_without_a_connection_is_no_messages_fault() {
    let mut ledger = ledger();
    send(&mut ledger, 1, 10);
    ledger.disconnected(s(5));
    assert_eq!(overdue_and_missing(&mut ledger, 1_000), (0, 0));
    ledger.connected(s(1_000));
    let seen = [1_004, 1_005, 1_060].map(|now| overdue_and_missing(&mut ledger, now));
    assert_eq!(seen, [(0, 0), (1, 0), (1, 1)]);
}

#[test]
fn what_was_withdrawn_is_not_expected() {
    let mut ledger = ledger();
    ledger.sent(1, probe(4), s(10));
    ledger.withdrawn(1);
    send(&mut ledger, 2, 10);
    ledger.withdrawn(2);
    send(&mut ledger, 3, 10);
    ledger.rerouted(3, probe(3), 1);
    let figures = ledger.figures(s(1_000));
    assert_eq!((figures.expected, figures.total(|probe| probe.sent)), (0, 0));
}

#[test]
fn what_was_never_confirmed_is_never_missing() {
    let mut ledger = ledger();
    ledger.sent(1, probe(4), s(10));
    assert_eq!(overdue_and_missing(&mut ledger, 129), (0, 0));
    assert_eq!(ledger.figures(s(129)).expected, 1);
    assert_eq!(ledger.figures(s(130)).expected, 0);
    // With the connection, hope is gone as well.
    ledger.sent(2, probe(4), s(200));
    send(&mut ledger, 3, 200);
    ledger.disconnected(s(190));
    assert_eq!(ledger.figures(s(200)).expected, 1);
    ledger.connected(s(200));
    assert_eq!(ledger.arrived(2, s(200)), Arrival::Unknown);
    assert_eq!(ledger.arrived(3, s(200)), Arrival::Late(probe(4), s(0)));
}

#[test]
fn what_is_handed_out_again_after_a_lost_connection_does_not_come_twice() {
    let mut ledger = ledger();
    for (id, at) in [(1, 50), (2, 99)] {
        send(&mut ledger, id, at);
        ledger.arrived(id, s(at));
    }
    ledger.disconnected(s(100));
    ledger.connected(s(110));
    assert_eq!(
        (ledger.arrived(1, s(110)), ledger.arrived(2, s(110))),
        (Arrival::Twice(probe(4)), Arrival::Unknown)
    );
}

#[test]
fn the_time_nobody_looked_is_no_messages_fault() {
    let mut ledger = ledger();
    send(&mut ledger, 1, 10);
    send(&mut ledger, 2, 101);
    ledger.slept(s(9), s(100));
    assert_eq!(ledger.arrived(1, s(100)), Arrival::Unknown);
    assert_eq!(ledger.arrived(2, s(102)), Arrival::Late(probe(4), s(1)));
}

#[test]
fn a_pause_wipes_out_nothing_that_was_missing_before() {
    let mut ledger = ledger();
    for (id, due) in [(1, 10), (2, 95), (3, 96)] {
        send(&mut ledger, id, due);
    }
    assert_eq!(overdue_and_missing(&mut ledger, 100), (2, 1));
    ledger.slept(s(100), s(104));
    assert_eq!(overdue_and_missing(&mut ledger, 110), (2, 1));
}

#[test]
fn an_arrival_may_be_quicker_than_its_confirm() {
    let mut ledger = ledger();
    ledger.sent(1, probe(4), s(4));
    assert_eq!(ledger.arrived(1, s(4)), Arrival::Late(probe(4), s(0)));
    ledger.confirmed(1);
    let figures = ledger.figures(s(1_000));
    assert_eq!((figures.total(|probe| probe.sent), figures.total(|probe| probe.arrived)), (1, 1));
    assert_eq!(figures.total(|probe| probe.missing), 0);
}

#[test]
fn stops_adding_to_what_is_stuck() {
    let mut ledger = ledger();
    let probe = probe(4);
    let mut sent = 0;
    while ledger.admits(probe, s(1)) {
        send(&mut ledger, sent, 5);
        sent += 1;
    }
    assert_eq!(sent, LANE as u64);
    // A refused message takes no place; a message in doubt takes one until it is due.
    ledger.refused(0);
    assert!(ledger.admits(probe, s(1)));
    send(&mut ledger, 2, 5);
    ledger.withdrawn(2);
    assert!(!ledger.admits(probe, s(5)) && ledger.admits(probe, s(10)));
    ledger.arrived(1, s(10));
    ledger.figures(s(10));
    assert!(ledger.admits(probe, s(10)));
}
