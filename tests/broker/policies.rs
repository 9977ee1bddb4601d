//! Policies are seen as soon as they are set, and with the same effect as on the broker.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    sync::Arc,
    thread,
};

use delayline_admin::{self as admin, FindingCode};
use delayline_broker::{Difference, ManagementApi, Policies, PolicyKind};
use delayline_settings::Settings;
use serde_json::{Value as Json, json};

use crate::common::{eventually_seen, http, installed, shared_node, topology};

fn set(settings: &Settings, kind: &str, name: &str, policy: &Json) {
    http(&shared_node(), "PUT", &format!("{kind}/{}/{name}", settings.broker.vhost), policy);
}

fn clear(settings: &Settings, kind: &str, name: &str) {
    http(&shared_node(), "DELETE", &format!("{kind}/{}/{name}", settings.broker.vhost), &Json::Null);
}

/// The exchanges and queues that policies change: the object, the key, and the names of the policies.
fn changed(settings: &Settings) -> Vec<(String, String, Vec<String>)> {
    let report = admin::verify(settings, &topology(settings)).unwrap();
    let policies = report.differences.into_iter().filter_map(|difference| match difference {
        Difference::Policy { object, key, origins, .. } => Some((object, key, origins)),
        _ => None,
    });
    policies.collect()
}

#[test]
fn a_policy_is_found_right_after_it_was_set_and_not_after_it_was_taken_away() {
    let settings = installed(1_000);
    let topology = topology(&settings);
    let (levels, queues) =
        (topology.queues().filter(|it| it.level.is_some()).count(), topology.queues().count());
    assert_eq!(changed(&settings), []);

    set(
        &settings,
        "policies",
        "short",
        &json!({"pattern": "^delay", "apply-to": "queues", "definition": {"expires": 3_600_000}}),
    );
    assert_eq!(changed(&settings).len(), queues);
    let report = admin::verify(&settings, &topology).unwrap();
    assert_eq!(report.findings.len(), 1, "{:#?}", report.findings);
    assert!(
        report.findings[0].what.contains("policy `short` sets `expires` to 3600000"),
        "{:?}",
        report.findings
    );
    // `doctor` reports the same finding, once.
    let doctor = admin::doctor(&settings, &topology, &Default::default()).unwrap();
    let said: Vec<_> = doctor.findings.iter().filter(|it| it.code == FindingCode::PolicyOnSet).collect();
    assert_eq!((said.len(), said[0].details.len()), (1, queues), "{said:#?}");
    assert_eq!((&said[0].what, &said[0].advice), (&report.findings[0].what, &report.findings[0].advice));
    clear(&settings, "policies", "short");
    assert_eq!(changed(&settings), []);

    // An operator policy, which the broker merges with the user's policy.
    set(
        &settings,
        "policies",
        "mine",
        &json!({"pattern": "level", "definition": {"max-length": 500}, "apply-to": "all"}),
    );
    set(
        &settings,
        "operator-policies",
        "theirs",
        &json!({"pattern": "level", "definition": {"max-length": 400}, "apply-to": "queues"}),
    );
    let found = changed(&settings);
    assert_eq!(found.len(), levels);
    assert!(
        found.iter().all(|(_, key, by)| key == "max-length" && *by == ["operator policy `theirs`"]),
        "{found:?}"
    );
    // A policy with a higher priority replaces the user's policy. A policy for exchanges does not.
    set(
        &settings,
        "policies",
        "harmless",
        &json!({"pattern": "level", "priority": 5, "definition": {"delivery-limit": 9}, "apply-to": "queues"}),
    );
    set(
        &settings,
        "policies",
        "elsewhere",
        &json!({"pattern": "level", "priority": 9, "definition": {"alternate-exchange": "x"}, "apply-to": "exchanges"}),
    );
    clear(&settings, "operator-policies", "theirs");
    assert_eq!(changed(&settings), []);
}

