//! The exit codes of every command for every cause, compared with docs/reference/exit-codes.tsv.

mod causes;
mod signals;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Mutex,
    thread,
};

use assert_cmd::Command;
use delayline_settings::Settings;

use crate::{
    common::{PATIENCE, eventually_seen, installed, refusing, shared::on_node, shared_node, vhost},
    delayline, json, on, stdout,
};

/// A platform file with a set, and an application without a user.
pub(crate) const PLATFORM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/cli/platform.toml");

/// The number of commands that run at the same time.
const AT_A_TIME: usize = 6;

/// For each command, the code of each cause; `None` if the cause cannot occur.
type Table = BTreeMap<String, BTreeMap<String, Option<i32>>>;

fn table() -> Table {
    let document = std::fs::read_to_string(
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("docs/reference/exit-codes.tsv"),
    )
    .unwrap();
    let rows: Vec<Vec<String>> =
        document.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect();
    let (head, rows) = (&rows[0], &rows[1..]);
    let codes = |row: &Vec<String>| {
        let cells = head.iter().zip(row).skip(1);
        let code = |text: &String| if text == "–" { None } else { Some(text.parse().unwrap()) };
        cells.map(|(cause, cell)| (cause.clone(), code(cell))).collect()
    };
    rows.iter().map(|row| (row[0].clone(), codes(row))).collect()
}

/// All commands that do something: those in the help, and two hidden ones.
pub(crate) fn commands() -> BTreeSet<String> {
    let help = stdout(delayline().arg("--help"));
    let lines = help.lines().filter_map(|line| line.strip_prefix("  "));
    let words = lines.map(|line| line.split("  ").next().unwrap().trim().to_owned());
    words.chain(["man".to_owned(), "help".to_owned()]).collect()
}

/// Valid arguments for a command.
fn arguments(command: &str) -> Vec<&str> {
    const HANDLE: &str = "delay.0000.0000.0000.0000.0000.0000.1010.nobody.~.x";
    let more: &[&str] = match command {
        "install" | "verify" | "app list" | "doctor" | "status" | "demo" | "dev" | "held list" => &[],
        "gateway list" | "export" | "man" | "version" | "help" | "serve check" | "scheduled sweep" => &[],
        "uninstall" => &["--yes"],
        "held show" => &["--kind", "parked"],
        "held replay" => &["--kind", "unroutable", "--all"],
        "held discard" => &["--kind", "parked", "--all", "--yes"],
        "app add" => &["nobody", "--no-user"],
        "serve user" => &["exit-codes-daemon"],
        "app remove" => &["nobody", "--no-user", "--yes"],
        "app check" | "app show" | "app pause" | "app resume" => &["nobody"],
        "app discard" => &["nobody", "--dry-run"],
        "gateway add" => &["orders.delayed", "--type", "topic"],
        "gateway check" => &["orders.delayed"],
        "gateway remove" => &["orders.delayed", "--yes"],
        "guard add" => &["nservicebus"],
        "guard remove" => &["nservicebus", "--yes"],
        "transfer" => &["nservicebus", "delay"],
        "unstick" => &["--dry-run"],
        "apply" | "diff" => &[PLATFORM],
        "key encode" => &["90s", "--app", "nobody"],
        "key decode" => &["nonsense"],
        "send" => &["--app", "nobody", "--delay", "1d", "--body", "x"],
        "scheduled recall" | "scheduled unrecall" | "scheduled show" => &[HANDLE],
        "scheduled reschedule" => &[HANDLE, "--delay", "1d", "--body", "x"],
        "scheduled list" | "scheduled count" => &["--app", "nobody"],
        "schedule add" => &["nightly", "--app", "nobody", "--cron", "@daily"],
        "schedule list" => &[],
        "schedule show" | "schedule pause" | "schedule resume" | "schedule run" => &["nightly"],
        "schedule remove" => &["nightly", "--yes"],
        "listen" => &["--app", "nobody", "--count", "1"],
        "serve" => &["--no-web"],
        "completions" => &["bash"],
        other => {
            panic!("`{other}` is new: it needs arguments here, and a row in docs/reference/exit-codes.tsv")
        }
    };
    command.split(' ').chain(more.iter().copied()).collect()
}

/// The command, with a broker and everything else that it may need.
fn ready(settings: &Settings, command: &str) -> Command {
    let mut ready = on(settings);
    ready.args(arguments(command)).env("DELAYLINE_APP_PASSWORD", "nobody").write_stdin("");
    ready
}

/// `app check` needs a user that exists.
fn as_somebody(mut run: Command, command: &str) -> Command {
    if command == "app check" {
        run.args(["--user", "guest"]).env("DELAYLINE_APP_PASSWORD", "guest");
    }
    run
}

