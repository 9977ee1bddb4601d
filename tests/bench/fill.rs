//! `delayline-bench fill` in its smallest form. No rates are measured.

use crate::{bench, json};

#[test]
fn what_waits_is_measured_and_arrives() {
    let mut run = bench();
    run.args([
        "fill",
        "--messages",
        "2000",
        "--together",
        "300",
        "--pause",
        "90s",
        "--prefetch",
        "64",
        "--json",
    ]);
    let report = json(&mut run);
    assert_eq!((&report["lost"], &report["early"], &report["together"]), (&0.into(), &0.into(), &300.into()));
    for state in ["empty", "full", "restarted"] {
        for of in ["memory", "disk", "wal"] {
            assert!(report[state][of].as_u64() > Some(0), "{state} {of}: {report}");
        }
    }
    assert!(report["full"]["disk"].as_u64() > report["empty"]["disk"].as_u64(), "{report}");
    assert!(report["restart_full"]["accepts_s"].as_f64() >= report["restart_full"]["serves_s"].as_f64());
}