/// Our evaluation of the policies equals the broker's statistics, once these are up to date:
/// patterns, priorities, types of objects, and merging.
#[test]
fn our_evaluation_of_policies_equals_the_brokers() {
    let settings = installed(1_000);
    let vhost = &settings.broker.vhost;
    for (kind, name, pattern, priority, apply_to, definition) in [
        (
            "policies",
            "look-ahead",
            "^(?!delay\\.level\\.0)delay",
            1,
            "all",
            json!({"max-length": 11, "overflow": "drop-head"}),
        ),
        ("policies", "nines", "level\\.09$", 3, "queues", json!({"message-ttl": 77, "expires": 9_000_000})),
        ("policies", "not-theirs", "level\\.1", 8, "queues", json!({"max-age": "1D", "expires": 8_000_000})),
        ("policies", "exchanges", ".", 9, "exchanges", json!({"alternate-exchange": "x"})),
        (
            "operator-policies",
            "limits",
            "delay\\.(level\\.[01]|parked)",
            0,
            "queues",
            json!({"max-length": 7, "expires": 9_500_000}),
        ),
        (
            "operator-policies",
            "lower",
            "^delay\\.level\\.2",
            0,
            "queues",
            json!({"max-length": 70, "message-ttl": 5}),
        ),
    ] {
        let policy =
            json!({"pattern": pattern, "priority": priority, "apply-to": apply_to, "definition": definition});
        set(&settings, kind, name, &policy);
    }
    let api = ManagementApi::new(settings.management.as_ref().unwrap()).unwrap();
    let [user, operator] =
        [PolicyKind::Policy, PolicyKind::OperatorPolicy].map(|kind| api.policies(kind, vhost).unwrap());
    assert_eq!((user.len(), operator.len()), (4, 2));
    let name = |name: &Option<String>| name.clone().unwrap_or_default();
    let shown = || -> Vec<(String, String, String, Json)> {
        let queues = api.queues(vhost).unwrap().into_iter();
        let set = |definition: Json| if definition == json!([]) { json!({}) } else { definition };
        queues
            .map(|it| {
                (it.name, name(&it.policy), name(&it.operator_policy), set(it.effective_policy_definition))
            })
            .collect()
    };
    let mut queues = api.queues(vhost).unwrap();
    assert_eq!(Policies { user: Ok(user), operator: Ok(operator) }.apply(&mut queues).unwrap(), [""; 0]);
    let reckoned: Vec<_> = queues
        .into_iter()
        .map(|it| {
            let (user, operator) = (name(&it.policy), name(&it.operator_policy));
            (it.name, user, operator, it.effective_policy_definition)
        })
        .collect();
    eventually_seen("the statistics show the same policies", shown, |shown| *shown == reckoned);
    // Each policy applies to some queue, except those that must not apply to quorum queues.
    for (policy, holds) in
        [("look-ahead", true), ("nines", true), ("not-theirs", false), ("exchanges", false)]
    {
        assert_eq!(reckoned.iter().any(|(_, user, ..)| user == policy), holds, "{policy}");
    }
    for policy in ["limits", "lower"] {
        assert!(reckoned.iter().any(|(_, _, operator, _)| operator == policy), "{policy}");
    }
}

/// A management API that refuses to show policies. It forwards all other requests.
fn without_policies() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // The node may end with the test, although this thread goes on.
    let node = Arc::downgrade(&shared_node());
    thread::spawn(move || {
        for connection in listener.incoming() {
            let Some(node) = node.upgrade() else { break };
            let mut connection = connection.unwrap();
            let mut lines = BufReader::new(connection.try_clone().unwrap()).lines().map(Result::unwrap);
            let Some(first) = lines.next() else { continue };
            // The rest of the request's head.
            lines.take_while(|line| !line.is_empty()).for_each(drop);
            let path = first.split(' ').nth(1).unwrap().to_owned();
            let (status, body) = match path.strip_prefix("/api/").unwrap() {
                path if path.contains("policies/") => ("403 Forbidden", "{}".to_owned()),
                // Not every version has this resource.
                path if path.starts_with("deprecated-features") => ("404 Not Found", "{}".to_owned()),
                path => ("200 OK", http(&node, "GET", path, &Json::Null).to_string()),
            };
            let length = body.len();
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
            );
            connection.write_all((head + &body).as_bytes()).unwrap();
        }
    });
    url
}

#[test]
fn without_access_to_policies_the_report_shows_what_is_unknown() {
    let mut settings = installed(1_000);
    settings.management.as_mut().unwrap().url = without_policies().parse().unwrap();
    let topology = topology(&settings);
    let report = admin::verify(&settings, &topology).unwrap();
    assert_eq!(report.findings, []);
    let doctor = admin::doctor(&settings, &topology, &Default::default()).unwrap();
    for unchecked in [&report.unchecked, &doctor.unchecked] {
        let said = |text: &String| text.starts_with("policies that were set in the last few seconds");
        assert_eq!(unchecked.iter().filter(|text| said(text)).count(), 1, "{unchecked:?}");
    }
    // Policies in the queues' statistics are still found.
    set(
        &settings,
        "policies",
        "short",
        &json!({"pattern": "level.03", "apply-to": "queues", "definition": {"expires": 3_600_000}}),
    );
    eventually_seen("the policy is found", || changed(&settings), |changed| changed.len() == 1);
}
