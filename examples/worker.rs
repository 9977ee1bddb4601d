//! A consumer in Rust that decides about each message itself. It needs no retry
//! service.
//!
//!     cargo run --example worker -- amqp://guest:guest@localhost/ billing
//!
//! The queue `billing-in` must be bound to `delay.dispatch`; this does so.

use std::sync::atomic::AtomicBool;

use delayline::{
    amqp::{AmqpError, Session},
    broker::Broker,
    codec::{AppKey, RoutingKey},
    retry::{Backoff, Handled, Job, Policies, Policy, SharedPolicies, Worker},
    topology::{Binding, Endpoint, Names, Queue, SetName},
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: worker URL APP";
    let broker = Broker::from_url(&arguments.next().ok_or(usage)?)?;
    let app: AppKey = arguments.next().ok_or(usage)?.parse()?;
    let queue = declare(&broker, &app)?;
    let backoff = Backoff::List(vec!["2s".parse()?, "5s".parse()?, "10s".parse()?]);
    let policies = Policies::new(Policy::new(backoff));
    println!("waiting for messages");
    // A real one would set this on SIGTERM.
    let stop = AtomicBool::new(false);
    Worker::new(broker, queue, app, SharedPolicies::new(policies)).run(&stop, process)?;
    Ok(())
}

fn process(job: &Job<'_>) -> Handled {
    let text = String::from_utf8_lossy(job.body);
    println!("attempt {} of `{text}`, first published to `{}`", job.attempt, job.exchange);
    match (text.as_ref(), job.attempt) {
        ("", _) => Handled::Park("empty".into()),
        // For example from a server's Retry-After.
        ("busy", 0) => Handled::RetryAfter("3s".parse().unwrap_or_default(), "busy".into()),
        (_, 0) => Handled::Retry("the bank is closed".into()),
        _ => Handled::Done,
    }
}

fn declare(broker: &Broker, app: &AppKey) -> Result<String, AmqpError> {
    let mut session = Session::open(broker)?;
    let queue = format!("{app}-in");
    let arguments = [
        ("x-queue-type", "quorum"),
        ("x-dead-letter-exchange", "delay.retry"),
        ("x-dead-letter-routing-key", app.as_str()),
        ("x-dead-letter-strategy", "at-least-once"),
        ("x-overflow", "reject-publish"),
    ];
    let arguments = arguments.map(|(name, value)| (name.to_owned(), value.into())).into();
    session.declare_queue(&Queue { name: queue.clone(), level: None, arguments })?;
    session.bind(&Binding {
        source: Names::new(SetName::default()).dispatch(),
        destination: Endpoint::Queue(queue.clone()),
        key: RoutingKey::binding_pattern(app),
    })?;
    Ok(queue)
}
