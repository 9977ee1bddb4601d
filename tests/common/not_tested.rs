//! What cannot be tested here says so, and scripts/test counts it.

use std::io::Write;

/// Says that a test, or a part of one, could not be made, and why. It goes past what the
/// harness captures, of which nothing is shown when a test passes.
pub(crate) fn not_tested(what: &str) {
    let thread = std::thread::current();
    let line = format!("\nNOT TESTED: test {}: {what}\n", thread.name().unwrap_or("?"));
    // In one piece, as other tests write at the same time.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
