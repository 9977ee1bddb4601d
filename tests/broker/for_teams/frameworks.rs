//! The pages of docs/for-teams/frameworks and the adapters, with the credentials from `delayline
//! app add` and the current version of each framework.

mod known;

use std::{
    collections::BTreeSet,
    env, fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use delayline_admin::{Kept, KeptGroup};
use delayline_amqp::Session;
use delayline_core::{
    Message,
    codec::{AppKey, Delay, RoutingKey},
    topology::{Binding, Endpoint},
};
use delayline_node::PrivateNode;
use delayline_settings::Settings;
use serde_json::Value as Json;
use tempfile::TempDir;

use self::known::*;
use super::{
    pages::snippets,
    team::{Receiver, served, served_on, user_of, user_with},
};
use crate::common::{
    Arrival, Inbox, PATIENCE, app, eventually_seen, http, not_tested::not_tested, run_in_time, shared_node,
    topology, url,
};

const TOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn pages() -> PathBuf {
    Path::new(TOP).join("docs/for-teams/frameworks")
}

/// The output of a receiver that fails.
const FAILED: &str = "failed: the bank is closed";

/// A text from a page, with the names of another application, because all pages share a set.
fn renamed(text: &str, app: &AppKey) -> String {
    let mut text = text.replace("billing-in", &format!("{app}-in"));
    for (before, after) in
        [("\"", "\""), ("app_key: ", ","), ("routing-key=", "\n"), (".recalled.", "\""), (".recall.", "\"")]
    {
        text = text.replace(&format!("{before}billing{after}"), &format!("{before}{app}{after}"));
    }
    text
}

fn kept() -> PathBuf {
    env::var("TEST_FRAMEWORKS").expect("TEST_FRAMEWORKS is not set; scripts/test sets it").into()
}

fn missing(needs: &str) -> bool {
    let missing = !kept().join(needs).exists();
    if missing {
        not_tested(&format!("{} is not available on this machine", needs.trim_end_matches("/ready")));
    }
    missing
}

/// A shell command in a directory, with the address of the broker.
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
    command.env("GOFLAGS", "-mod=mod").env("GOMODCACHE", kept().join("go/mod"));
    command
}

/// Writes the files of a page into a directory, and builds them.
fn written(framework: &Framework, key: &AppKey, change: (&str, &str)) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let page = fs::read_to_string(pages().join(framework.page)).unwrap();
    assert!(page.contains(change.0), "{} has no {:?}", framework.page, change.0);
    for snippet in snippets(&page).into_iter().filter(|it| it.words.len() > 2) {
        let file = directory.path().join(snippet.words[1]);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, renamed(&snippet.text.replace(change.0, change.1), key)).unwrap();
    }
    if !framework.build.is_empty() {
        let built = run_in_time(shell(framework.build, directory.path(), ""));
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stdout));
    }
    directory
}

fn works(framework: &Framework) {
    if !missing(framework.needs) {
        tried(framework, &framework.app(), ("", ""));
    }
}

