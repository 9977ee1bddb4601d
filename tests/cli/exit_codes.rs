//! What every command ends with, by every cause: docs/exit-codes.md says it, and this walks
//! through its table.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader},
    net::{SocketAddr, TcpListener},
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Command as Process, Stdio},
    sync::{Mutex, mpsc},
    thread,
    time::Duration,
};

use assert_cmd::Command;
use delayline::amqp::Session;
use delayline_settings::Settings;
use predicates::{prelude::PredicateBooleanExt, str::contains};
use rustix::process::{Pid, Signal, kill_process};

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
        "Ctrl-C" => vec![Ended { code: interrupted(command), said: String::new() }],
        other => panic!("nobody knows how it comes to `{other}`"),
    }
}

/// A broker that takes connections and says nothing: its address, and when somebody came.
fn deaf() -> (SocketAddr, mpsc::Receiver<()>) {
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = deaf.local_addr().unwrap();
    let (came, comes) = mpsc::channel();
    thread::spawn(move || {
        let mut open = Vec::new();
        while let Ok((connection, _)) = deaf.accept() {
            open.push(connection);
            let _ = came.send(());
        }
    });
    (address, comes)
}

/// A command with a broker at that address, which a signal can interrupt.
fn at_nobody(address: SocketAddr, words: &[&str]) -> Process {
    // Whoever runs the tests in the background may ignore the signal, and what they start would
    // inherit that.
    let mut process = Process::new("env");
    process.args(["--default-signal=INT", env!("CARGO_BIN_EXE_delayline")]);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DELAYLINE_") {
            process.env_remove(name);
        }
    }
    process
        .args(words)
        .envs([
            ("DELAYLINE_URL", format!("amqp://{address}")),
            ("DELAYLINE_MANAGEMENT_URL", format!("http://{address}")),
            ("DELAYLINE_CONNECT_TIMEOUT", "3s".into()),
            ("DELAYLINE_APP_PASSWORD", "x".into()),
        ])
        .current_dir(std::env::temp_dir())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    process
}

/// What a command ends with that is interrupted while it waits for an answer.
fn interrupted(command: &str) -> i32 {
    let (address, comes) = deaf();
    let mut child = at_nobody(address, &arguments(command)).spawn().unwrap();
    comes.recv().unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let status = child.wait().unwrap();
    // As shells count it.
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
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

#[test]
fn a_second_signal_ends_a_daemon_at_once() {
    let (address, comes) = deaf();
    let mut serve = at_nobody(address, &["serve", "--no-web"]);
    // So that it could not be done with its broker by then.
    serve.env("DELAYLINE_CONNECT_TIMEOUT", "10m").stderr(Stdio::piped());
    let mut child = serve.spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut says = |word: &str| log.any(|line| line.unwrap().contains(word));
    comes.recv().unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert!(says("stopping"));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(says("a second signal"));
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn one_signal_ends_what_only_looks_whoever_still_owes_an_answer() {
    for words in [
        &["scheduled", "list", "--app", "shop", "--json"][..],
        &["recall", "--app", "shop", "--id", "a"],
        &["status", "--watch", "1"],
    ] {
        let (address, comes) = deaf();
        let mut look = at_nobody(address, words);
        look.env("DELAYLINE_CONNECT_TIMEOUT", "10m").stderr(Stdio::piped());
        let child = look.spawn().unwrap();
        comes.recv().unwrap();
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(130), "{words:?}");
        let said = String::from_utf8(ended.stderr).unwrap();
        let said = said.lines().last().unwrap();
        assert!(said.contains("still owes an answer"), "{words:?}: {said}");
        if words.contains(&"--json") {
            let said: serde_json::Value = serde_json::from_str(said).unwrap();
            assert_eq!(
                (said["schema"].as_str(), said["exit_code"].as_i64()),
                (Some("error"), Some(130)),
                "{said}"
            );
        }
    }
}

#[test]
fn without_a_set_no_application_is_to_blame() {
    let nothing = vhost().build().unwrap();
    for words in [
        &["scheduled", "list", "--app", "shop"][..],
        &["recalled", "list", "--app", "shop"],
        &["recall", "--pending", "--app", "shop"],
        &["unroutable", "replay", "--app", "shop"],
    ] {
        on(&nothing).args(words).assert().stderr(contains("is the set installed?"));
    }
}

#[test]
fn one_message_and_one_of_many_end_alike() {
    let settings = installed(1_000);
    let send = |more: &[&str], input: &'static str| {
        let mut send = on(&settings);
        send.args(["send", "--app", "a", "--delay", "1s"]).args(more).write_stdin(input).assert()
    };
    // What nobody could send.
    let long: &'static str = "100000000 characters\n";
    let limited = |more: &[&str]| {
        let mut send = on(&settings);
        send.args(["send", "--app", "a", "--delay", "1s"]).args(more).env("DELAYLINE_MAX_MESSAGE_SIZE", "5");
        send.write_stdin(long).assert()
    };
    limited(&[]).code(2);
    limited(&["--lines"]).code(2);
    send(&["--jsonl"], "{\"body\": \"good\"}\nnonsense\n").code(2).stdout(contains("1 confirmed, 1 failed"));
    // What the broker did not confirm, with what could not be sent beside it.
    let mut session = Session::open(&settings.broker).unwrap();
    session.delete_exchange("delay").unwrap();
    send(&["--body", "x"], "").code(3);
    send(&["--lines"], "x\ny\n").code(3).stdout(contains("0 confirmed, 2 failed"));
    send(&["--jsonl"], "{\"body\": \"good\"}\nnonsense\n").code(3).stdout(contains("0 confirmed, 2 failed"));
}

