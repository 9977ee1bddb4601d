//! Declares and binds the queue.

use lapin::{
    Connection, ConnectionProperties,
    options::{QueueBindOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable},
};

const APP: &str = "billing";
const QUEUE: &str = "billing-in";

#[tokio::main(flavor = "current_thread")]
async fn main() -> lapin::Result<()> {
    let address = std::env::var("AMQP_URL").expect("AMQP_URL is set");
    let connection = Connection::connect(&address, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let mut arguments = FieldTable::default();
    for (name, value) in [
        ("x-queue-type", "quorum"),
        ("x-queue-leader-locator", "balanced"),
        // Rejected messages go to the retry service. The broker keeps each until it is there.
        ("x-dead-letter-exchange", "delay.retry"),
        ("x-dead-letter-routing-key", APP),
        ("x-dead-letter-strategy", "at-least-once"),
        ("x-overflow", "reject-publish"),
    ] {
        arguments.insert(name.into(), AMQPValue::LongString(value.into()));
    }
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(QUEUE.into(), options, arguments).await?;
    let key = format!("delay.{}{APP}", "*.".repeat(7));
    let nothing = FieldTable::default();
    channel
        .queue_bind(QUEUE.into(), "delay.dispatch".into(), key.into(), QueueBindOptions::default(), nothing)
        .await?;
    connection.close(200, "done".into()).await
}
