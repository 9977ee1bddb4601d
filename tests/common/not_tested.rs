//! Reports tests that cannot run on this machine. scripts/test counts the reports.

use std::io::Write;

/// Reports that a test, or a part of one, could not run, and why. It writes to stderr directly: the
/// harness captures other output, and hides the output of passed tests.
pub(crate) fn not_tested(what: &str) {
    let thread = std::thread::current();
    let line = format!("\nNOT TESTED: test {}: {what}\n", thread.name().unwrap_or("?"));
    // One write, because other tests write at the same time.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
