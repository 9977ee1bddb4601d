//! send DELAY TEXT

use delayline::{Message, Router, Target, message::Properties};

const APP: &str = "billing";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or("usage: send DELAY TEXT");
    // Fractions of a second are rounded up, so that nothing is early.
    let (delay, text) = (next()?.parse()?, next()?);
    let target = Target::from_url(&std::env::var("AMQP_URL")?)?.with_set("delay".parse()?);
    let router = Router::builder(target).connect()?;
    // The id stays the same when the message is retried; the receiver knows duplicates by it.
    let id = format!("{:032x}", fastrand::u128(..));
    let properties = Properties { message_id: Some(id), ..Properties::default() };
    // Returns once the broker has stored the message.
    router.publish(Message::after(APP.parse()?, delay, text).with_properties(properties))?;
    println!("confirmed");
    Ok(())
}
