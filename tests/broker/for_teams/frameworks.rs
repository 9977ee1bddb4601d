//! The pages of docs/for-teams/frameworks, and the adapters: with the credentials that
//! `delayline app add` gives, and each framework's current version.

use std::{
    collections::BTreeSet,
    env, fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::Command,
};

use delayline::codec::{Delay, RoutingKey};
use delayline_admin::Kept;
use tempfile::TempDir;

use super::{
    pages::snippets,
    team::{Receiver, served, user_of, user_with},
};
use crate::common::{
    Inbox, PATIENCE, app, eventually_seen, not_tested::not_tested, run_in_time, topology, url,
};

const TOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// What a receiver prints when it fails.
const FAILED: &str = "failed: the bank is closed";

/// A page, and how its programs are run. Commands are for a shell, in the directory of the
/// page's files; `$KEPT` is where frameworks are installed, `$ADAPTERS` where ours are.
struct Framework {
    page: &'static str,
    /// What must be installed, relative to `$KEPT`.
    needs: &'static str,
    build: &'static str,
    receive: &'static str,
    /// The delay and the text follow.
    send: &'static str,
}

const CELERY: Framework = Framework {
    page: "celery.md",
    needs: "python/ready",
    build: "",
    receive: "python -m celery --quiet -A tasks worker --loglevel warning --pool solo --without-gossip --without-mingle",
    send: "python send.py",
};

const DRAMATIQ: Framework =
    Framework { page: "dramatiq.md", receive: "dramatiq tasks --processes 1 --threads 1", ..CELERY };

const FASTSTREAM: Framework =
    Framework { page: "faststream.md", receive: "faststream run app:app", ..CELERY };

const TASKIQ: Framework =
    Framework { page: "taskiq.md", receive: "taskiq worker app:broker --workers 1", ..CELERY };

const NESTJS: Framework = Framework {
    page: "nestjs.md",
    needs: "node/ready",
    build: "ln -s $KEPT/node/node_modules . && node_modules/.bin/tsc",
    receive: "node receive.js",
    send: "node send.js",
};

const RASCAL: Framework = Framework {
    page: "rascal.md",
    build: "ln -s $KEPT/node/node_modules .",
    receive: "node receive.mjs",
    send: "node send.mjs",
    ..NESTJS
};

const MOLECULER: Framework = Framework {
    page: "moleculer.md",
    needs: "moleculer/ready",
    build: "ln -s $KEPT/moleculer/node_modules .",
    ..RASCAL
};

const SPRING: Framework = Framework {
    page: "spring-amqp.md",
    needs: "java/ready",
    build: "javac -parameters -cp @$KEPT/java/classpath billing/*.java",
    receive: "java -XX:TieredStopAtLevel=1 -cp @$KEPT/java/classpath billing.Billing",
    send: "java -XX:TieredStopAtLevel=1 -cp @$KEPT/java/classpath billing.Billing",
};

const SPRING_CLOUD_STREAM: Framework = Framework { page: "spring-cloud-stream.md", ..SPRING };

const WATERMILL: Framework = Framework {
    page: "watermill.md",
    needs: "go/ready",
    build: "cp $ADAPTERS/watermill/go.mod $ADAPTERS/watermill/go.sum . && go mod edit -module billing \
            -require github.com/delayline/delayline-watermill@v0.0.0 \
            -replace github.com/delayline/delayline-watermill=$ADAPTERS/watermill && \
            go build -o receive receive.go && go build -o send send.go",
    receive: "./receive",
    send: "./send",
};

const SYMFONY: Framework = Framework {
    page: "symfony.md",
    needs: "php/ready",
    build: "ln -s $ADAPTERS/symfony/src adapter",
    receive: "php console.php messenger:consume billing",
    send: "php console.php send",
};

const ALL: [&Framework; 11] = [
    &CELERY,
    &DRAMATIQ,
    &FASTSTREAM,
    &TASKIQ,
    &NESTJS,
    &RASCAL,
    &MOLECULER,
    &SPRING,
    &SPRING_CLOUD_STREAM,
    &WATERMILL,
    &SYMFONY,
];

