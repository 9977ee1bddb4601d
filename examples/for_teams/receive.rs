//! Consumes, and retries what fails.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, atomic::AtomicBool},
};

use delayline::{
    Router,
    broker::Broker,
    codec::AppKey,
    retry::{Backoff, Handled, Job, Policies, Policy, SharedPolicies, Worker},
};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
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
    let mut done = done.lock().expect("nobody panics with it");
    let id = job.properties.message_id.clone();
    if id.as_ref().is_some_and(|id| done.contains(id)) {
        println!("skipped, done before: {}", id.unwrap_or_default());
        return Handled::Done;
    }
    match work(job.body, job.attempt) {
        Ok(()) => {
            done.extend(id);
            Handled::Done
        }
        Err(reason) => {
            println!("failed: {reason}");
            Handled::Retry(reason)
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        flag::register(signal, Arc::clone(&stop))?;
    }
    let router = Router::builder(Broker::from_url(&std::env::var("AMQP_URL")?)?).set("delay".parse()?);
    let policies =
        Policies::new(Policy::new(Backoff::List(vec!["10s".parse()?, "1m".parse()?, "5m".parse()?])));
    // The ids of what is done. Keep them where your work is kept, and write both in one transaction.
    let done = Mutex::new(HashSet::new());
    Worker::new(router, QUEUE, AppKey::new(APP)?, SharedPolicies::new(policies))
        .run(&stop, |job| handle(job, &done))?;
    Ok(())
}
