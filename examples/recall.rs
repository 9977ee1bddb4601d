//! Sends a reminder in 30 days, and takes it back.

use delayline::{Message, Router, Target, recall::Recaller};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let target = Target::from_url(&std::env::var("AMQP_URL")?)?;
    let router = Router::builder(target.clone()).connect()?;
    let reminder =
        Message::after("billing".parse()?, "30d".parse()?, "pay!").with_id("invoice-17-1".parse()?);
    let handle = router.publish(reminder)?.handle.expect("the message has an id");
    let answer = Recaller::connect(target)?.recall(&handle)?;
    // `InTime`: the reminder will not be delivered.
    println!("{answer:?}");
    Ok(())
}
