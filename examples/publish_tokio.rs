//! Sends two invoices in 90 seconds, from a task of tokio.

use delayline::{Message, Router, Target};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let target = Target::from_url(&std::env::var("AMQP_URL")?)?;
    let router = tokio::task::spawn_blocking(|| Router::builder(target).connect()).await??;
    let one = Message::after("billing".parse()?, "90s".parse()?, "invoice 17");
    let other = Message::after("billing".parse()?, "90s".parse()?, "invoice 18");
    let (one, other) = tokio::join!(router.send(one), router.send(other));
    println!("due at {} and {}", one?.due, other?.due);
    Ok(())
}
