//! Consumes, and rejects failed messages.

use std::collections::HashSet;

use futures_lite::StreamExt;
use lapin::{
    Connection, ConnectionProperties,
    message::Delivery,
    options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions, BasicRejectOptions},
    types::FieldTable,
};
use tokio::signal::unix::{SignalKind, signal};

const QUEUE: &str = "billing-in";

async fn work(body: &[u8], attempt: i64) -> Result<(), String> {
    if attempt == 0 {
        return Err("the bank is closed".into());
    }
    println!("done: {} at attempt {attempt}", String::from_utf8_lossy(body));
    Ok(())
}

async fn handle(message: Delivery, done: &mut HashSet<String>) -> lapin::Result<()> {
    let id = message.properties.message_id().as_ref().map(ToString::to_string);
    if id.as_ref().is_some_and(|id| done.contains(id)) {
        println!("skipped, done before: {}", id.unwrap_or_default());
        message.ack(BasicAckOptions::default()).await?;
        return Ok(());
    }
    let headers = message.properties.headers().as_ref().map(FieldTable::inner);
    let attempt = headers.and_then(|it| it.get("delayline-attempt")?.as_long_long_int()).unwrap_or(0);
    if let Err(reason) = work(&message.data, attempt).await {
        println!("failed: {reason}");
        message.reject(BasicRejectOptions { requeue: false }).await?;
        return Ok(());
    }
    done.extend(id);
    message.ack(BasicAckOptions::default()).await?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let connection =
        Connection::connect(&std::env::var("AMQP_URL")?, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.basic_qos(10, BasicQosOptions::default()).await?;
    let mut messages = channel
        .basic_consume(QUEUE.into(), "".into(), BasicConsumeOptions::default(), FieldTable::default())
        .await?;
    // The ids of processed messages. Store them with your work, and write both in one transaction.
    let mut done = HashSet::new();
    let mut terminated = signal(SignalKind::terminate())?;
    loop {
        tokio::select! {
            _ = terminated.recv() => break,
            message = messages.next() => handle(message.ok_or("the queue is gone")??, &mut done).await?,
        }
    }
    // Messages that were delivered but not processed return to the queue.
    connection.close(200, "done".into()).await?;
    Ok(())
}
