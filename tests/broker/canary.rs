//! Canaries on real brokers: the faults that they detect, and situations that are no fault.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use delayline_admin as admin;
use delayline_amqp::Session;
use delayline_core::{Message, codec::Delay};
use delayline_settings::Settings;
use delayline_watch::canary::{Canary, CanaryState, Figures, GRACE, Probe, SLOTS, Watched};
use serde_json::json;

use crate::common::Counting;
use crate::common::{
    Inbox, PATIENCE, app, as_user, eventually, eventually_seen, http, install, installed, mortal_node,
    permit, refusing, revive, shared_node, status, topology,
};

/// A canary on its own thread.
pub(crate) struct Running {
    pub(crate) watched: Arc<Watched>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub(crate) fn start(settings: &Settings) -> Self {
        let (watched, stop) = (Arc::new(Watched::default()), Arc::new(AtomicBool::new(false)));
        let mut settings = settings.clone();
        settings.canary.interval = Duration::from_millis(100);
        let canary = Canary::new(settings, Arc::default(), Arc::clone(&watched));
        let thread = thread::spawn({
            let stop = Arc::clone(&stop);
            move || canary.run(&stop)
        });
        Self { watched, stop, thread: Some(thread) }
    }

    fn arrived(&self) -> u64 {
        self.watched.figures().total(|probe| probe.arrived)
    }

    /// Waits until each probe has arrived this many more times.
    fn rounds(&self, rounds: u64) -> Figures {
        let before = self.watched.figures();
        let arrived = |probe: &Probe| before.probes.get(probe).map_or(0, |figures| figures.arrived);
        eventually_seen(
            "every probe arrives",
            || self.watched.figures(),
            |figures| {
                figures.probes.len() == 10
                    && figures.probes.iter().all(|(probe, now)| now.arrived >= arrived(probe) + rounds)
            },
        )
    }

    fn is_paused(&self, words: &str) {
        eventually_seen(
            words,
            || self.watched.state(),
            |state| matches!(state, CanaryState::Paused(reason) if reason.contains(words)),
        );
    }

