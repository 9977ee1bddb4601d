//! Delayed delivery for RabbitMQ.
//!
//! One set of exchanges and queues is installed once per vhost. An application publishes to its
//! entry exchange with a routing key that contains the delay as 28 bits, four to a word. The
//! message waits 2^n seconds in the queue of each set bit. Then the dispatch exchange routes it to
//! the queue that is bound for its app key. No plugin or daemon is involved: the broker itself
//! moves the message through replicated queues, at least once.
//!
//! # A tour
//!
//! The [`Router`] publishes, and returns once the broker has confirmed:
//!
//! ```no_run
//! use delayline::{Message, Router, Target};
//!
//! let router = Router::builder(Target::from_url("amqp://localhost")?).connect()?;
//! let message = Message::after("billing".parse()?, "90s".parse()?, "invoice 17")
//!     .with_header("customer", "C-4");
//! match router.publish(message) {
//!     Ok(receipt) => println!("due at {}", receipt.due),
//!     Err(error) => eprintln!("{error}; not sent: {:?}", error.message()),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Router::publish_all`] and a [`pipeline`](Router::pipeline) keep many messages in flight, and
//! code that takes an `impl `[`router::Publish`] can be tested with a
//! [`Recorder`](router::testing::Recorder).
//!
//! A [`retry::Worker`] consumes an application's queue and retries failed messages. A
//! [`recall::Recaller`] takes back messages that were published with an id.
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
//! # From async code
//!
//! [`Router::send`] returns at once, with a future of the confirm. It works in any runtime and
//! needs none: the router has its own thread. A router is a handle, so each task can have a clone.
//!
//! ```no_run
//! # use delayline::{Message, Router, router::PublishError};
//! async fn remind(router: Router) -> Result<(), Box<dyn std::error::Error>> {
//!     let message = Message::after("billing".parse()?, "90s".parse()?, "invoice 17");
//!     let receipt = router.send(message).await?;
//!     println!("due at {}", receipt.due);
//!     Ok(())
//! }
//! ```
//!
//! All other calls block: connecting, closing a router, and recalling. With tokio, run them in
//! `tokio::task::spawn_blocking`.
//!
//! # Fewer crates
//!
//! An application builds 123 crates for this one, most of them for the AMQP client. 21 of these hold
//! Unicode tables for host names in URLs. `cargo update -p idna_adapter --precise 1.1.0` in the
//! application replaces them with 2 smaller ones, for the same host names.
//!
//! # What is stable
//!
//! All items of this crate. The crates behind it, such as `delayline-core`, also serve the command
//! `delayline` and change with it.

pub use delayline_client::{Router, Target, recall, router};
pub use delayline_core::{
    Message,
    topology::{SetName, SetNameError, Unit, UnitError},
};

/// The address of a broker, and the credentials for it.
pub mod broker {
    pub use delayline_amqp::{
        AmqpError,
        broker::{Broker, Credentials, Secret, Tls, UrlError},
    };
}

/// Delays, app keys and routing keys: the wire contract as pure functions.
pub mod codec {
    pub use delayline_core::codec::{
        AppKey, AppKeyError, Delay, DelayError, Level, LevelError, MessageId, MessageIdError, RoutingKey,
        RoutingKeyError, Tolerance, ToleranceError,
    };
}

/// The contents of a message, and which messages are refused.
pub mod message {
    pub use delayline_core::message::{
        Handle, HandleError, Headers, InvalidMessage, MaxDelay, MaxDelayError, Message, Properties, Quota,
        Value, When, headers,
    };
}

pub mod retry {
    //! Consuming an application's queue, with retries.
    //!
    //! A [`Policy`] determines when a failed message is tried again and when it is parked.
    //! [`Policies`] hold a policy for each application and reason of failure. A [`Worker`] carries
    //! them out. Applications without a worker reject messages that they could not process, and the
    //! retry service of the platform does the same for them.

    pub use delayline_client::retry::{Ended, Handled, Job, StopHandle, Worker};
    pub use delayline_core::retry::{Backoff, Jitter, Policies, Policy, SharedPolicies, Step};
}
