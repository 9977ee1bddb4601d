//! A consumer in Rust that says of each message what becomes of it. It needs no
//! retry service.
//!
//!     cargo run --example worker -- amqp://guest:guest@localhost/ billing
//!
//! The queue `billing-in` must be bound to `delay.dispatch`; this does so.

use std::sync::atomic::AtomicBool;

use delayline::{
    Settings,
    amqp::Session,
    codec::{AppKey, RoutingKey},
    retry::{Handled, Job, Policies, SharedPolicies, Worker},
    topology::{Binding, Endpoint, Names, Queue},
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: worker URL APP";
    let settings = Settings::from_url(&arguments.next().ok_or(usage)?)?;
    let app: AppKey = arguments.next().ok_or(usage)?.parse()?;
    let queue = declare(&settings, &app)?;
    let policies = Policies::parse("default.list = ['2s', '5s', '10s']")?;
    println!("waiting for messages");
    // A real one would set this on SIGTERM.
    let stop = AtomicBool::new(false);
    Worker::new(settings, queue, app, SharedPolicies::new(policies)).run(&stop, process)?;
    Ok(())
}

fn process(job: &Job<'_>) -> Handled {
    let text = String::from_utf8_lossy(job.body);
    println!("attempt {} of `{text}`, first published to `{}`", job.attempt, job.exchange);
    match (text.as_ref(), job.attempt) {
        ("", _) => Handled::GiveUp("empty".into()),
        // As a server says with Retry-After.
        ("busy", 0) => Handled::RetryAfter("3s".parse().unwrap_or_default(), "busy".into()),
        (_, 0) => Handled::Retry("the bank is closed".into()),
        _ => Handled::Done,
    }
}

fn declare(settings: &Settings, app: &AppKey) -> Result<String, delayline::amqp::AmqpError> {
    let mut session = Session::open(&settings.broker)?;
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
        source: Names::new(settings.topology.set.clone()).dispatch(),
        destination: Endpoint::Queue(queue.clone()),
        key: RoutingKey::binding_pattern(app),
    })?;
    Ok(queue)
}