    fn slot(&self) -> Option<u8> {
        match self.watched.state() {
            CanaryState::Running(slot) => Some(slot),
            _ => None,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

fn assert_clean(figures: &Figures) {
    let counts = (figures.total(|probe| probe.ever_missing), figures.total(|probe| probe.twice));
    assert_eq!(counts, (0, 0), "{figures:?}");
}

#[test]
fn a_canary_uses_each_level_alone_and_all_together_and_no_application_sees_it() {
    let settings = installed(20);
    let inbox = Inbox::open(&settings, "app");
    let canary = Running::start(&settings);
    let figures = canary.rounds(2);
    assert_clean(&figures);
    let names: Vec<_> = figures.probes.keys().map(ToString::to_string).collect();
    for level in ["00", "01", "02", "03", "04", "05", "06", "06+05+04+03+02+01+00"] {
        assert!(names.iter().any(|name| name == level), "{names:?}");
    }
    let lateness = canary.watched.lateness();
    assert!(figures.probes.iter().all(|(probe, figures)| lateness[probe].count >= figures.arrived.min(2)));
    drop(canary);
    // A message through the same levels, behind all messages of the canary.
    let message = Message::after(app("app"), Delay::from_seconds(127).unwrap(), "mine");
    settings.router().connect().unwrap().publish(message).unwrap();
    assert_eq!(inbox.next(PATIENCE).unwrap().body, b"mine");
    assert_eq!(status(&settings).unroutable, Some(0));
}

#[test]
fn several_canaries_do_not_count_messages_of_each_other() {
    let settings = installed(20);
    let canaries = [Running::start(&settings), Running::start(&settings), Running::start(&settings)];
    for canary in &canaries {
        assert_clean(&canary.rounds(1));
    }
    let mut slots: Vec<_> = canaries.iter().filter_map(Running::slot).collect();
    slots.sort_unstable();
    assert_eq!(slots, [0, 1, 2]);
}

#[test]
fn messages_of_an_ended_canary_are_ignored() {
    let settings = installed(20);
    let first = Running::start(&settings);
    first.rounds(1);
    let sent = first.watched.handed_over();
    drop(first);
    let mut session = Session::open(&settings.broker).unwrap();
    eventually("the slot is free", || {
        session.counts("delay.canary.0").unwrap().is_none_or(|depth| depth.consumers == 0)
    });
    // Messages that the first canary left in the levels arrive here, in the same slot.
    let second = Running::start(&settings);
    let figures = second.rounds(2);
    assert_eq!(second.slot(), Some(0));
    assert_clean(&figures);
    assert!(sent > 0 && figures.total(|probe| probe.arrived) <= second.watched.handed_over());
    assert_eq!(status(&settings).unroutable, Some(0));
}

#[test]
fn a_stopped_broker_and_a_missing_set_are_not_missing_messages() {
    let mut node = mortal_node();
    let settings = node.settings().set("unit_ms", "20").build().unwrap();
    Running::start(&settings).is_paused("delayline install");
    // A canary that starts during the installation finds only some of the bindings.
    install(&settings);
    let canary = Running::start(&settings);
    canary.rounds(1);
    node.stop().unwrap();
    let before = stopped(&canary);
    revive(&mut node);
    all_arrive(&canary, &before);
    node.write_down_queues().unwrap();
    node.kill();
    let before = stopped(&canary);
    revive(&mut node);
    all_arrive(&canary, &before);
}

fn stopped(canary: &Running) -> Figures {
    canary.is_paused("cannot reach the broker");
    let figures = canary.watched.figures();
    assert_eq!(figures.total(|probe| probe.overdue), 0);
    figures
}

/// Waits until the messages sent before have arrived, and none is overdue.
fn all_arrive(canary: &Running, before: &Figures) {
    let arrived =
        |now: &Figures| before.probes.iter().all(|(probe, then)| now.probes[probe].arrived >= then.sent);
    eventually_seen(
        "every message has arrived",
        || canary.watched.figures(),
        |now| arrived(now) && now.total(|probe| probe.missing + probe.overdue) == 0,
    );
}

#[test]
fn a_level_that_is_held_up_is_overdue_and_named() {
    let settings = installed(100);
    let canary = Running::start(&settings);
    eventually("the canary's messages arrive", || canary.arrived() > 0);
    stall_level_0(&settings);
    let figures = eventually_seen(
        "probes through level 0 are overdue, and the others are on time",
        || canary.watched.figures(),
        |figures| {
            let overdue = |name: &str| {
                figures.probes.iter().any(|(probe, figures)| probe.to_string() == name && figures.overdue > 0)
            };
            overdue("00") && overdue("06+04+02+00") && !overdue("01")
        },
    );
    assert!(figures.oldest_overdue.unwrap() >= GRACE);
    let arrived = canary.arrived();
    eventually("the other probes still arrive", || canary.arrived() > arrived + 10);
}

/// Blocks level 0 for all applications: a queue refuses its messages, and the level stops after 32
/// unanswered ones.
fn stall_level_0(settings: &Settings) {
    refusing(settings, "full");
    let router = settings.router().connect().unwrap();
    let mut pipeline = router.pipeline();
    for number in 0..60 {
        // Two hops, so that the message passes level 0 even if it waited in the router for a while.
        let message = Message::after(app("full"), Delay::from_seconds(63).unwrap(), number.to_string());
        pipeline.push((), message);
    }
    assert!(pipeline.all(|outcome| outcome.result.is_ok()));
}

#[test]
fn canaries_whose_queues_take_nothing_leave_the_levels_to_others() {
    let mut settings = installed(20);
    settings.canary.horizon = 9;
    let inbox = Inbox::open(&settings, "app");
    let canaries: Vec<_> = (0..SLOTS).map(|_| Running::start(&settings)).collect();
    eventually("all slots are taken", || canaries.iter().all(|canary| canary.slot().is_some()));
    let one_more = Running::start(&settings);
    eventually_seen(
        "no slot is left",
        || one_more.watched.state(),
        |state| matches!(state, CanaryState::Paused(reason) if reason.contains("already 6 canaries")),
    );
    drop(one_more);
    // The test waits for each canary's first message through all levels. By then, the levels hold
    // as many of its messages as they ever will.
    eventually("messages through all levels come back", || {
        let through_all = |canary: &Running| {
            let probes = canary.watched.figures().probes;
            probes.iter().any(|(probe, seen)| probe.delay().seconds() == 1_023 && seen.arrived > 0)
        };
        canaries.iter().all(through_all)
    });
    let definition = json!({ "max-length": 0, "overflow": "reject-publish" });
    let policy =
        json!({ "pattern": r"^delay\.canary\.\d+$", "definition": definition, "apply-to": "queues" });
    let path = format!("policies/{}/refusing", settings.broker.vhost);
    http(&shared_node(), "PUT", &path, &policy);
    drop(canaries);
    // This message passes level 0, and is due after all messages of the canaries.
    let message = Message::after(app("app"), Delay::from_seconds(1_025).unwrap(), "mine");
    settings.router().connect().unwrap().publish(message).unwrap();
    assert_eq!(inbox.next(PATIENCE).map(|arrival| arrival.body).as_deref(), Some(&b"mine"[..]));
}

#[test]
fn a_canary_reports_the_permissions_that_it_needs() {
    let settings = installed(20);
    let watcher = as_user(&settings, "watcher");
    let permit = |permissions| permit(&settings.broker.vhost, "watcher", permissions);
    permit(["^$", "^delay$", "^$"]);
    let canary = Running::start(&watcher);
    eventually_seen(
        "the canary reports the permissions that it needs",
        || canary.watched.state(),
        |state| matches!(state, CanaryState::Paused(reason) if reason.contains(r"`^delay\.canary\.`")),
    );
    drop(canary);
    permit([r"^delay\.canary\.", r"^delay(\.canary\..*)?$", r"^delay\.(dispatch|canary\..*)$"]);
    let canary = Running::start(&watcher);
    canary.rounds(1);
}

#[test]
fn a_canary_that_may_not_publish_starts_once_it_may() {
    let settings = installed(20);
    let listener = as_user(&settings, "listener");
    let permit = |write| {
        let (configure, read) = (r"^delay\.canary\.", r"^delay\.(dispatch|canary\..*)$");
        permit(&settings.broker.vhost, "listener", [configure, write, read]);
    };
    permit(r"^delay\.canary\.");
    let canary = Running::start(&listener);
    eventually_seen(
        "the canary reports the missing permission",
        || canary.watched.state(),
        |state| matches!(state, CanaryState::Paused(reason) if reason.contains("exchange 'delay'")),
    );
    assert_eq!(canary.watched.figures().total(|probe| probe.sent), 0);
    permit(r"^delay(\.canary\..*)?$");
    assert_clean(&canary.rounds(1));
    assert!(canary.slot().is_some() && canary.watched.refusal().is_none());
}

#[test]
fn a_canary_is_no_finding() {
    let settings = installed(20);
    let about_canaries = || {
        let report =
            admin::doctor(&settings, &topology(&settings), &admin::DoctorOptions::default()).unwrap();
        let findings = report.findings.into_iter();
        findings.filter(|finding| format!("{finding:?}").contains("canary")).collect::<Vec<_>>()
    };
    let canary = Running::start(&settings);
    eventually("the canary's messages arrive", || canary.arrived() > 0);
    eventually("the management API has its binding", || {
        let apps = status(&settings).apps.unwrap_or_default();
        apps.iter().any(|app| app.app.as_deref() == Some("delayline-canary.0"))
    });
    assert_eq!(admin::verify(&settings, &topology(&settings)).unwrap().findings, []);
    assert_eq!(about_canaries(), []);
    // The same holds while the canary's queue has no consumer.
    drop(canary);
    assert_eq!(about_canaries(), []);
}
