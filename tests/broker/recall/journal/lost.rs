//! A node that is killed just after it has created a journal.

use super::*;
use crate::common::{NO_SIGNAL, eventually_seen};

/// The codes of `doctor`'s findings, each with its advice.
fn doctor(settings: &Settings) -> Vec<(String, String)> {
    let report = admin::doctor(settings, &topology(settings), &admin::DoctorOptions::default()).unwrap();
    report.findings.into_iter().map(|it| (it.code.to_string(), it.advice)).collect()
}

#[test]
fn a_journal_lost_with_its_node_is_recognised_and_made_again_and_is_then_kept() {
    let mut node = mortal_node();
    let settings = node.settings().set("unit_ms", "1000").build().unwrap();
    common::install(&settings);
    let topology = topology(&settings);
    let user =
        AppUser { name: "billing".into(), password: Some(Secret::new("billing")), ..AppUser::default() };
    let delivery = Delivery::Direct(AppQueue::new("billing"));
    let plain = AppSpec { recall: Some(RecallSettings::default()), ..AppSpec::new(app("billing"), delivery) };
    let plain = AppSpec { user: Some(user.clone()), ..plain };
    added(&settings, &plain);
    let recall = Some(RecallSettings::default().with_journal(JournalSettings::default()));
    let spec = AppSpec { recall, ..plain };
    node.write_down_queues().unwrap();

    // As if the node had died during `app add`.
    let made = topology.recall(&spec.app, Endpoint::Queue("billing".into()), spec.recall.unwrap());
    let of_journal = |object: &Object| match object {
        Object::Queue(queue) => queue.name == "delay.journal.billing",
        Object::Binding(binding) => topology.is_journal_binding(binding),
        Object::Exchange(_) => false,
    };
    let mut session = Session::open(&settings.broker).unwrap();
    for object in made.into_iter().filter(of_journal) {
        match object {
            Object::Queue(queue) => session.declare_queue(&queue).unwrap(),
            Object::Binding(binding) => session.bind(&binding).unwrap(),
            Object::Exchange(_) => {}
        }
    }
    node.kill();
    drop(session);
    revive(&mut node);

    let found = eventually_seen(
        "doctor finds the lost journal",
        || doctor(&settings),
        |found| found.iter().any(|(code, _)| code == "journal-lost"),
    );
    let advice = &found.iter().find(|(code, _)| code == "journal-lost").unwrap().1;
    let check = admin::check_app(&settings, &topology, &spec, &user, &Secret::new("billing")).unwrap();
    let lost = |probe: &&admin::Probe| probe.what.contains("the stream `delay.journal.billing`");
    assert!(check.probes.iter().find(lost).is_some_and(|probe| !probe.passed()), "{check:#?}");
    let refused = admin::add_app(&settings, &topology, &spec, true, false).unwrap();
    assert_eq!(refused.outcome, Applied::Conflict, "{refused:#?}");
    assert!(refused.conflicts[0].contains("rabbitmqctl eval"), "{refused:#?}");
    // Removing the application either works or is refused with the same advice.
    for force in [false, true] {
        let options = RemoveOptions { dry_run: true, force, ..RemoveOptions::default() };
        if let Err(refused) =
            admin::remove_app(&settings, &topology, &spec.app, &options, &NO_SIGNAL).unwrap()
        {
            assert!(refused.conflicts[0].contains("rabbitmqctl eval"), "{refused:#?}");
        }
    }

    let command = advice.split_once("rabbitmqctl eval '").unwrap().1.split_once('\'').unwrap().0;
    node.tell(&["eval", command]).unwrap();
    let report = admin::add_app(&settings, &topology, &spec, true, false).unwrap();
    assert_eq!(report.outcome, Applied::Installed, "{report:#?}");
    // After `app add` has finished, the journal survives a kill.
    node.kill();
    revive(&mut node);
    let router = settings.router().connect().unwrap();
    // A stream of 3.10 can lose what it confirms in the first moments after a restart.
    let sent = || {
        send(&router, message("kept", 3_600));
        listed(&settings)
    };
    let in_it = |list: &_| states(list).contains(&("kept", ScheduleState::Waiting));
    eventually_seen("the journal gets a message", sent, in_it);
    let check = admin::check_app(&settings, &topology, &spec, &user, &Secret::new("billing")).unwrap();
    assert!(check.probes.iter().all(|probe| !lost(&probe)), "{check:#?}");
    assert!(!doctor(&settings).iter().any(|(code, _)| code.starts_with("journal-")));
}