#[test]
fn a_missing_password_is_wrong_usage_wherever_it_is_missed() {
    let settings = installed(1_000);
    for command in ["add", "check"] {
        let mut it = on(&settings);
        it.args(["app", command, "newcomer"]).env_remove("DELAYLINE_APP_PASSWORD");
        let ended = it.assert().code(2);
        let said =
            [&ended.get_output().stdout, &ended.get_output().stderr].map(|it| String::from_utf8_lossy(it));
        assert!(said.concat().contains("DELAYLINE_APP_PASSWORD"), "{command}: {said:?}");
    }
}

#[test]
fn what_needs_the_management_api_is_wrong_usage_without_one() {
    let settings = installed(1_000);
    let needy = [
        "app remove",
        "app list",
        "app show",
        "gateway add",
        "gateway list",
        "gateway check",
        "gateway remove",
        "guard",
        "transfer",
        "doctor",
        "unstick",
    ];
    for command in needy {
        let mut it = ready(&settings, command);
        it.env("DELAYLINE_MANAGEMENT_URL", "none");
        it.assert().code(2).stderr(
            contains("needs the management API, which alone ")
                .and(contains("(--management-url; it is guessed only where AMQP uses a default port)")),
        );
    }
}

#[test]
fn what_is_wrong_with_settings_is_said_with_what_to_do() {
    let node = &shared_node();
    let run = |variables: &[(&str, &str)]| {
        let mut it = delayline();
        it.arg("verify").envs(variables.iter().copied()).env("DELAYLINE_CONNECT_TIMEOUT", "5s");
        it.assert()
    };
    run(&[("DELAYLINE_URL", "broker.example")])
        .code(2)
        .stderr(contains("write amqp://USER@HOST:5672/VHOST").and(contains("relative URL").not()));
    // Once: the cause of an error is not repeated behind it.
    run(&[("DELAYLINE_URL", "amqp://h:99999")]).code(2).stderr(
        "error: the setting `url` is not usable: its port is not a number from 0 to 65535; write \
         amqp://USER@HOST:5672/VHOST\n",
    );
    run(&[("DELAYLINE_MANAGEMENT_URL", "broker:x")]).code(2).stderr(contains("write http://HOST:15672"));
    // TLS with who speaks none.
    let secure = node.url().replace("amqp://", "amqps://");
    run(&[("DELAYLINE_URL", &secure)]).code(3).stderr(
        contains("does not speak TLS").and(contains("amqp://")).and(contains("InvalidContentType").not()),
    );
    // Without the management API it looks as far as it can, and says what it did not see.
    let secure = node.management_url().replace("http://", "https://");
    let url = format!("{}/{}", node.url(), installed(1_000).broker.vhost);
    run(&[("DELAYLINE_URL", &url), ("DELAYLINE_UNIT_MS", "1000"), ("DELAYLINE_MANAGEMENT_URL", &secure)])
        .stdout(
            contains("not checked")
                .and(contains("does not speak TLS"))
                .and(contains("InvalidContentType").not()),
        );
    // A vhost that is not there, with a name that a shell would take apart.
    let url = format!("{}/it%27s%20new", node.url());
    run(&[("DELAYLINE_URL", &url)]).code(3).stderr(contains(r"rabbitmqctl add_vhost 'it'\''s new'"));
}
