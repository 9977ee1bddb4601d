//! Pictures for the documentation, with realistic traffic. scripts/screenshots takes them, which
//! needs some minutes.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use delayline_core::{Message, codec::Delay};
use delayline_settings::Settings;
use serde_json::json;

use super::{DESK, Daemon, open};
use crate::common::{
    Inbox, app, eventually, eventually_seen, new_set,
    raw::{message, publish},
};

const APPS: [&str; 4] = ["billing", "mail", "invoices.eu", "search"];

/// How long traffic flows before the pictures are taken, in seconds.
const LIVELY: u64 = 150;

/// A delay as applications choose it: some are round numbers, the others are spread evenly over all
/// orders of magnitude from seconds to months.
fn delay(random: &mut fastrand::Rng) -> Delay {
    let seconds = match random.u8(..) {
        0..70 => random.choice([5, 30, 60, 90, 300, 3_600, 86_400]).unwrap(),
        _ => 10_f64.powf(random.f64() * 6.6) as u64 + 1,
    };
    Delay::from_seconds(seconds).unwrap()
}

fn traffic(settings: &Settings, stop: &AtomicBool) {
    let mut random = fastrand::Rng::with_seed(7);
    let router = settings.router().connect().unwrap();
    let mut pipeline = router.pipeline();
    let mut next = Instant::now();
    for number in 0..u64::MAX {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let key = random.choice(APPS).unwrap();
        let message = Message::after(app(key), delay(&mut random), "x".repeat(200));
        if let Some(outcome) = pipeline.push(number, message) {
            outcome.result.unwrap();
        }
        // The first 9,000 messages, a day's stock, are sent at once.
        if number >= 9_000 {
            next = next.max(Instant::now()) + Duration::from_secs_f64(-random.f64().max(1e-6).ln() / 45.0);
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }
    pipeline.for_each(|outcome| drop(outcome.result));
}

fn directory() -> PathBuf {
    PathBuf::from(std::env::var_os("SCREENSHOTS").expect("scripts/screenshots names a directory"))
}

#[test]
#[ignore = "makes the pictures of the documentation: scripts/screenshots"]
fn a_terminal_while_a_level_is_stuck() {
    let settings = new_set(1_000);
    let _inboxes = APPS.map(|key| Inbox::open(&settings, key));
    for key in APPS {
        super::send(&settings, key, 3_600, 250);
    }
    crate::common::refusing(&settings, "reports");
    super::send(&settings, "reports", 8, 160);
    let printed = |command| String::from_utf8(terminal(&settings, command)).unwrap();
    let status = eventually_seen("a level is stuck", || printed("status"), |it| it.contains("is stuck: "));
    let doctor =
        eventually_seen("the doctor names it", || printed("doctor"), |it| it.contains("stuck-dead-letters"));
    for (command, text) in [("status", status), ("doctor", doctor)] {
        std::fs::write(directory().join(format!("{command}.txt")), text).unwrap();
    }
}

#[test]
#[ignore = "makes the pictures of the documentation: scripts/screenshots"]
fn light_dark_and_telephone() {
    let directory = directory();
    let settings = new_set(1_000);
    let stop = AtomicBool::new(false);
    let inboxes: Vec<_> = APPS.map(|key| Inbox::open(&settings, key)).into();
    let daemon = Daemon::start(&settings, &[]).has_looked();
    thread::scope(|scope| {
        scope.spawn(|| traffic(&settings, &stop));
        let stopped = &stop;
        scope.spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                inboxes.iter().for_each(|inbox| drop(inbox.next(Duration::from_millis(5))));
            }
        });
        scope.spawn(|| fail(&settings, &stop));
        let page = open(&daemon);
        page.prefer(&[("prefers-color-scheme", "light"), ("prefers-reduced-motion", "reduce")]);
        let since = Instant::now();
        eventually("the page shows numbers", || page.text("#headline") != "Looking …");
        while since.elapsed() < Duration::from_secs(LIVELY) {
            thread::sleep(Duration::from_secs(1));
        }
        let full = |width: u32| {
            page.resize((width, 900));
            // The browser applies the new scale a moment later.
            thread::sleep(Duration::from_secs(2));
            let height = page.eval("Math.ceil(document.body.getBoundingClientRect().height)");
            page.resize((width, u32::try_from(height.as_u64().unwrap()).unwrap()));
            thread::sleep(Duration::from_secs(2));
        };
        full(DESK.0);
        // On a busy machine, a level may be slow for a moment.
        eventually("no level is stuck", || page.eval("document.querySelector('[data-stuck]')").is_null());
        page.screenshot(&directory.join("dashboard-light.png"));
        page.prefer(&[("prefers-color-scheme", "dark"), ("prefers-reduced-motion", "reduce")]);
        thread::sleep(Duration::from_secs(2));
        page.screenshot(&directory.join("dashboard-dark.png"));
        page.prefer(&[("prefers-color-scheme", "light"), ("prefers-reduced-motion", "reduce")]);
        full(390);
        page.screenshot(&directory.join("dashboard-phone.png"));
        // A bad day: one application takes no messages, and another does not exist.
        crate::common::refusing(&settings, "reports");
        super::send(&settings, "reports", 8, 160);
        super::send(&settings, "newsletter", 2, 320);
        page.eval("(document.querySelector('#unroutable').open = true, 0)");
        eventually("the unroutable messages are shown", || {
            page.text("#unroutable .body").contains("newsletter")
        });
        full(DESK.0);
        eventually("the headline reports the stuck level", || page.text("#headline").contains("is stuck"));
        page.screenshot(&directory.join("dashboard-stuck.png"));
        stop.store(true, Ordering::Relaxed);
    });
}

/// What a command prints to a terminal of 110 columns, with its colours.
fn terminal(settings: &Settings, command: &str) -> Vec<u8> {
    let line = format!("stty cols 110; '{}' {command} 2>/dev/null", env!("CARGO_BIN_EXE_delayline"));
    let output = std::process::Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .env("TERM", "xterm-256color")
        .env("DELAYLINE_URL", crate::common::url(settings))
        .env("DELAYLINE_MANAGEMENT_URL", crate::common::shared_node().management_url())
        .output()
        .unwrap();
    output.stdout
}

/// Makes messages fail now and then, so that some are retried and some are parked.
fn fail(settings: &Settings, stop: &AtomicBool) {
    let mut random = fastrand::Rng::with_seed(3);
    let begun = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let failed = (0..random.usize(1..6)).map(|_| {
            let key = random.choice(["billing", "mail", "search"]).unwrap();
            // No message is parked in the last minute.
            let gives_up = random.u8(..) < 30 && begun.elapsed() < Duration::from_secs(LIVELY / 3);
            let attempt = if gives_up { 100 } else { 1 };
            message("delay.retry", key, "x", &json!({ "headers": { "delayline-attempt": attempt } }))
        });
        publish(settings, failed.collect::<Vec<_>>());
        thread::sleep(Duration::from_secs(2));
    }
}
