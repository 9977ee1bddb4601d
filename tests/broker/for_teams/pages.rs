//! All code in the pages, and what runs it.

#[path = "../../../crates/cli/src/snippets.rs"]
mod snippets_of_a_page;

use std::{collections::BTreeSet, fs, path::Path};

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

/// What is shown and not run: commands, settings, and pictures.
const NO_PROGRAM: [&str; 7] = ["", "console", "sh", "toml", "ini", "text", "erlang"];

/// Programs that cannot be run where tests run, and whose pages say so.
const NOT_RUN: [&str; 2] = ["dotnet", "spring"];

#[test]
fn every_program_in_the_pages_is_run_by_some_test() {
    let mut pages = vec![Path::new(TOP).join("README.md")];
    for folder in ["docs", "docs/for-teams"] {
        let files = fs::read_dir(Path::new(TOP).join(folder)).unwrap().map(|entry| entry.unwrap().path());
        pages.extend(files.filter(|path| path.extension().is_some_and(|it| it == "md")));
    }
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
                    assert!(page.contains("**Not run:**"), "{at}: its page does not say that it is not run");
                    continue;
                }
                Some([file, _, ..]) => assert!(run.contains(file), "{at}: no test runs {file}"),
                // Which test runs it; the test names the page and finds it by what is in it.
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

/// Those in Rust are examples that are built with the tests.
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
