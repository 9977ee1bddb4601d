//! The library gives the expected answers to the conformance cases.

#[allow(dead_code, reason = "it is a program, too")]
#[path = "../../conformance/runners/runner.rs"]
mod runner;

use std::{fs, path::Path};

use serde_json::Value;

#[test]
fn every_case_gets_its_answer() {
    let mut count = 0;
    for question in ["key", "decode", "bind", "recall", "retry"] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("conformance/v1/{question}.json"));
        let file: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        for case in file["cases"].as_array().unwrap() {
            count += 1;
            let mut asked = case.clone();
            asked["question"] = question.into();
            match (runner::answer(&asked), case.get("error")) {
                (Ok(Value::Object(answer)), None) => {
                    // 90 and 90.0 are the same number.
                    let same = |(name, value): (&String, &Value)| match value.as_f64() {
                        Some(number) => case[name].as_f64() == Some(number),
                        None => *value == case[name],
                    };
                    assert!(answer.iter().all(same), "{question}: {answer:?} differs from {case}");
                }
                (Err(_), Some(_)) => {}
                (found, _) => panic!("{question}: {found:?} differs from {case}"),
            }
        }
    }
    assert!(count > 230, "only {count} cases");
}
