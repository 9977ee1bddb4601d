//! Sends an invoice in 90 seconds.

use delayline::{Message, Router, Target};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let router = Router::builder(Target::from_url(&std::env::var("AMQP_URL")?)?).connect()?;
    let receipt = router.publish(Message::after("billing".parse()?, "90s".parse()?, "invoice 17"))?;
    println!("due at {}", receipt.due);
    Ok(())
}
