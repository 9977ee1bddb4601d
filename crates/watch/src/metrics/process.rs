//! The resources this process uses.

use std::fs;

use rustix::time::{ClockId, clock_gettime};

/// CPU seconds so far.
pub(super) fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    #[expect(clippy::cast_precision_loss, reason = "seconds")]
    (time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
}

/// Resident memory in bytes, where the system reports it.
pub(super) fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
