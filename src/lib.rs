//! Delayed delivery for RabbitMQ.
//!
//! One set of exchanges and queues is installed once per vhost. An application
//! publishes to its entry exchange with a routing key that spells the delay in
//! 28 bits, four to a word; the message waits 2^n seconds in the queue of each set bit, and then
//! the dispatch exchange hands it to whoever is bound for its app key. There is
//! no plugin and no daemon on the way: the broker does it all, in replicated
//! queues, at least once.
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
//! use delayline::{Message, Router, Settings, codec::AppKey};
//!
//! let router = Router::connect(&Settings::from_url("amqp://localhost")?)?;
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
//! A [`Topology`](topology::Topology) is the wanted state of a vhost as data;
//! [`admin`] installs, verifies, shows and removes it:
//!
//! ```no_run
//! use delayline::{Settings, admin, topology::Topology};
//!
//! let settings = Settings::from_url("amqp://localhost")?;
//! let topology = Topology::new(settings.topology.clone());
//! admin::install(&settings, &topology, false, || {})?;
//! assert!(admin::verify(&settings, &topology)?.findings.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Layout
//!
//! Each module may use those before it: [`codec`] and [`topology`] and
//! [`message`] are pure; [`settings`] reads files and variables; [`amqp`] and
//! [`management`] are the only ones that talk to a broker, each in its protocol;
//! [`router`], [`holding`] and [`admin`] are behaviour on top. [`capacity`] reckons, without a
//! broker, what a set carries. The command line, what it measures a broker with, and the
//! private node of its demo come with the feature `cli`, which is on by default;
//! an application that only publishes does without.

pub mod admin;
pub mod amqp;
#[cfg(feature = "cli")]
pub mod bench;
pub mod canary;
pub mod capacity;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
pub mod codec;
#[cfg(all(feature = "cli", any(test, fuzzing)))]
#[doc(hidden)]
pub mod fuzzing;
pub mod histogram;
pub mod holding;
pub mod management;
pub mod message;
#[cfg(feature = "cli")]
pub mod metrics;
#[cfg(feature = "cli")]
pub mod node;
pub mod picture;
pub mod retry;
pub mod router;
pub mod settings;
mod shell;
mod tls;
pub mod topology;
#[cfg(feature = "cli")]
pub mod web;

pub use message::Message;
pub use router::Router;
pub use settings::Settings;
