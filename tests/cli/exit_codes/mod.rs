//! What every command ends with, by every cause: docs/exit-codes.md says it, and this walks
//! through its table.

mod causes;
mod signals;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Mutex,
    thread,
    time::Duration,
};

use assert_cmd::Command;
use delayline_settings::Settings;

use crate::{
    common::{eventually_seen, installed, refusing, shared::on_node, shared_node, vhost},
    delayline, json, on,
};

/// A set, and an application without a user.
const PLATFORM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/cli/platform.toml");

/// How many commands run side by side.
const AT_A_TIME: usize = 6;

/// By command, the code for each cause; `None` where it does not come to that.
type Table = BTreeMap<String, BTreeMap<String, Option<i32>>>;

fn table() -> Table {
    let document = std::fs::read_to_string(
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("docs/exit-codes.md"),
    )
    .unwrap();
    let lines = document.lines().skip_while(|line| !line.starts_with("| command |"));
    let rows: Vec<Vec<String>> = lines
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect())
        .collect();
    let (head, rows) = (&rows[0], &rows[2..]);
    let codes = |row: &Vec<String>| {
        let cells = head.iter().zip(row).skip(1);
        let code = |text: &String| if text == "–" { None } else { Some(text.parse().unwrap()) };
        cells.map(|(cause, cell)| (cause.clone(), code(cell))).collect()
    };
    rows.iter().map(|row| (row[0].trim_matches('`').to_owned(), codes(row))).collect()
}

/// The commands under one, as the command itself lists them.
fn under(command: &[&str]) -> Vec<String> {
    let output = delayline().args(command).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')))
        .map(|line| line.split_whitespace().next().unwrap().to_owned())
        .filter(|name| name != "help")
        .collect()
}

/// All commands that do something.
pub(crate) fn commands() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for command in under(&[]) {
        let nested = under(&[&command]);
        if nested.is_empty() {
            all.insert(command);
        } else {
            all.extend(nested.iter().map(|name| format!("{command} {name}")));
        }
    }
    all
}

/// Arguments with which a command has nothing to complain about.
fn arguments(command: &str) -> Vec<&str> {
    let more: &[&str] = match command {
        "install" | "verify" | "app list" | "doctor" | "uninstall" | "status" => &[],
        "plan" => &["--rate", "1", "--delays", "fixed:1s"],
        "demo" | "dev" | "parked list" | "unroutable list" => &[],
        "parked show" | "unroutable show" => &[],
        "recalled list" | "recalled show" => &["--app", "nobody"],
        "recalled replay" | "recalled discard" => &["--app", "nobody", "--all"],
        "app add" => &["nobody", "--no-user"],
        "app remove" => &["nobody", "--no-user"],
        "app check" | "app show" => &["nobody"],
        "app discard" => &["nobody", "--dry-run"],
        "gateway add" => &["orders.delayed", "--type", "topic"],
        "gateway list" => &[],
        "gateway check" | "gateway remove" => &["orders.delayed"],
        "guard" => &["nservicebus"],
        "transfer" => &["nservicebus", "delay"],
        "top" => &["--once"],
        "unstick" => &["--dry-run"],
        "apply" | "diff" => &[PLATFORM],
        "export" => &[],
        "key" => &["90s", "nobody"],
        "decode" => &["nonsense"],
        "conformance" => &["true"],
        "send" => &["--app", "nobody", "--delay", "1d", "--body", "x"],
        "recall" => &["delay.0000.0000.0000.0000.0000.0000.1010.nobody.~.x"],
        "reschedule" => {
            &["delay.0000.0000.0000.0000.0000.0000.1010.nobody.~.x", "--delay", "1d", "--body", "x"]
        }
        "scheduled list" | "scheduled count" => &["--app", "nobody"],
        "scheduled show" => &["delay.0000.0000.0000.0000.0000.0000.1010.nobody.~.x"],
        "listen" => &["--app", "nobody", "--count", "1"],
        "serve" => &["--no-web"],
        "probe" => &["--horizon", "0"],
        "retry show" => &["nobody"],
        "parked replay" | "parked discard" | "unroutable replay" | "unroutable discard" => &["--all"],
        "bench" => &["--count", "100"],
        "completions" => &["bash"],
        "man" | "version" => &[],
        other => panic!("`{other}` is new: it needs arguments here, and a row in docs/exit-codes.md"),
    };
    command.split(' ').chain(more.iter().copied()).collect()
}

