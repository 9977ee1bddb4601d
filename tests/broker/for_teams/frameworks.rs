//! The pages of docs/for-teams/frameworks and the adapters, with the credentials from `delayline
//! app add` and the current version of each framework.

mod known;
mod promises;
mod trial;

use std::{
    collections::BTreeSet,
    env, fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Instant,
};

use delayline_node::PrivateNode;
use delayline_settings::Settings;

use self::{known::*, trial::tried};
use super::team::{served, user_of, user_with};
use crate::common::{app, not_tested::not_tested, run_in_time, shared_node, url};

const TOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn pages() -> PathBuf {
    Path::new(TOP).join("docs/for-teams/frameworks")
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

fn works(framework: &Framework) {
    if !missing(framework.needs) {
        let broken = tried(framework, &framework.app(), &[]);
        assert!(broken.is_empty(), "{} does not keep these promises: {broken:?}", framework.page);
    }
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

/// The test of each page must notice each broken promise, and only these.
#[test]
fn broken_pages_do_not_pass() {
    let mut wrong = Vec::new();
    for framework in ALL.into_iter().filter(|it| !missing(it.needs)) {
        let begun = Instant::now();
        let changed = framework.broken.iter().map(|(promise, ..)| *promise).collect::<BTreeSet<_>>();
        let promises = framework.promises();
        let changeable = promises.iter().filter(|it| !framework.automatic.contains(it)).copied().collect();
        assert_eq!(changed, changeable, "{}", framework.page);
        let key = app(&format!("broken.{}", framework.app()));
        let noticed = catch_unwind(AssertUnwindSafe(|| tried(framework, &key, framework.broken))).ok();
        println!("TOOK {} {:.1} s: {noticed:?}", framework.page, begun.elapsed().as_secs_f64());
        if noticed.as_ref() != Some(&changed) {
            wrong.push((framework.page, noticed));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
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
