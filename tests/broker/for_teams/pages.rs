//! All code on the pages, and the tests that run it.

#[path = "../../../crates/cli/src/cmd/app/snippets.rs"]
mod snippets_of_a_page;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

pub(super) use snippets_of_a_page::{Snippet, snippets};

use super::{clients, elsewhere};

/// The pages whose programs are run.
pub(super) const PAGES: [(&str, &str); 8] = [
    ("python.md", include_str!("../../../docs/for-teams/python.md")),
    ("javascript.md", include_str!("../../../docs/for-teams/javascript.md")),
    ("rust.md", include_str!("../../../docs/for-teams/rust.md")),
    ("java.md", include_str!("../../../docs/for-teams/java.md")),
    ("go.md", include_str!("../../../docs/for-teams/go.md")),
    ("php.md", include_str!("../../../docs/for-teams/php.md")),
    ("ruby.md", include_str!("../../../docs/for-teams/ruby.md")),
    ("dotnet.md", include_str!("../../../docs/for-teams/dotnet.md")),
];

const TOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Blocks that are shown but not run: commands, settings, and pictures.
const NO_PROGRAM: [&str; 7] = ["", "console", "sh", "toml", "ini", "text", "erlang"];

/// Programs that cannot run on test machines. Their pages say so.
const NOT_RUN: [&str; 2] = ["dotnet", "spring"];

/// All pages in a folder, except those for frameworks, whose programs another test runs.
fn pages_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let pages = entries.filter(|path| !path.ends_with("frameworks")).flat_map(|path| match path.is_dir() {
        true => pages_below(&path),
        false => vec![path],
    });
    pages.filter(|path| path.extension().is_some_and(|it| it == "md")).collect()
}

#[test]
fn every_program_in_the_pages_is_run_by_some_test() {
    let mut pages = pages_below(&Path::new(TOP).join("docs"));
    pages.push(Path::new(TOP).join("README.md"));
    let run: BTreeSet<_> = clients::ALL
        .iter()
        .flat_map(|client| [Some(client.send), Some(client.receive), client.declare])
        .flatten()
        .collect();
    let (mut programs, mut languages) = (0, BTreeSet::new());
    for path in &pages {
        let page = fs::read_to_string(path).unwrap();
        for snippet in snippets(&page) {
            let at = format!("{}:{}", path.display(), snippet.line);
            let words = &snippet.words;
            let language = words.first().and_then(|word| word.split(',').next()).unwrap_or_default();
            if NO_PROGRAM.contains(&language) {
                continue;
            }
            match words.get(1..) {
                Some([_, client, ..]) if NOT_RUN.contains(client) => {
                    assert!(page.contains("**Not run:**"), "{at}: its page needs `**Not run:**`");
                    continue;
                }
                Some([file, _, ..]) => assert!(run.contains(file), "{at}: no test runs {file}"),
                // Another test runs it. That test finds it by its page and a part of its code.
                _ => {
                    let known = elsewhere::RUN
                        .iter()
                        .any(|(page, part)| path.ends_with(page) && snippet.text.contains(part));
                    assert!(
                        known,
                        "{at}: no test runs this; name its file, or run it in for_teams/elsewhere.rs"
                    );
                }
            }
            programs += 1;
            languages.insert(language.to_owned());
        }
    }
    println!("{programs} programs in {} languages: {languages:?}", languages.len());
    assert!(programs >= 30 && languages.len() == 7, "{programs} programs in {languages:?}");
}

/// Each helper that makes a routing key, found by its first words. Types in TypeScript are removed.
fn helpers<'a>(text: &'a str, begins: &str, ends: &str) -> impl Iterator<Item = String> + 'a {
    let (begins, ends) = (begins.to_owned(), ends.to_owned());
    let found: Vec<_> = text.match_indices(&begins).map(|(at, _)| &text[at..]).collect();
    found.into_iter().map(move |rest| {
        let helper = rest.split_once(&ends).map_or(rest, |(helper, _)| helper);
        [": number", ": string", "!"].iter().fold(helper.to_owned(), |text, part| match *part {
            "!" => text.replace(")!", ")"),
            part => text.replace(part, ""),
        })
    })
}

/// All copies of a helper must be the same, because only one page per language is tested with every
/// kind of delay. The helpers in the wire contract take whole seconds, and have their own tests.
#[test]
fn each_language_has_one_helper_for_routing_keys() {
    let mut pages = pages_below(&Path::new(TOP).join("docs"));
    pages.extend(pages_below(&Path::new(TOP).join("docs/for-teams/frameworks")));
    for (begins, ends, tested, least) in [
        ("def routing_key(seconds, app):", "\n\n", "python.md", 6),
        ("function routingKey(seconds", "\n}", "javascript.md", 5),
        ("static String routingKey(", "\n    }\n", "java.md", 3),
    ] {
        let page = |path: &Path| fs::read_to_string(path).unwrap();
        let own = page(&Path::new(TOP).join("docs/for-teams").join(tested));
        let own = helpers(&own, begins, ends).next().expect("a helper");
        let mut copies = 0;
        for path in &pages {
            for helper in helpers(&page(path), begins, ends).filter(|it| !it.contains("whole seconds")) {
                assert_eq!(helper, own, "{}", path.display());
                copies += 1;
            }
        }
        assert!(copies >= least, "{copies} copies of {begins}");
    }
}

/// Only versions that the project installs: those from Debian differ between machines.
#[test]
fn pages_name_the_versions_that_they_are_tested_with() {
    let files = ["scripts/lib/setup.sh", "scripts/lib/frameworks.pom.xml", "adapters/watermill/go.mod"];
    let installs = files.map(|file| fs::read_to_string(Path::new(TOP).join(file)).unwrap()).concat();
    for (page, before) in [
        ("python.md", "(pika=="),
        ("python.md", " aio-pika=="),
        ("python.md", " celery=="),
        ("javascript.md", "(amqplib@"),
        ("java.md", "<artifactId>amqp-client</artifactId>\n      <version>"),
        ("go.md", "github.com/rabbitmq/amqp091-go v"),
    ] {
        let (_, rest) = installs.split_once(before).expect(before);
        let version = rest.split(|it: char| !it.is_ascii_digit() && it != '.').next().unwrap();
        let (_, text) = PAGES.iter().find(|(name, _)| *name == page).unwrap();
        let tested = text.lines().any(|line| line.contains("tested with") && line.contains(version));
        assert!(tested, "{page} is not tested with {version}");
    }
}

/// The programs in Rust are examples that are built with the tests.
#[test]
fn the_programs_in_rust_are_the_examples() {
    let (_, page) = PAGES.iter().find(|(name, _)| *name == "rust.md").unwrap();
    let mut found = 0;
    for snippet in snippets(page).into_iter().filter(|snippet| snippet.words[0] == "rust") {
        let example = Path::new(TOP).join("examples/for_teams").join(snippet.words[1]);
        assert_eq!(fs::read_to_string(&example).unwrap(), snippet.text, "{}", example.display());
        found += 1;
    }
    assert_eq!(found, 5);
}