/// The command, with a broker and everything else that it can need.
fn ready(settings: &Settings, command: &str) -> Command {
    let mut ready = on(settings);
    ready.args(arguments(command)).env("DELAYLINE_APP_PASSWORD", "nobody").write_stdin("");
    ready
}

/// Who is asked to prove what an application may do is a user that the broker knows.
fn as_somebody(mut run: Command, command: &str) -> Command {
    if command == "app check" {
        run.args(["--user", "guest"]).env("DELAYLINE_APP_PASSWORD", "guest");
    }
    run
}

/// Every way in which a file that matters can be unreadable.
fn without_a_file(command: &str) -> Vec<Command> {
    let settings = |name: &str, value: &str| {
        let mut it = delayline();
        it.args(arguments(command)).env("DELAYLINE_APP_PASSWORD", "nobody").env(name, value);
        it.write_stdin("");
        it
    };
    let nowhere = "/nowhere/at/all";
    let given = |arguments: &[&str]| {
        let mut it = delayline();
        it.args(arguments).write_stdin("");
        it
    };
    let mut all = vec![];
    if !matches!(command, "dev" | "plan" | "man") {
        all.push(settings("DELAYLINE_CONFIG", nowhere));
        all.push(settings("DELAYLINE_PASSWORD_FILE", nowhere));
        let mut tls = settings("DELAYLINE_CA_FILE", nowhere);
        tls.env("DELAYLINE_URL", "amqps://localhost:1");
        all.push(tls);
    }
    match command {
        "send" => {
            let one = ["send", "--app", "a", "--delay", "1s", "--file"];
            for file in [nowhere, "/"] {
                all.push(given(&[&one[..], &[file]].concat()));
            }
            all.push(given(&[&one[..], &[nowhere, "--lines"]].concat()));
        }
        "apply" | "diff" => all.push(given(&[command, nowhere])),
        "transfer" => all.push(given(&["transfer", "delay", "later", "--to-config", nowhere])),
        "export" => all.push(given(&["export", "--file", nowhere])),
        "serve" => all.push(given(&["serve", "--policies", nowhere])),
        "retry show" => all.push(given(&["retry", "show", "a", "--policies", nowhere])),
        "plan" => {
            for file in [nowhere, "/"] {
                all.push(given(&[&arguments("plan")[..], &["--bench", file]].concat()));
            }
        }
        "bench" => all.push(given(&["bench", "--hdr", nowhere])),
        "dev" => {
            all.push(given(&["dev", "--apps", nowhere]));
            all.push(given(&["dev", "--policies", nowhere]));
        }
        "man" => all.push(given(&["man", "--into", nowhere])),
        _ => {}
    }
    all
}

/// How a run ended: its code, and all that it said.
#[derive(Debug)]
struct Ended {
    code: i32,
    said: String,
}

/// What a run ends with. One that should have been refused, and runs on, is ended.
fn end(mut run: Command) -> Ended {
    let ended = run.timeout(Duration::from_secs(120)).output().unwrap();
    let code = ended.status.code().unwrap_or_else(|| panic!("it does not end: {run:?}"));
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { code, said: text(ended.stdout) + &text(ended.stderr) }
}

/// What somebody who meets a cause has to be told, one word of these: what is wrong, or what to do.
fn remedies(command: &str, cause: &str) -> &'static [&'static str] {
    match (command, cause) {
        (_, "wrong usage") => &["--no-such-flag"],
        (_, "settings") => &["`url`", "`window`", "DELAYLINE_PASSWORD"],
        (_, "files") => &["/nowhere/at/all", "`/`", "/:"],
        (_, "unreachable") => &["127.0.0.1:1"],
        (_, "no vhost") => &["rabbitmqctl add_vhost no-such-vhost"],
        // It is about the objects of a library.
        ("guard", "no set") => &["is this the right vhost?"],
        // It shows all that `apply` would make.
        ("diff", "no set") => &["+ 63 exchanges and queues"],
        (_, "no set") => &["delayline install"],
        _ => &[],
    }
}

