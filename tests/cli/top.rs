//! `delayline status --watch`, in a terminal and in a pipe.

use delayline_amqp::Session;
use delayline_node::{NodeOptions, PrivateNode};
use delayline_settings::Settings;
use delayline_watch::picture::{Sources, Watch};
use portable_pty::CommandBuilder;
use predicates::str::contains;
use serde_json::Value as Json;

use crate::{
    common::{caught, eventually, eventually_seen, install, new_set, vhost},
    delayline, on,
    others::{bound, nservicebus, publish},
    stdout,
    terminal::Terminal,
};

fn start(settings: &Settings, size: (u16, u16)) -> Terminal {
    start_with(settings, size, &[])
}

/// The command in a terminal.
fn start_with(settings: &Settings, size: (u16, u16), more: &[&str]) -> Terminal {
    let mut command = CommandBuilder::new(env!("CARGO_BIN_EXE_delayline"));
    command.env("DELAYLINE_URL", settings.broker.to_string());
    command.env("DELAYLINE_MANAGEMENT_URL", settings.management.as_ref().unwrap().url.as_str());
    command.env("DELAYLINE_UNIT_MS", settings.topology.unit.millis().to_string());
    command.args(["status", "--watch"]);
    command.args(more);
    Terminal::start(command, size)
}

