//! How much a set can carry: from a rate and a mix of delays to what each level holds and
//! drains, and from a broker's measured figures to whether it can do that.
//!
//! Nothing here talks to a broker. A message with a delay of d seconds waits in
//! the queue of each set bit of d, so the share of the messages whose bit L is set
//! says everything about level L: that share of the rate passes it, and each of
//! those messages stays for 2^L s.
//!
//! ```
//! use delayline_core::codec::Tolerance;
//! use delayline_bench::capacity::{Distribution, Load};
//!
//! let delays: Distribution = "uniform:1s..60s".parse()?;
//! let load = Load::new(1_000.0, &delays, Tolerance::NONE, false);
//! assert_eq!(load.waiting().round(), 30_500.0); // 1,000/s × 30.5 s
//! assert_eq!(load.levels[0].per_second.round(), 500.0); // every odd delay
//! # Ok::<(), delayline_bench::capacity::DistributionError>(())
//! ```

mod distribution;
mod figures;
mod load;
mod outlook;

pub use distribution::{Distribution, DistributionError};
pub use figures::{Figures, Knee, SAFE_LOAD};
pub use load::{LevelLoad, Load};
pub use outlook::{Fit, Limit, Outlook};
