//! Delayed delivery for RabbitMQ.
//!
//! One set of exchanges and queues is installed once per vhost. An application publishes to
//! its entry exchange with a routing key that spells the delay in 28 bits, four to a word;
//! the message waits 2^n seconds in the queue of each set bit, and then the dispatch exchange
//! routes it to the queue that is bound for its app key. There is no plugin and no daemon on
//! the way: the broker does it all, in replicated queues, at least once.
//!
//! # A tour
//!
//! The [`codec`] turns delays into routing keys. No broker is needed:
//!
//! ```
//! use delayline::codec::{AppKey, Delay, RoutingKey, Tolerance};
//!
//! let delay: Delay = "90s".parse()?;
//! let key = RoutingKey::new(delay, AppKey::new("billing")?);
//! assert_eq!(key.encode(), "delay.0000.0000.0000.0000.0000.0101.1010.billing");
//!
//! // Four queues on the way, as four bits are set; one if 38 s more are fine.
//! assert_eq!(delay.hops(), 4);
//! assert_eq!("38s".parse::<Tolerance>()?.round(delay).hops(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The [`Router`] publishes, and returns once the broker has confirmed:
//!
//! ```no_run
//! use delayline::{Message, Router, broker::Broker, codec::AppKey};
//!
//! let router = Router::builder(Broker::from_url("amqp://localhost")?).connect()?;
//! let message = Message::after(AppKey::new("billing")?, "90s".parse()?, "invoice 17")
//!     .with_header("customer", "C-4");
//! match router.publish(message) {
//!     Ok(receipt) => println!("due at {}", receipt.due),
//!     Err(error) => eprintln!("{error}; not sent: {:?}", error.message()),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`pipeline`](Router::pipeline) keeps many messages in flight, and code that
//! takes an `impl `[`router::Publish`] can be tested with a
//! [`Recorder`](router::testing::Recorder).
//!
//! # From async code
//!
//! The router blocks its caller, and one connection serves all threads. A task hands a message
//! to a thread that may block, as with `tokio::task::spawn_blocking`:
//!
//! ```ignore
//! let router = std::sync::Arc::new(Router::builder(broker).connect()?);
//! let receipt = tokio::task::spawn_blocking(move || router.publish(message)).await??;
//! ```
//!
//! If you have an asynchronous client already, [`Wire::at`](message::Wire::at) gives you the
//! routing key, the properties and the headers to publish with it. The example `tokio_lapin`
//! does that with `lapin`.
//!
//! A [`Topology`](topology::Topology) is the wanted state of a vhost as data. Installing and
//! verifying it, and everything else that a platform team does, is in the crate
//! `delayline-admin` and the command `delayline`.
//!
//! # Layout
//!
//! Each module may use those before it: [`codec`], [`topology`] and [`message`] are pure;
//! [`broker`] says where one is; [`amqp`] is the only one that talks to it;
//! [`router`], [`recall`], [`retry`] and [`gateway`] are behaviour on top.

pub use delayline_amqp as amqp;
pub use delayline_amqp::{broker, tls};
pub use delayline_client::{Router, gateway, recall, retry, router};
pub use delayline_core::{Message, backoff, codec, histogram, message, percent, shell, topology};