#[test]
fn the_set_is_shown_until_q_is_pressed() {
    let settings = new_set(1_000);
    for (seconds, count) in [(1 << 20, 3), (1 << 12, 1)] {
        for _ in 0..count {
            let delay = format!("{seconds}s");
            on(&settings).args(["send", "--app", "a", "--delay", &delay, "--body", "x"]).assert().success();
        }
    }
    let mut terminal = start(&settings, (42, 130));
    terminal.eventually_shows("No message is stuck.");
    terminal.eventually_shows("set verified");
    let row = |wait: &str, screen: &str| {
        let row = screen.lines().find(|line| line.trim_start().starts_with(wait)).unwrap_or_default();
        row.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    terminal.eventually_shows("Due next");
    let counts = || ["12 d", "1.1 h"].map(|wait| row(wait, &terminal.shows()).get(3).cloned());
    let counted = |counts: [&'static str; 2]| {
        move |found: &[Option<String>; 2]| found.each_ref().map(Option::as_deref) == counts.map(Some)
    };
    eventually_seen("both rows are drawn", counts, counted(["3", "1"]));
    // The screen is updated automatically.
    on(&settings).args(["send", "--app", "a", "--delay", "1048576s", "--body", "x"]).assert().success();
    eventually_seen("the row is up to date", counts, counted(["4", "1"]));
    println!("{}", terminal.shows());
    terminal.press("q");
    terminal.leaves_it_clean();
}

#[test]
fn ctrl_c_and_a_signal_end_it_on_a_small_screen() {
    let settings = new_set(1_000);
    let mut terminal = start(&settings, (24, 80));
    let screen = terminal.eventually_shows("No message is stuck.");
    println!("{screen}");
    terminal.press("\u{3}");
    terminal.leaves_it_clean();

    let terminal = start(&settings, (24, 80));
    terminal.eventually_shows("No message is stuck.");
    let id = terminal.pid().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    terminal.leaves_it_clean();
}

#[test]
fn layouts_are_watched_too() {
    let settings = vhost().set("unit_ms", "1000").build().unwrap();
    let mut session = Session::open(&settings.broker).unwrap();
    let layout = nservicebus(&mut session, 1_000);
    bound(&mut session, &layout, "Sales");
    publish(&settings, &layout, "Sales", 1 << 20, 0..3);
    let mut terminal = start_with(&settings, (42, 130), &["--layout", "nservicebus"]);
    terminal.eventually_shows("layout nservicebus in vhost");
    terminal.eventually_shows("3 messages waiting, 0 handed on, 0 stuck");
    for text in ["guard: none", "No message is stuck.", "has no guard"] {
        terminal.eventually_shows(text);
    }
    publish(&settings, &layout, "Sales", 1 << 20, 3..4);
    terminal.eventually_shows("4 messages waiting");
    terminal.press("q");
    terminal.leaves_it_clean();
    let mut once = on(&settings);
    once.args(["status", "--layout", "nservicebus"]);
    assert!(stdout(&mut once).contains("waiting      4 messages"));
    // Without such a layout, the command reports that, and keeps looking.
    let mut terminal = start_with(&settings, (24, 80), &["--layout", "celery"]);
    terminal.eventually_shows("Layout `celery` cannot be seen.");
    let words = || terminal.shows().split_whitespace().collect::<Vec<_>>().join(" ");
    eventually_seen("the reason", words, |said| said.contains("has no exchange of the layout"));
    terminal.press("q");
    terminal.leaves_it_clean();
}

#[test]
fn a_lost_broker_is_reported() {
    let mut node = PrivateNode::start(NodeOptions::default()).unwrap();
    let settings = node.settings().build().unwrap();
    install(&settings);
    a_killed_broker_is_gone_before_anybody_looks_again(&mut node, &settings);
    node.restart().unwrap();
    let mut terminal = start(&settings, (42, 130));
    terminal.eventually_shows("No message is stuck.");
    node.kill();
    terminal.eventually_shows("The broker cannot be reached.");
    let words = || terminal.shows().split_whitespace().collect::<Vec<_>>().join(" ");
    eventually_seen("the age of the numbers", words, |said| said.contains("Numbers below are"));
    terminal.press("q");
    terminal.leaves_it_clean();
    let mut once = delayline();
    once.env("DELAYLINE_URL", settings.broker.to_string()).args(["status"]);
    once.assert().code(3).stdout(contains("The broker cannot be reached."));
}

fn a_killed_broker_is_gone_before_anybody_looks_again(node: &mut PrivateNode, settings: &Settings) {
    node.write_down_queues().unwrap();
    let watch = Watch::start(settings.clone(), Sources::default());
    let live = watch.live();
    // The look in progress may notice the kill first, so the test tries up to five times.
    for _ in 0..5 {
        eventually("the broker is reachable", || live.latest().broker.reachable);
        let before = live.latest().at;
        caught("a look has just finished", || live.latest().at != before);
        node.kill();
        let gone = loop {
            let picture = live.latest();
            if !picture.broker.reachable {
                break picture;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        };
        assert_eq!(gone.verdict.headline, "The broker cannot be reached.");
        if gone.broker.problem.is_some_and(|problem| problem.contains("lost a moment ago")) {
            // The next look gives a better reason.
            let problem = || live.latest().broker.problem.unwrap_or_default();
            eventually_seen("the next look has finished", problem, |problem| {
                problem.contains("cannot reach")
            });
            return;
        }
        node.restart().unwrap();
    }
    panic!("the kill was noticed only by a look");
}

#[test]
fn in_a_pipe_it_looks_once() {
    let settings = new_set(1_000);
    on(&settings).args(["send", "--app", "a", "--delay", "2d", "--body", "x"]).assert().success();
    let look = || stdout(on(&settings).arg("status"));
    let text = eventually_seen("the broker has counted the new queues", look, |text| !text.contains('?'));
    assert!(text.starts_with("No message is stuck.\n") && !text.contains('\u{1b}'), "{text}");
    assert!(
        text.contains("27 levels empty") && text.contains("waiting      1 message\nhanded on    0, 0 stuck"),
        "{text}"
    );
    let look =
        || -> Json { serde_json::from_str(&stdout(on(&settings).args(["status", "--json"]))).unwrap() };
    let json = eventually_seen("the management API answers", look, |json| json["stuck"] == 0);
    assert_eq!((&json["waiting"], &json["levels"][10]["ready"]), (&1.into(), &1.into()), "{json}");
    assert_eq!(json["forecast"][2]["within"], "day");
    assert_eq!(json["verdict"]["severity"], Json::Null);

    let nothing = vhost().build().unwrap();
    on(&nothing).arg("status").assert().code(1).stdout(contains("is not installed"));
}
