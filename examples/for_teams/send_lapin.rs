//! send SECONDS TEXT

use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties,
    options::{BasicPublishOptions, ConfirmSelectOptions},
};

const APP: &str = "billing";

fn routing_key(seconds: f64, app: &str) -> Result<String, &'static str> {
    if !(0.0..=268_435_455.0).contains(&seconds) {
        return Err("a delay is 0 to 268,435,455 seconds");
    }
    // Rounded up, so that nothing is early.
    let seconds = seconds.ceil() as u32;
    let words: String = (0..7).rev().map(|word| format!("{:04b}.", seconds >> (4 * word) & 15)).collect();
    Ok(format!("delay.{words}{app}"))
}

/// Returns once the broker has stored the message. The channel is in confirm mode.
async fn send(channel: &Channel, seconds: f64, body: &[u8]) -> Result<(), Box<dyn std::error::Error>> {
    // The id stays the same when the message is retried; the receiver knows duplicates by it.
    let id = format!("{:032x}", fastrand::u128(..));
    let properties = BasicProperties::default().with_delivery_mode(2).with_message_id(id.into());
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let key = routing_key(seconds, APP)?;
    match channel.basic_publish("delay".into(), key.into(), options, body, properties).await?.await? {
        Confirmation::Ack(None) => Ok(()),
        // A message that no queue took is also acknowledged.
        Confirmation::Ack(Some(returned)) | Confirmation::Nack(Some(returned)) => {
            Err(format!("no queue took the message: {}", returned.reply_text).into())
        }
        Confirmation::Nack(None) | Confirmation::NotRequested => {
            Err("the broker refused to store the message".into())
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or("usage: send SECONDS TEXT");
    let (seconds, text) = (next()?.parse()?, next()?);
    let connection =
        Connection::connect(&std::env::var("AMQP_URL")?, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    send(&channel, seconds, text.as_bytes()).await?;
    println!("confirmed");
    connection.close(200, "done".into()).await?;
    Ok(())
}