/// Follows a page: sends, recalls and receives messages, fails, retries, and gives up.
fn tried(framework: &Framework, key: &AppKey, change: (&str, &str)) {
    let (node, settings) = served_on();
    let address = user_with(settings, key.as_str(), &["--queue", &format!("{key}-in"), "--recall"]);
    let stranger = stranger(settings);
    let files = written(framework, key, change);
    let refusals = if framework.is_dear { 1 } else { 2 };
    let send = |address: &str, arguments: &str| {
        let line = format!("exec {} {arguments}", framework.send);
        let output = run_in_time(shell(&line, files.path(), address));
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.success() && printed.lines().any(|line| line == "confirmed"), printed)
    };
    let copies = Inbox::open(settings, key.as_str());
    let page = fs::read_to_string(pages().join(framework.page)).unwrap();
    let recalls = page.contains("recalled\"");
    let confirmed = |arguments: &str| {
        let (confirmed, printed) = send(&address, arguments);
        assert!(confirmed, "{printed}");
        (copies.next(PATIENCE).expect("a copy"), printed)
    };
    let mut first = None;
    if recalls {
        // With this binding, messages with an id are copied as soon as they are sent.
        let queue = Endpoint::Queue(format!("in.{key}"));
        let at_once =
            Binding { source: "delay".into(), destination: queue, key: RoutingKey::recall_pattern(key) };
        Session::open(&settings.broker).unwrap().bind(&at_once).unwrap();
        let (copy, printed) = confirmed("99999.5 'invoice 17' invoice-17");
        let handle = RoutingKey::new(Delay::from_seconds(100_000).unwrap(), key.clone());
        assert_eq!(copy.routing_key, handle.with_id("invoice-17".parse().unwrap()).unwrap().encode());
        assert!(printed.lines().any(|line| line == "recalled"), "{printed}");
        let path = format!("exchanges/{}/delay.recall.{key}/bindings/source", settings.broker.vhost);
        let bindings = http(node, "GET", &path, &Json::Null).to_string();
        assert!(bindings.contains(&format!("\"{}\"", copy.routing_key)), "{bindings}");
        first = framework.is_dear.then_some(copy);
    }
    let first = match first {
        // The program would send the same message without an id.
        Some(copy) => {
            send_like(settings, key, &copy, "invoice 17");
            copies.next(PATIENCE).expect("a copy")
        }
        None => {
            let (copy, _) = confirmed("89.5 'invoice 17'");
            let wanted = RoutingKey::new(Delay::from_seconds(90).unwrap(), key.clone());
            assert_eq!(copy.routing_key, wanted.encode());
            copy
        }
    };
    let mut receiver =
        Receiver::start(shell(&format!("exec {}", framework.receive), files.path(), &address), 0);
    // The receiver also prints other lines.
    let next = |receiver: &Receiver| loop {
        let line = receiver.next();
        println!("{line}");
        let words = [FAILED, "done: "].iter().find_map(|words| line.find(words)).map(|at| &line[at..]);
        // A log line may quote the error.
        if let Some(words) = words.filter(|words| !words.starts_with(FAILED) || *words == FAILED) {
            break words.to_owned();
        }
    };
    assert_eq!(next(&receiver), FAILED);
    assert_eq!(next(&receiver), "done: invoice 17");
    send_like(settings, key, &first, "stolen one");
    // The retry also went through the set, and the message was not requeued: its copy came before
    // this message.
    let retried = String::from_utf8_lossy(&copies.next(PATIENCE).expect("a copy").body).into_owned();
    assert!(retried.contains("invoice 17"), "{retried}");
    let KeptGroup { cause, group, .. } = one_kept(&Kept::Parked, settings, key);
    assert!(group.oldest.is_some(), "{group:?}");
    assert!(cause.detail.as_deref().is_some_and(|it| it.contains("the card is stolen")), "{cause:?}");
    assert_eq!(cause.reason, "gave-up");
    // The parked message is not delivered again: this later message arrives next.
    send_like(settings, key, &first, "another 18");
    assert_eq!(next(&receiver), FAILED);
    assert_eq!(next(&receiver), "done: another 18");
    assert_eq!(one_kept(&Kept::Parked, settings, key).group.count, 1);
    // If the helper dropped the 29th bit, the long delay would be published as a short one.
    for (address, delay) in [(&stranger, "1"), (&address, "268435456")].into_iter().take(refusals) {
        let (sent, printed) = send(address, &format!("{delay} 'refused'"));
        assert!(!sent && !printed.is_empty(), "the message was sent: {printed}");
    }
    receiver.terminate();
}

/// The address of a user that may not publish any of the pages' app keys.
fn stranger(settings: &Settings) -> String {
    static STRANGER: OnceLock<String> = OnceLock::new();
    STRANGER.get_or_init(|| user_of(settings, "stranger", "stranger")).clone()
}

/// Publishes the message of a page's program again, with another text. It has the same length,
/// because some formats contain the length.
fn send_like(settings: &Settings, key: &AppKey, sent: &Arrival, text: &str) {
    let body = String::from_utf8(sent.body.clone()).unwrap().replace("invoice 17", text);
    let message = Message::after(key.clone(), Delay::ZERO, body).with_properties(sent.properties.clone());
    let mine =
        sent.headers.iter().filter(|(name, _)| !name.starts_with("x-") && !name.starts_with("delayline-"));
    let message = mine.fold(message, |message, (name, value)| message.with_header(name, value.clone()));
    settings.router().connect().unwrap().publish(message).unwrap();
}

/// The only group of kept messages for an application, once there is one.
fn one_kept(kept: &Kept, settings: &Settings, key: &AppKey) -> KeptGroup {
    let look = || {
        let mut groups = kept.list(settings, &topology(settings), 1_000, |_| {}).unwrap().groups;
        groups.retain(|group| group.cause.app.as_deref() == Some(key.as_str()));
        groups
    };
    let mut groups = eventually_seen("a message is kept", look, |groups| !groups.is_empty());
    assert_eq!(groups.len(), 1, "{groups:?}");
    groups.remove(0)
}

