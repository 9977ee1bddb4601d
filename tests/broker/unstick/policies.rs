//! Existing policies stay in force.

use super::*;

fn theirs(priority: i64) -> Json {
    json!({
        "pattern": "^delay\\.level\\.", "priority": priority, "definition": {"max-length": 100_000},
        "apply-to": "queues",
    })
}

/// Checks that a queue with one kind of policy is freed by the other kind.
fn helped_beside(what: &str, by: PolicyKind) {
    let settings = installed();
    put(&settings, what, "theirs", &theirs(0));
    let before = policies(&settings);
    let inbox = stuck_without_dispatch(&settings, 0..100);
    let report = now(&settings);
    assert_eq!(report.touched.len(), 1, "{report:#?}");
    assert_eq!((report.touched[0].by, report.touched[0].left), (by, Some(0)));
    all_arrive(&inbox, 0..100);
    assert_eq!(policies(&settings), before);
    match by {
        PolicyKind::OperatorPolicy => applies(&settings, "delay.level.00", "theirs", ""),
        PolicyKind::Policy => applies(&settings, "delay.level.00", "", "theirs"),
    }
}

#[test]
fn beside_a_policy_it_is_an_operator_policy() {
    helped_beside("policies", PolicyKind::OperatorPolicy);
}

#[test]
fn beside_an_operator_policy_it_is_a_policy() {
    helped_beside("operator-policies", PolicyKind::Policy);
}

#[test]
fn a_queue_with_both_is_left_alone_and_any_change_of_theirs_helps_it() {
    let settings = installed();
    put(&settings, "policies", "theirs", &theirs(0));
    put(&settings, "operator-policies", "theirs", &theirs(0));
    let before = policies(&settings);
    let inbox = stuck_without_dispatch(&settings, 0..40);
    let report = now(&settings);
    assert!(report.touched.is_empty(), "{report:#?}");
    let [occupied] = report.occupied.as_slice() else { panic!("{report:#?}") };
    assert_eq!((occupied.queue.as_str(), occupied.policy.as_str()), ("delay.level.00", "theirs"));
    assert_eq!(policies(&settings), before);
    // Setting an identical policy again is no change, so the broker does not apply it.
    put(&settings, "policies", "theirs", &theirs(0));
    assert_eq!(arrived(&settings, &inbox), 0, "an identical policy was a change");
    put(&settings, "policies", "theirs", &theirs(1));
    all_arrive(&inbox, 0..40);
}

#[test]
fn a_policy_that_is_made_meanwhile_goes_first() {
    let settings = installed();
    leave_behind(&settings, "policies", "delayline-unstick", "delay.level.00");
    put(&settings, "policies", "theirs", &theirs(-5));
    let api = ManagementApi::new(settings.management.as_ref().unwrap()).unwrap();
    applies(&settings, "delay.level.00", "theirs", "");
    // The policy is still found.
    assert_eq!(now(&settings).left_behind, [PolicyKind::Policy]);
    let stand = api.policies(PolicyKind::Policy, &settings.broker.vhost).unwrap();
    assert_eq!(stand.iter().map(|policy| policy.name.as_str()).collect::<Vec<_>>(), ["theirs"]);
}

#[test]
fn a_policy_that_was_set_the_moment_before_counts() {
    let settings = installed();
    // Wait until the statistics show that no policy applies.
    applies(&settings, "delay.level.00", "", "");
    put(&settings, "policies", "theirs", &theirs(0));
    let options = UnstickOptions { all: true, dry_run: true, ..UnstickOptions::default() };
    let report = admin::unstick(&settings, &topology(&settings), &options).unwrap();
    let by = |queue: &str| report.touched.iter().find(|touched| touched.queue == queue).map(|it| it.by);
    assert_eq!(by("delay.level.00"), Some(PolicyKind::OperatorPolicy), "{report:#?}");
}