fn kept() -> PathBuf {
    env::var("TEST_FRAMEWORKS").expect("TEST_FRAMEWORKS is not set; scripts/test sets it").into()
}

fn missing(needs: &str) -> bool {
    let missing = !kept().join(needs).exists();
    if missing {
        not_tested(&format!("{} cannot be had here", needs.trim_end_matches("/ready")));
    }
    missing
}

/// A command in a directory, with an address.
fn shell(line: &str, directory: &Path, address: &str) -> Command {
    let adapters = fs::canonicalize(Path::new(TOP).join("adapters")).unwrap();
    let sources = ["celery", "dramatiq"].map(|it| adapters.join(it).join("src").display().to_string());
    let path = format!("{}:{}", kept().join("python/bin").display(), env::var("PATH").unwrap());
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("exec 2>&1; {line}")).current_dir(directory);
    command.env("KEPT", kept()).env("ADAPTERS", adapters).env("AMQP_URL", address).env("PATH", path);
    command
        .env("PYTHONPATH", sources.join(":"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PYTHONUNBUFFERED", "1");
    command.env("GOFLAGS", "-mod=mod");
    command
}

/// The files of a page in a directory, ready to run.
fn written(framework: &Framework, change: (&str, &str)) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let page =
        fs::read_to_string(Path::new(TOP).join("docs/for-teams/frameworks").join(framework.page)).unwrap();
    assert!(page.contains(change.0), "{} has no {:?}", framework.page, change.0);
    for snippet in snippets(&page).into_iter().filter(|it| it.words.len() > 2) {
        let file = directory.path().join(snippet.words[1]);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, snippet.text.replace(change.0, change.1)).unwrap();
    }
    if !framework.build.is_empty() {
        let built = run_in_time(shell(framework.build, directory.path(), ""));
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stdout));
    }
    directory
}

fn works(framework: &Framework) {
    if !missing(framework.needs) {
        tried(framework, ("", ""));
    }
}

/// Sends, receives, fails, is retried and gives up, as the page says.
fn tried(framework: &Framework, change: (&str, &str)) {
    let settings = served();
    let (address, stranger) =
        (user_of(&settings, "billing", "billing-in"), user_of(&settings, "stranger", "stranger"));
    let files = written(framework, change);
    let send = |address: &str, delay: &str, text: &str| {
        let line = format!("exec {} {delay} '{text}'", framework.send);
        let output = run_in_time(shell(&line, files.path(), address));
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.success() && printed.lines().any(|line| line == "confirmed"), printed)
    };
    let copies = Inbox::open(&settings, "billing");
    let confirmed = |delay: &str, text: &str| {
        let (confirmed, printed) = send(&address, delay, text);
        assert!(confirmed, "{printed}");
    };
    confirmed("89.5", "invoice 17");
    let key = RoutingKey::new(Delay::from_seconds(90).unwrap(), app("billing")).encode();
    assert_eq!(copies.next(PATIENCE).expect("a copy").routing_key, key);
    let mut receiver =
        Receiver::start(shell(&format!("exec {}", framework.receive), files.path(), &address), 0);
    // It prints other things as well.
    let next = |receiver: &Receiver| loop {
        let line = receiver.next();
        println!("{line}");
        let words = [FAILED, "done: "].iter().find_map(|words| line.find(words)).map(|at| &line[at..]);
        // A log may quote the error.
        if let Some(words) = words.filter(|words| !words.starts_with(FAILED) || *words == FAILED) {
            break words.to_owned();
        }
    };
    assert_eq!(next(&receiver), FAILED);
    assert_eq!(next(&receiver), "done: invoice 17");
    confirmed("0", "a stolen card");
    // The retry went through the set as well, and was not requeued.
    let retried = String::from_utf8_lossy(&copies.next(PATIENCE).expect("a copy").body).into_owned();
    assert!(retried.contains("invoice 17"), "{retried}");
    let parked = |count| {
        let look = || Kept::Parked.list(&settings, &topology(&settings), 100, |_| {}).unwrap();
        eventually_seen("a message is parked", look, |report| {
            report.waiting >= count && report.examined >= count
        })
    };
    let cause = &parked(1).groups[0].cause;
    assert_eq!(cause.app.as_deref(), Some("billing"), "{cause:?}");
    assert!(cause.detail.as_deref().is_some_and(|it| it.contains("the card is stolen")), "{cause:?}");
    assert_eq!(cause.reason, "gave-up");
    // It does not come again: these come after it.
    confirmed("1", "another");
    assert_eq!(next(&receiver), FAILED);
    assert_eq!(next(&receiver), "done: another");
    assert_eq!(parked(1).waiting, 1);
    let (sent, printed) = send(&stranger, "1", "of a stranger");
    assert!(!sent && !printed.is_empty(), "it was sent: {printed}");
    receiver.terminate();
}