/// Runs the tests of an adapter.
fn tested(needs: &str, folder: &str, line: &str) {
    if missing(needs) {
        return;
    }
    // Adapters are tested one after the other, because their tests use the same names.
    static ONE: Mutex<()> = Mutex::new(());
    static SET: OnceLock<(Arc<PrivateNode>, Settings, String)> = OnceLock::new();
    let _alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (_, settings, address) = SET.get_or_init(|| {
        let settings = served();
        let address = user_with(&settings, "billing", &["--queue", "billing-in", "--recall"]);
        user_of(&settings, "stranger", "stranger");
        (shared_node(), settings, address)
    });
    let mut command = shell(line, &Path::new(TOP).join("adapters").join(folder), address);
    command.env("DELAYLINE_URL", url(settings));
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
        "python -m pytest -q -p no:cacheprovider && mypy --cache-dir $KEPT/python/mypy src tests",
    );
}

#[test]
fn adapter_dramatiq() {
    tested(
        "python/ready",
        "dramatiq",
        "python -m pytest -q -p no:cacheprovider && mypy --cache-dir $KEPT/python/mypy src tests",
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

/// The test must notice each of these mistakes on a page.
#[test]
fn broken_pages_do_not_pass() {
    if missing(RASCAL.needs) {
        return;
    }
    for (number, change) in [
        ("const exists = { assert: false, check: false }", "const exists = {}"),
        ("Math.ceil(seconds)", "Math.floor(seconds)"),
        ("{ strategy: \"nack\" }", "{ strategy: \"nack\", requeue: true }"),
        ("\"delayline-failure\"", "\"failure\""),
        ("await recall(handle)", "handle"),
    ]
    .into_iter()
    .enumerate()
    {
        let page = fs::read_to_string(pages().join(RASCAL.page)).unwrap();
        assert!(page.contains(change.0), "the page has no {:?}", change.0);
        let key = app(&format!("broken-{number}"));
        let passed = catch_unwind(AssertUnwindSafe(|| tried(&RASCAL, &key, change)));
        assert!(passed.is_err(), "{change:?} is not noticed");
    }
}

#[test]
fn each_page_is_run_or_says_that_it_is_not() {
    let run: BTreeSet<_> = ALL.iter().map(|framework| framework.page.to_owned()).collect();
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(pages()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let page = fs::read_to_string(&path).unwrap();
        assert!(run.contains(&name) != page.contains("**Not run:**"), "{name}");
        let page = page.to_lowercase();
        let frameworks = if name == "elsewhere.md" { page.matches("\n## ").count() } else { 1 };
        for words in ["\n- who retries: ", "\n- do not retry: "] {
            let found = page.matches(words).count();
            assert!(name == "README.md" || found == frameworks, "{name}: {found} of {words:?}");
        }
        found.insert(name);
    }
    assert!(found.is_superset(&run) && found.len() > run.len(), "{found:?}");
}

/// Each page has a row in the matrix, the version that is installed here, and a test.
#[test]
fn the_matrix_names_each_page_and_each_page_its_version() {
    let versions =
        ["scripts/lib/frameworks.sh", "scripts/lib/frameworks.pom.xml", "adapters/watermill/go.mod"]
            .map(|file| fs::read_to_string(Path::new(TOP).join(file)).unwrap())
            .concat();
    let matrix = fs::read_to_string(pages().join("README.md")).unwrap();
    let own = include_str!("frameworks.rs");
    for framework in ALL {
        let name = framework.page.trim_end_matches(".md").replace('-', "_");
        assert!(matrix.contains(&format!("]({}) |", framework.page)), "{name} is not in the matrix");
        let page = fs::read_to_string(pages().join(framework.page)).unwrap();
        let tested = page.lines().find_map(|line| line.strip_prefix("Tested with ")).expect("a version");
        let is_version = |word: &&str| word.starts_with(|first: char| first.is_ascii_digit());
        let version = tested.split(' ').find(is_version).expect("a version").trim_end_matches(['.', ',']);
        // Debian determines the version of Symfony.
        assert!(versions.contains(version) || framework.needs == "php/ready", "{name}: {version}");
        let adapter = format!("adapter_{name}");
        assert!(
            matrix.contains(&format!("`{adapter}`")) == own.contains(&format!("fn {adapter}()")),
            "{name}"
        );
        assert!(own.contains(&format!("fn {name}_page()")), "{name}");
    }
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
