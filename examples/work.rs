//! Works on a queue, eight messages at a time, until SIGTERM.

use delayline::{Target, retry::Handled, retry::Policy, retry::Worker};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let target = Target::from_url(&std::env::var("AMQP_URL")?)?;
    let worker = Worker::new(target, "billing-in", "billing".parse()?, Policy::default()).concurrency(8);
    let (stop, mut signals) = (worker.stop_handle(), signal_hook::iterator::Signals::new([15])?);
    std::thread::spawn(move || signals.forever().next().map(|_| stop.stop()));
    let ended = worker.run(|job| {
        println!("done: {}", String::from_utf8_lossy(job.body));
        Handled::Done
    });
    println!("{ended}");
    Ok(())
}
