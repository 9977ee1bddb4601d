//! Sends an invoice in 90 seconds.

use delayline::{Message, Router, broker::Broker, codec::AppKey};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let router = Router::builder(Broker::from_url(&std::env::var("AMQP_URL")?)?).connect()?;
    let receipt = router.publish(Message::after(AppKey::new("billing")?, "90s".parse()?, "invoice 17"))?;
    println!("due at {}", receipt.due);
    Ok(())
}
