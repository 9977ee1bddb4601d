//! send DELAY TEXT

use delayline::{Message, Router, broker::Broker, codec::AppKey, message::Properties};

const APP: &str = "billing";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or("usage: send DELAY TEXT");
    // Fractions of a second are rounded up, so that nothing is early.
    let (delay, text) = (next()?.parse()?, next()?);
    let router =
        Router::builder(Broker::from_url(&std::env::var("AMQP_URL")?)?).set("delay".parse()?).connect()?;
    // The id stays the same when the message is retried; the receiver knows duplicates by it.
    let id = format!("{:032x}", fastrand::u128(..));
    let properties = Properties { message_id: Some(id), ..Properties::default() };
    // Returns once the broker has stored the message.
    router.publish(Message::after(AppKey::new(APP)?, delay, text).with_properties(properties))?;
    println!("confirmed");
    Ok(())
}
