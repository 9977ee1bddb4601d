//! The snippets of the wire contract produce the codec's routing keys and refuse invalid delays.
//! Messages from clients without that check become unroutable.

use std::process::Command;

use delayline_core::codec::{Delay, RoutingKey};

use crate::common::{app, eventually, installed, raw, status};

const CONTRACT: &str = include_str!("../../docs/reference/wire-contract.md");
const README: &str = include_str!("../../README.md");
const TEAMS: &str = include_str!("../../docs/for-teams/README.md");

/// The code blocks of a language that define this function.
fn snippets(document: &'static str, language: &str, function: &str) -> Vec<&'static str> {
    let fence = format!("```{language}\n");
    let blocks = document.split(fence.as_str()).skip(1).filter_map(|rest| rest.split("\n```").next());
    blocks.filter(|block| block.contains(function)).collect()
}

/// Delays at the limits of bits, words and the whole range.
fn delays() -> Vec<u64> {
    let edges = (0..28).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1]);
    edges.chain([90, (1 << 28) - 1]).filter(|&seconds| seconds < 1 << 28).collect()
}

/// Runs a program that prints a line for each delay and for each refusal.
fn check(command: &mut Command, refusals: usize) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    let key = |seconds| RoutingKey::new(Delay::from_seconds(seconds).unwrap(), app("eu.billing")).encode();
    let expected = delays().into_iter().map(key).chain(vec!["refused".to_owned(); refusals]);
    assert_eq!(printed.lines().collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}

#[test]
fn the_python_helpers_give_the_keys_of_the_codec_and_refuse_the_rest() {
    let python = std::env::var("TEST_PYTHON").expect("TEST_PYTHON names a Python that has pika");
    let helpers = [CONTRACT, README, TEAMS].map(|document| snippets(document, "python", "def routing_key("));
    assert_eq!(helpers.each_ref().map(Vec::len), [1, 1, 1]);
    for snippet in helpers.concat() {
        let start = snippet.find("def routing_key(").unwrap();
        let helper = snippet[start..].split("\n\n").next().unwrap();
        let program = format!(
            "{helper}\nfor seconds in {:?}:\n    print(routing_key(seconds, \"eu.billing\"))\n\
             for wrong in [2**28, 2**40, -1, 1.5, 90.0, float(\"nan\"), \"90\", None]:\n    try:\n        \
             print(routing_key(wrong, \"eu.billing\"))\n    except ValueError:\n        print(\"refused\")\n",
            delays()
        );
        check(Command::new(&python).args(["-c", &program]), 8);
    }
}

#[test]
fn the_javascript_helper_gives_the_keys_of_the_codec_and_refuses_the_rest() {
    let helpers = snippets(CONTRACT, "javascript", "function routingKey(");
    assert_eq!(helpers.len(), 1);
    let program = format!(
        "{}\nfor (const seconds of {:?}) console.log(routingKey(seconds, \"eu.billing\"));\n\
         for (const wrong of [2 ** 28, 2 ** 40, -1, 1.5, NaN, \"90\", null, undefined]) {{\n  try {{\n    \
         console.log(routingKey(wrong, \"eu.billing\"));\n  }} catch (error) {{\n    \
         console.log(error instanceof RangeError ? \"refused\" : error);\n  }}\n}}\n",
        helpers[0],
        delays()
    );
    check(Command::new("node").args(["-e", &program]), 8);
}

#[test]
fn a_delay_of_too_many_bits_is_unroutable_at_once() {
    let settings = installed(1_000);
    let zeros = "0000.".repeat(6);
    let keys = [
        // 2^28 and more; the bits are split into words of four from the right.
        format!("delay.1.{zeros}0000.billing"),
        format!("delay.10000.{zeros}billing"),
        format!("delay.11111.{}billing", "1111.".repeat(6)),
        // A negative number, a fraction, and text.
        format!("delay.-001.{zeros}billing"),
        format!("delay.{zeros}01.5.billing"),
        format!("delay.{zeros}9000.billing"),
        format!("delay.{zeros}NaN.billing"),
    ];
    let messages = keys.iter().map(|key| raw::message("delay", key, "x", &serde_json::json!({})));
    raw::publish(&settings, messages);
    eventually("all messages are unroutable", || status(&settings).unroutable == Some(keys.len() as u64));
}