/// Runs the tests of an adapter.
fn tested(needs: &str, folder: &str, line: &str) {
    if missing(needs) {
        return;
    }
    let settings = served();
    let address = user_with(&settings, "billing", &["--queue", "billing-in", "--recall"]);
    user_of(&settings, "stranger", "stranger");
    let mut command = shell(line, &Path::new(TOP).join("adapters").join(folder), &address);
    command.env("DELAYLINE_URL", url(&settings));
    let output = run_in_time(command);
    let printed = String::from_utf8_lossy(&output.stdout);
    println!("{printed}");
    assert!(output.status.success() && !printed.contains("skipped"), "{printed}");
}

#[test]
fn adapter_celery() {
    tested(
        "python/ready",
        "celery",
        "python -m pytest -q -p no:cacheprovider && mypy --cache-dir /dev/null src tests",
    );
}

#[test]
fn adapter_dramatiq() {
    tested(
        "python/ready",
        "dramatiq",
        "python -m pytest -q -p no:cacheprovider && mypy --cache-dir /dev/null src tests",
    );
}

#[test]
fn adapter_symfony() {
    tested("php/ready", "symfony", "phpunit");
}

#[test]
fn adapter_watermill() {
    tested("go/ready", "watermill", "test -z \"$(gofmt -l .)\" && go vet ./... && go test -count=1 ./...");
}

/// Ways in which a page could be wrong, each of which is noticed.
#[test]
fn broken_pages_do_not_pass() {
    if missing(FASTSTREAM.needs) {
        return;
    }
    for change in [
        ("RabbitQueue(\"billing-in\", declare=False)", "RabbitQueue(\"billing-in\")"),
        ("math.ceil(seconds)", "int(seconds)"),
        ("AckPolicy.REJECT_ON_ERROR", "AckPolicy.NACK_ON_ERROR"),
        ("\"delayline-failure\"", "\"failure\""),
    ] {
        let passed = catch_unwind(AssertUnwindSafe(|| tried(&FASTSTREAM, change)));
        assert!(passed.is_err(), "{change:?} is not noticed");
    }
}

#[test]
fn each_page_is_run_or_says_that_it_is_not() {
    let run: BTreeSet<_> = ALL.iter().map(|framework| framework.page.to_owned()).collect();
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(Path::new(TOP).join("docs/for-teams/frameworks")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let page = fs::read_to_string(&path).unwrap();
        assert!(run.contains(&name) != page.contains("**Not run:**"), "{name}");
        found.insert(name);
    }
    assert!(found.is_superset(&run) && found.len() > run.len(), "{found:?}");
}

#[test]
fn celery_page() {
    works(&CELERY);
}

#[test]
fn dramatiq_page() {
    works(&DRAMATIQ);
}

#[test]
fn faststream_page() {
    works(&FASTSTREAM);
}

#[test]
fn taskiq_page() {
    works(&TASKIQ);
}

#[test]
fn nestjs_page() {
    works(&NESTJS);
}

#[test]
fn rascal_page() {
    works(&RASCAL);
}

#[test]
fn moleculer_page() {
    works(&MOLECULER);
}

#[test]
fn spring_amqp_page() {
    works(&SPRING);
}

#[test]
fn spring_cloud_stream_page() {
    works(&SPRING_CLOUD_STREAM);
}

#[test]
fn watermill_page() {
    works(&WATERMILL);
}

#[test]
fn symfony_page() {
    works(&SYMFONY);
}
