//! Ctrl-C and SIGTERM.
//!
//! A command that can be ended in order asks for the flag once there is something to put in
//! order; until then, and in all others, the signal ends the process, which shells count as
//! 130 as well.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
};

use super::{Code, Failure};

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// A flag that the first signal sets. The second ends the process.
pub(super) fn flag() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::clone(FLAG.get_or_init(Arc::default));
    for signal in [SIGINT, SIGTERM] {
        // In this order: it looks whether the flag was set before.
        flag::register_conditional_shutdown(signal, Code::Interrupted.number().into(), Arc::clone(&flag))?;
        flag::register(signal, Arc::clone(&flag))?;
    }
    Ok(flag)
}

/// Whether a signal has come.
pub(super) fn happened() -> bool {
    FLAG.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}