/// The command with each of its files missing or unreadable.
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
    if !matches!(command, "dev" | "man" | "help") {
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
        "schedule add" => {
            let flags = ["schedule", "add", "x", "--app", "a", "--every", "1m", "--body-file", nowhere];
            all.push(given(&flags));
        }
        "apply" | "diff" => all.push(given(&[command, nowhere])),
        "transfer" => all.push(given(&["transfer", "delay", "later", "--to-config", nowhere])),
        "export" => all.push(given(&["export", "--file", nowhere])),
        "serve" => all.push(given(&["serve", "--policies", nowhere])),
        "dev" => {
            all.push(given(&["dev", "--apps", nowhere]));
            all.push(given(&["dev", "--policies", nowhere]));
        }
        "man" => all.push(given(&["man", "--into", nowhere])),
        _ => {}
    }
    all
}

/// The result of a run: its code and its whole output.
#[derive(Debug)]
struct Ended {
    code: i32,
    said: String,
}

/// The result of a run. A command that does not end by then is killed, and the test fails.
fn end(mut run: Command) -> Ended {
    let ended = run.timeout(PATIENCE).output().unwrap();
    let code = ended.status.code().unwrap_or_else(|| panic!("it did not end: {run:?}"));
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { code, said: text(ended.stdout) + &text(ended.stderr) }
}

/// Words about this cause, either what is wrong or what to do. The output must contain at least
/// one.
fn remedies(command: &str, cause: &str) -> &'static [&'static str] {
    match (command, cause) {
        (_, "wrong usage") => &["--no-such-flag"],
        (_, "settings") => &["`url`", "`window`", "DELAYLINE_PASSWORD"],
        (_, "files") => &["/nowhere/at/all", "`/`", "/:"],
        (_, "unreachable") => &["127.0.0.1:1"],
        (_, "no vhost") => &["rabbitmqctl add_vhost no-such-vhost"],
        // The error concerns the objects of another library.
        ("guard add" | "guard remove", "no set") => &["Is this the right vhost?"],
        // `diff` lists everything that `apply` would create.
        ("diff", "no set") => &["+ 63 exchanges and queues"],
        (_, "no set") => &["delayline install"],
        _ => &[],
    }
}

/// The results of a command for a cause, one for each way to provoke it.
fn ended(command: &str, cause: &str, stuck: &Settings) -> Vec<Ended> {
    let at = |url: &str, management: &str| {
        let mut it = ready(stuck, command);
        it.env("DELAYLINE_URL", url).env("DELAYLINE_MANAGEMENT_URL", management);
        it.env("DELAYLINE_CONNECT_TIMEOUT", "2s").env("DELAYLINE_PUBLISH_TIMEOUT", "2s");
        end(it)
    };
    match cause {
        "wrong usage" => {
            // The flag directly follows the command: later words may be arguments of another
            // program.
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
            if command == "held replay" {
                let mut of_one = on(&nothing);
                of_one.args(["held", "replay", "--kind", "unroutable", "--app", "nobody"]);
                ends.push(end(of_one));
            }
            ends
        }
        "stuck" => vec![end(ready(stuck, command))],
        "Ctrl-C" => vec![Ended { code: signals::interrupted(&arguments(command)), said: String::new() }],
        other => panic!("this test cannot provoke the cause `{other}`"),
    }
}

/// A set with stuck messages.
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
    assert_eq!(
        table.keys().cloned().collect::<BTreeSet<_>>(),
        commands,
        "docs/reference/exit-codes.tsv has other rows"
    );
    let stuck = stuck();
    // Commands mostly wait, so several run at the same time. Those that share the stuck set run
    // alone, because some of them change it for a moment.
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

/// The set is missing, so that each command prints something.
#[test]
fn no_exit_code_depends_on_the_reader() {
    // These commands run on, or start a node.
    let commands = commands().into_iter().filter(|it| !["serve", "dev", "demo"].contains(&it.as_str()));
    let next = Mutex::new(commands);
    let node = shared_node();
    let unread = |command: String| {
        let settings = vhost().build().unwrap();
        let code = |reader: &str| {
            // The exit code of the command, whatever the reader does.
            let script = format!("set -o pipefail; \"$0\" \"$@\" | {reader}");
            let mut bash = std::process::Command::new("bash");
            bash.args(["-c", &script, env!("CARGO_BIN_EXE_delayline")]).args(arguments(&command));
            bash.env("DELAYLINE_URL", crate::common::url(&settings)).env("DELAYLINE_APP_PASSWORD", "guest");
            bash.env("DELAYLINE_MANAGEMENT_URL", node.management_url()).stdin(std::process::Stdio::null());
            let output = bash.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!said.contains("panicked"), "{command}: {said}");
            (output.status.code(), said)
        };
        // A command that changes something, such as `install`, may have another result in the
        // second run.
        let (unread, read) = (code("true"), code("cat"));
        (unread.0 != read.0).then(|| format!("{command}: {unread:?} without a reader, {read:?} with one"))
    };
    let wrong: Vec<_> = thread::scope(|scope| {
        let work = || {
            on_node(&node);
            let take = || next.lock().unwrap().next();
            std::iter::from_fn(take).filter_map(unread).collect::<Vec<_>>()
        };
        let workers: Vec<_> = (0..AT_A_TIME).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{wrong:#?}");
}
