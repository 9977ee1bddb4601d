//! A management API that refuses, is cut off, or falls silent, in front of a broker that works.

use delayline_settings::Settings;
use predicates::{prelude::PredicateBooleanExt, str::contains};

use super::{daemon::Daemon, on};
use crate::common::{
    eventually, eventually_seen, installed,
    management::{FailingApi, Fault},
};

/// Why an API refuses.
const REASON: &str = "the reason of this very broker";

#[test]
fn commands_pass_on_the_reason_and_exit_with_3() {
    let settings = installed(1_000);
    let api = FailingApi::of(&settings);
    let run = |words: &[&str]| {
        let mut command = on(&settings);
        command.args(words).env("DELAYLINE_MANAGEMENT_URL", &api.url).env("DELAYLINE_APP_PASSWORD", "secret");
        command.assert()
    };
    let list = ["app", "list"];
    run(&list).code(0);
    for status in ["401 Unauthorized", "403 Forbidden", "400 Bad Request", "500 Internal Server Error"] {
        api.fail(Fault::Refusal { of: "GET", status, reason: REASON });
        run(&list).code(3).stderr(contains(REASON).and(contains(&status[..3])));
    }
    // It can be asked, and refuses a change.
    api.fail(Fault::Refusal { of: "PUT", status: "400 Bad Request", reason: REASON });
    run(&["app", "add", "newcomer"]).code(3).stderr(contains(REASON).and(contains("400")));
    api.fail(Fault::Cut { after: 700 });
    for words in [&list[..], &["doctor"]] {
        run(words).code(3).stderr(contains("was cut off").and(contains("EOF").not()));
    }
    api.fail(Fault::None);
    run(&list).code(0);
}

#[test]
fn a_daemon_goes_on_while_the_api_is_silent_and_reports_what_it_does_not_know() {
    let settings = installed(1_000);
    let api = FailingApi::of(&settings);
    let daemon = Daemon::start(&settings, &api.url, &[]);
    let read = || daemon.metric("delayline_management_read_timestamp_seconds");
    let stuck = "delayline_level_stuck_messages{level=\"00\"}";
    let arrived = || daemon.metric("delayline_canary_lateness_seconds_count{levels=\"00\"}").unwrap_or(0.0);
    let knows = |what: &str| {
        eventually_seen(what, || (read(), daemon.metric(stuck)), |(_, stuck)| *stuck == Some(0.0)).0
    };
    knows("it can count");
    for (fault, reason) in [(Fault::Silence, "timeout"), (Fault::Cut { after: 700 }, "was cut off")] {
        let known = knows("it can count again");
        api.fail(fault);
        daemon.shows(reason);
        assert_eq!(daemon.metric(stuck), None);
        let before = arrived();
        eventually("canaries go on", || arrived() > before);
        assert_eq!(daemon.get("/healthz").status, 200);
        // What needs no management API works for commands, too.
        let published = send(&settings, &api);
        assert!(published.contains("1 confirmed"), "{published}");
        api.fail(Fault::None);
        eventually_seen("it counts again", read, |now| *now > known);
    }
    // A command waits for its answer, and not for ever.
    api.fail(Fault::Silence);
    let mut list = on(&settings);
    list.args(["app", "list"]).env("DELAYLINE_MANAGEMENT_URL", &api.url);
    list.assert().code(3).stderr(contains("cannot be reached").and(contains("timeout")));
}

fn send(settings: &Settings, api: &FailingApi) -> String {
    let mut send = on(settings);
    send.args(["send", "--app", "shop", "--delay", "1s", "--lines"]).write_stdin("x\n");
    let run = send.env("DELAYLINE_MANAGEMENT_URL", &api.url).assert().code(0);
    String::from_utf8_lossy(&run.get_output().stdout).into_owned()
}
