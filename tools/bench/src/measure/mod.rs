//! Measuring a broker's delay capacity, in a throw-away set.
//!
//! [`run`] installs a set under a name of its own, measures how fast messages go
//! in and come out, how late they are at a steady rate, and what they cost while
//! they wait, and removes the set again, also when it is interrupted or fails. The
//! broker does real work meanwhile: what else runs on it is slower.
//!
//! [`BenchPlan`] sets the steps and their time limits; [`Report`] holds the results as data;
//! [`meaning`](Report::meaning) and [`advice`](Report::advice) put them into words without a
//! broker.

mod advice;
pub(crate) mod drain;
mod histogram;
pub(crate) mod mark;
mod plan;
pub(crate) mod publish;
mod report;
mod run;
mod site;
mod stock;
pub(crate) mod sustain;

use std::sync::atomic::{AtomicBool, Ordering};

use delayline_admin::AdminError;
use delayline_amqp::AmqpError;
use delayline_client::router::PublishError;

pub use histogram::{Histograms, Late};
pub use plan::{BenchPlan, PlanError};
pub use report::{Broker, Conditions, Drained, Knee, Published, Report, Stock, Sustained, Way};
pub use run::{Progress, run};

/// Why a broker could not be measured. The throw-away set is removed anyway;
/// [`BenchError::Left`] reports a set that could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The plan cannot be measured.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A connection could not be made or was lost.
    #[error(transparent)]
    Amqp(#[from] AmqpError),
    /// The set could not be installed.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// A message could not be published.
    #[error("while measuring, {0}")]
    Publish(Box<PublishError>),
    /// The broker cannot carry a set.
    #[error("this broker cannot carry a set: {reason}; {remedy}")]
    Unsuitable {
        /// The problem with it.
        reason: String,
        /// The remedy.
        remedy: String,
    },
    /// Something exists under the name of the throw-away set.
    #[error(
        "{object} already exists; the benchmark uses and removes only a set of its own: leave out --name"
    )]
    Exists {
        /// The first that was found.
        object: String,
    },
    /// Messages stopped coming.
    #[error("{missing} of {count} messages had not arrived after {seconds} s without any arrival")]
    Stalled {
        /// How many were missing.
        missing: u64,
        /// How many were sent.
        count: u64,
        /// How long none had arrived.
        seconds: u64,
    },
    /// It was stopped.
    #[error("interrupted")]
    Interrupted,
    /// The throw-away set is still there.
    #[error("{reason}; the throw-away set `{set}` is still on the broker: remove it with {remedy}")]
    Left {
        /// Why it could not be removed, or the earlier failure.
        reason: String,
        /// Its name.
        set: String,
        /// The command that removes it.
        remedy: String,
    },
}

impl From<PublishError> for BenchError {
    fn from(error: PublishError) -> Self {
        Self::Publish(Box::new(error))
    }
}

/// Ends a measurement that is no longer wanted.
fn check(stop: &AtomicBool) -> Result<(), BenchError> {
    if stop.load(Ordering::Relaxed) { Err(BenchError::Interrupted) } else { Ok(()) }
}
