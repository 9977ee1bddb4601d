//! Consumes, and retries failed messages.

use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
    thread,
};

use delayline::{
    Target,
    retry::{Backoff, Handled, Job, Policy, Worker},
};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};

const APP: &str = "billing";
const QUEUE: &str = "billing-in";

fn work(body: &[u8], attempt: u32) -> Result<(), String> {
    if attempt == 0 {
        return Err("the bank is closed".into());
    }
    println!("done: {} at attempt {attempt}", String::from_utf8_lossy(body));
    Ok(())
}

fn handle(job: &Job<'_>, done: &Mutex<HashSet<String>>) -> Handled {
    let done = || done.lock().unwrap_or_else(PoisonError::into_inner);
    let id = job.properties.message_id.clone();
    if id.as_ref().is_some_and(|id| done().contains(id)) {
        println!("skipped, done before: {}", id.unwrap_or_default());
        return Handled::Done;
    }
    match work(job.body, job.attempt) {
        Ok(()) => {
            done().extend(id);
            Handled::Done
        }
        Err(reason) => {
            println!("failed: {reason}");
            Handled::Retry(reason)
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let target = Target::from_url(&std::env::var("AMQP_URL")?)?.with_set("delay".parse()?);
    let policy = Policy::new(Backoff::List(vec!["10s".parse()?, "1m".parse()?, "5m".parse()?]));
    let worker = Worker::new(target, QUEUE, APP.parse()?, policy).concurrency(8);
    let (stop, mut signals) = (worker.stop_handle(), Signals::new([SIGTERM, SIGINT])?);
    thread::spawn(move || signals.forever().next().map(|_| stop.stop()));
    // The ids of processed messages. Store them with your work, and write both in one transaction.
    let done = Mutex::new(HashSet::new());
    println!("{}", worker.run(|job| handle(job, &done)));
    Ok(())
}
