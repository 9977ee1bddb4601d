//! The log, on standard error.

use env_logger::{Builder, Logger, Target};
use log::{LevelFilter, Log, Metadata, Record};

/// Libraries whose log is capped at any requested level: at `warn` the AMQP client prints whole
/// messages, and warns about ordinary answers that we handle.
const CAPPED: [&str; 5] = ["amiquip", "mio", "ureq", "ureq_proto", "rustls"];

/// Starts the log: warnings, more with `-v`, or the filter in `DELAYLINE_LOG` in the syntax of
/// `env_logger`.
pub fn start(verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::Warn,
        1 => LevelFilter::Info,
        2 => LevelFilter::Debug,
        _ => LevelFilter::Trace,
    };
    let mut builder = Builder::new();
    builder.filter_level(level).target(Target::Stderr);
    if let Ok(filters) = std::env::var("DELAYLINE_LOG") {
        builder.parse_filters(&filters);
    }
    let inner = builder.build();
    log::set_max_level(inner.filter());
    let cap = if verbose >= 2 { LevelFilter::Info } else { LevelFilter::Off };
    // Fails only if there is a logger already, which then stays.
    let _ = log::set_boxed_logger(Box::new(Capped { inner, cap }));
}

/// A filter in front of the logger. Among the logger's own filters the most specific one
/// wins, so a module of a capped library could otherwise get through.
struct Capped {
    inner: Logger,
    cap: LevelFilter,
}

impl Log for Capped {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let library = metadata.target().split("::").next().unwrap_or_default();
        (!CAPPED.contains(&library) || metadata.level() <= self.cap) && self.inner.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            self.inner.log(record);
        }
    }

    fn flush(&self) {
        self.inner.flush();
    }
}