/// What a cause makes a command end with, each time if there are several ways to it.
fn ended(command: &str, cause: &str, stuck: &Settings) -> Vec<Ended> {
    let at = |url: &str, management: &str| {
        let mut it = ready(stuck, command);
        it.env("DELAYLINE_URL", url).env("DELAYLINE_MANAGEMENT_URL", management);
        it.env("DELAYLINE_CONNECT_TIMEOUT", "2s").env("DELAYLINE_PUBLISH_TIMEOUT", "2s");
        end(it)
    };
    match cause {
        "wrong usage" => {
            // Right behind the command: what follows may be arguments of another program.
            let mut typed = arguments(command);
            typed.insert(command.split(' ').count(), "--no-such-flag");
            let mut it = delayline();
            it.args(typed);
            vec![end(it)]
        }
        "settings" => {
            let wrong =
                [("DELAYLINE_URL", "broker"), ("DELAYLINE_WINDOW", "0"), ("DELAYLINE_USERNAME", "somebody")];
            let with = |(name, value): (&str, &str)| {
                let mut it = delayline();
                it.args(arguments(command))
                    .env("DELAYLINE_APP_PASSWORD", "x")
                    .env(name, value)
                    .write_stdin("");
                end(it)
            };
            wrong.into_iter().map(with).collect()
        }
        "files" => without_a_file(command).into_iter().map(end).collect(),
        "unreachable" => vec![at("amqp://127.0.0.1:1", "http://127.0.0.1:1")],
        "no vhost" => {
            let url = format!("{}/no-such-vhost", shared_node().url());
            let mut it = ready(stuck, command);
            it.env("DELAYLINE_URL", url).env("DELAYLINE_MANAGEMENT_URL", shared_node().management_url());
            vec![end(as_somebody(it, command))]
        }
        "no set" => {
            let nothing = vhost().build().unwrap();
            let mut ends = vec![end(as_somebody(ready(&nothing, command), command))];
            if command == "unroutable replay" {
                let mut of_one = on(&nothing);
                of_one.args(["unroutable", "replay", "--app", "nobody"]);
                ends.push(end(of_one));
            }
            ends
        }
        "stuck" => vec![end(ready(stuck, command))],
        "Ctrl-C" => vec![Ended { code: signals::interrupted(&arguments(command)), said: String::new() }],
        other => panic!("nobody knows how it comes to `{other}`"),
    }
}

/// A set with messages that do not move.
fn stuck() -> Settings {
    let settings = installed(1_000);
    refusing(&settings, "full");
    let mut send = on(&settings);
    send.args(["send", "--app", "full", "--delay", "1s", "--lines"])
        .write_stdin("x\n".repeat(8))
        .assert()
        .success();
    eventually_seen(
        "messages are stuck",
        || json(on(&settings).args(["status", "--json"])),
        |status| status["levels"].as_array().unwrap().iter().any(|level| level["stuck"].as_u64() > Some(0)),
    );
    settings
}

#[test]
fn every_command_ends_as_the_table_says() {
    let (table, commands) = (table(), commands());
    assert_eq!(table.keys().cloned().collect::<BTreeSet<_>>(), commands, "docs/exit-codes.md has other rows");
    let stuck = stuck();
    // They mostly wait, so several at a time; but for the set that they share, which some of
    // them change for a moment.
    let (shared, apart): (Vec<_>, Vec<_>) = table
        .iter()
        .flat_map(|(command, causes)| causes.iter().map(move |(cause, code)| (command, cause, code)))
        .filter_map(|(command, cause, code)| Some((command, cause, (*code)?)))
        .partition(|(_, cause, _)| *cause == "stuck");
    let check = |(command, cause, expected): (&String, &String, i32)| {
        let ended = ended(command, cause, &stuck);
        assert!(!ended.is_empty(), "{command}, {cause}: not tried");
        let told = |said: &str| {
            let words = remedies(command, cause);
            expected == 0 || words.is_empty() || words.iter().any(|word| said.contains(word))
        };
        let right = ended.iter().all(|end| end.code == expected && told(&end.said));
        let wanted =
            || format!("{command}, {cause}: {ended:?}, not {expected} with {:?}", remedies(command, cause));
        (!right).then(wanted)
    };
    let next = Mutex::new(apart.into_iter());
    let node = shared_node();
    let mut wrong = thread::scope(|scope| {
        let work = || {
            on_node(&node);
            let take = || next.lock().unwrap().next();
            std::iter::from_fn(take).filter_map(check).collect::<Vec<_>>()
        };
        let workers: Vec<_> = (0..AT_A_TIME).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect::<Vec<_>>()
    });
    wrong.extend(shared.into_iter().filter_map(check));
    assert!(wrong.is_empty(), "{wrong:#?}");
}
