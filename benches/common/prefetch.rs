//! The prefetch of the broker's dead-letter workers, as the arguments say.

use std::fmt;

/// How many messages each level has on their way; as RabbitMQ is shipped if it is not said.
#[derive(Clone, Copy)]
pub(crate) struct Prefetch(pub(crate) Option<u32>);

impl Prefetch {
    /// The one that was asked for.
    pub(crate) fn asked() -> Self {
        Self(std::env::args().find_map(|argument| argument.parse().ok()))
    }

    /// The settings of a node that has it.
    pub(crate) fn settings(self) -> Vec<String> {
        self.0
            .map(|number| format!("{{dead_letter_worker_consumer_prefetch, {number}}}"))
            .into_iter()
            .collect()
    }
}

impl fmt::Display for Prefetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(number) => write!(f, "prefetch {number}"),
            None => f.write_str("prefetch as shipped"),
        }
    }
}
