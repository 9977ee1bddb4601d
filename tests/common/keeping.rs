//! Queues that hold messages whose bodies are numbers.

use delayline_admin::drain::{Decision, Drain, Drained};
use delayline_amqp::Delivery;

/// The number in a body.
pub fn number(delivery: &Delivery) -> usize {
    String::from_utf8(delivery.body.clone()).unwrap().parse().unwrap()
}

/// Reads all messages without removing any, and returns their numbers in order.
pub fn look(drain: Drain<'_>) -> (Drained, Vec<usize>) {
    let mut numbers = Vec::new();
    let keep = |delivery: &Delivery| {
        numbers.push(number(delivery));
        Decision::Keep
    };
    let report = drain.run(keep, |_| {}).unwrap();
    assert_eq!(report.failure, None);
    (report, numbers)
}
