//! The resources that a process of this machine has used, as Linux reports them.

use std::fs;

/// Ticks per second in `/proc/PID/stat`, the same on every Linux.
const TICKS: f64 = 100.0;

/// CPU seconds that a process has used so far, in user and system mode; `None` if the process does
/// not exist.
#[must_use]
pub fn cpu_seconds(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the name, which may contain spaces.
    let (_, behind) = stat.rsplit_once(')')?;
    let mut fields = behind.split_whitespace().skip(11).map(str::parse::<f64>);
    Some((fields.next()?.ok()? + fields.next()?.ok()?) / TICKS)
}

/// The memory that a process has in RAM, in bytes; `None` if the process does not exist.
#[must_use]
pub fn resident_bytes(pid: u32) -> Option<u64> {
    status(pid, "VmRSS:")
}

/// The most memory that it ever had in RAM, in bytes.
#[must_use]
pub fn peak_bytes(pid: u32) -> Option<u64> {
    status(pid, "VmHWM:")
}

fn status(pid: u32, field: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_used_resources() {
        let pid = std::process::id();
        assert!(cpu_seconds(pid).is_some());
        // The kernel counts the two values at different times, so neither is an exact bound of the
        // other.
        assert!(resident_bytes(pid) > Some(100_000) && peak_bytes(pid) > Some(100_000));
        assert_eq!((cpu_seconds(u32::MAX), resident_bytes(u32::MAX)), (None, None));
    }
}
