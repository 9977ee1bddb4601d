//! The page in a real browser, with a real broker behind it.
//!
//! These tests need Chromium. scripts/test installs it; without it, pass `--skip browser::`.

mod chromium;
mod daemon;
mod faults;
mod hostile;
mod layouts;
mod reading;
mod scheduled;
mod screenshots;

use delayline_core::{Message, codec::Delay};
use delayline_settings::Settings;

use crate::common::{app, eventually_seen};
use chromium::Seen;
use daemon::Daemon;

/// The window size of a desktop.
const DESK: (u32, u32) = (1_360, 1_300);

/// Sends `count` messages with a delay, and returns once the broker has them.
fn send(settings: &Settings, key: &str, seconds: u64, count: usize) {
    let router = settings.router().connect().unwrap();
    let mut pipeline = router.pipeline();
    let delay = Delay::from_seconds(seconds).unwrap();
    let mut sent = 0;
    for number in 0..count {
        if let Some(outcome) = pipeline.push(number, Message::after(app(key), delay, "x")) {
            outcome.result.unwrap();
            sent += 1;
        }
    }
    for outcome in pipeline {
        outcome.result.unwrap();
        sent += 1;
    }
    assert_eq!(sent, count);
}

/// The text of a level's cell: `.ready`, `.stuck`, `.in`.
fn cell(level: u8, kind: &str) -> String {
    format!("#levels tr[data-level=\"{level}\"] {kind}")
}

fn open(daemon: &Daemon) -> Seen {
    Seen::open(&daemon.url, DESK)
}

/// Waits until nothing is wider than the window, at each width from a telephone to a desktop.
fn fits(page: &Seen) {
    for width in [320, 390, 768, 1_360] {
        page.resize((width, 900));
        eventually_seen(
            "nothing is wider than the window",
            || page.eval("[document.documentElement.scrollWidth, innerWidth]"),
            |size| size[0].as_u64() <= size[1].as_u64() && size[1] == width,
        );
    }
}
