//! The permissions of users, as far as `doctor` can see them.

use super::*;
use crate::common::installed;

#[test]
fn users_that_may_too_much_are_named() {
    let settings = installed(1_000);
    let vhost = settings.broker.vhost.clone();
    let user = |name: &str, permission: [&str; 3], topics: &[(&str, &str, &str)]| {
        let name = format!("{vhost}-{name}");
        let tags = if name.ends_with("-policies") { "policymaker" } else { "" };
        http(&shared_node(), "PUT", &format!("users/{name}"), &json!({"password": "p", "tags": tags}));
        let [configure, write, read] = permission;
        put(&settings, "permissions", &name, json!({"configure": configure, "write": write, "read": read}));
        for (exchange, write, read) in topics {
            let body = json!({"exchange": exchange, "write": write, "read": read});
            put(&settings, "topic-permissions", &name, body);
        }
    };
    let bits = r"^delay(\.[01]{4}){7}\.mine$";
    let stars = r"^delay(\.\*){7}\.mine$";
    // Users with correct permissions; the second has its name in the pattern.
    user(
        "good",
        ["^mine", "^(delay|mine.*)$", r"^(delay\.dispatch|mine.*)$"],
        &[("delay", bits, "^$"), ("delay.dispatch", "^$", stars)],
    );
    user("named", ["", "^delay$", ""], &[("delay", r"^delay(\.[01]{4}){7}\.{username}$", "")]);
    user("service", ["", "^delay$", ""], &[("delay", r"^delay\.", "")]);
    // Each of these users may do one thing too many.
    user("any-key", ["", "^delay$", ""], &[]);
    user("any-binding", ["", "", r"^delay\.dispatch$"], &[]);
    user("short-cut", ["", r"^delay\.dispatch$", ""], &[]);
    user("purger", ["", "", r"^delay\.level"], &[]);
    user("operator", ["", r"^delay\.dispatch$", r"^delay\.unroutable$"], &[]);
    user("remover", [".*", "", ""], &[]);
    user("daemon", [r"^delay\.canary\..+\z", "^delay", r"^delay\.level"], &[]);
    user("ahead", ["", r"^delay(?!x)$", ""], &[]);
    user("odd", ["", r"^(?|delay|x)$", ""], &[]);
    user("policies", ["", "", ""], &[]);
    let report = look(&settings);
    let who = |code: FindingCode| -> Vec<String> {
        let findings: Vec<_> = report.findings.iter().filter(|finding| finding.code == code).collect();
        assert!(!findings.is_empty(), "no {code}: {report:#?}");
        let parts = findings.iter().flat_map(|finding| finding.what.split('`').skip(1).step_by(2));
        parts.filter_map(|part| part.strip_prefix(&format!("{vhost}-"))).map(str::to_owned).collect()
    };
    use FindingCode::*;
    assert_eq!(who(EntryUnprotected), ["ahead", "any-key"]);
    assert_eq!(who(DispatchUnprotected), ["any-binding"]);
    assert_eq!(who(DispatchWritable), ["daemon", "short-cut"]);
    assert_eq!(who(SetUnprotected), ["daemon", "purger", "remover", "policies"]);
    assert!(report.unchecked.iter().any(|text| text.contains("-odd") && text.contains("(?|")), "{report:#?}");

    let trusted = [
        "ahead",
        "any-key",
        "any-binding",
        "short-cut",
        "purger",
        "daemon",
        "remover",
        "odd",
        "policies",
        "good",
        "named",
        "service",
    ];
    let trusted = trusted.iter().map(|name| format!("{vhost}-{name}")).collect();
    let options = DoctorOptions { trusted, ..DoctorOptions::default() };
    let nothing = |report: &DoctorReport| report.findings.is_empty() && report.unchecked.is_empty();
    eventually_seen("there is no finding", || look_with(&settings, &options), nothing);
}

#[test]
fn checks_that_need_an_administrator_are_reported_as_unchecked() {
    let settings = installed(1_000);
    let vhost = &settings.broker.vhost;
    let name = format!("{vhost}-watcher");
    http(&shared_node(), "PUT", &format!("users/{name}"), &json!({"password": "p", "tags": "monitoring"}));
    put(&settings, "permissions", &name, json!({"configure": "", "write": "", "read": ""}));
    let watcher = shared_node()
        .settings()
        .set("url", format!("{}/{vhost}", shared_node().url()))
        .set("username", &name)
        .set("password", "p")
        .build()
        .unwrap();
    let report =
        eventually_seen("there is no finding", || look(&watcher), |report| report.findings.is_empty());
    // From 4.0 on, every user can see the feature flags.
    let text = "which users may publish, bind and purge";
    assert!(report.unchecked.iter().any(|unchecked| unchecked.starts_with(text)), "{report:#?}");

    // Without the management API, hardly anything can be checked.
    let mut blind = settings.clone();
    blind.management = None;
    let error = admin::doctor(&blind, &topology(&blind), &DoctorOptions::default()).unwrap_err();
    assert!(error.to_string().contains("needs the management API"), "{error}");
}
