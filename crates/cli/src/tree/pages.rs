//! The commands in the pages, and the links to and between pages.

use std::{
    fs,
    path::{Path, PathBuf},
};

use regex::Regex;

use crate::{cmd::app::snippets::Snippet, cmd::app::snippets::snippets};

/// The words of a command, as a shell would split them, up to the end of the command.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for letter in line.chars() {
        match (letter, quote) {
            (letter, Some(mark)) if letter == mark => quote = None,
            (letter, Some(_)) => word.get_or_insert_default().push(letter),
            ('\'' | '"', None) => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            ('|' | '>' | '<' | '&' | ';', None) => break,
            ('#', None) if word.is_none() => break,
            (letter, None) if letter.is_whitespace() => words.extend(word.take()),
            (letter, None) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

/// The arguments of `delayline` in a line of a page, if the line is such a command.
pub(crate) fn command(line: &str) -> Option<Vec<String>> {
    let words = words(line.trim_start_matches("$ "));
    let assigned = |word: &&String| word.split_once('=').is_some_and(|(name, _)| name.to_uppercase() == name);
    let assigned = words.iter().take_while(assigned).count();
    (words.get(assigned)? == "delayline").then(|| words[assigned..].to_vec())
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.map(|path| if path.is_dir() { files_below(&path) } else { vec![path] });
    files.flatten().collect()
}

#[test]
fn every_command_in_the_pages_is_one() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = files_below(&top.join("docs"));
    pages.push(top.join("README.md"));
    let (mut found, mut wrong) = (0, Vec::new());
    for path in pages.iter().filter(|path| path.extension().is_some_and(|it| it == "md")) {
        let page = fs::read_to_string(path).unwrap();
        let shell = |snippet: &Snippet<'_>| matches!(snippet.words[..], ["console" | "sh", ..]);
        for snippet in snippets(&page).into_iter().filter(shell) {
            // A command can go on in the next line.
            let text = snippet.text.replace("\\\n", " ");
            for arguments in text.lines().filter_map(command) {
                found += 1;
                if let Err(error) = super::command().try_get_matches_from(&arguments) {
                    wrong.push(format!("{}:{}: {error}", path.display(), snippet.line));
                }
            }
        }
    }
    assert!(found > 30, "only {found} commands were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The name by which links reach a heading.
fn anchor(heading: &str) -> String {
    let letters = heading.trim_start_matches('#').trim().chars().flat_map(char::to_lowercase);
    let kept = letters.filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
    kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

/// A page without its code blocks.
fn prose(page: &str) -> String {
    page.split("```").step_by(2).collect()
}

#[test]
fn every_link_in_the_pages_leads_to_a_page_and_a_heading() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = files_below(&top.join("docs"));
    let others =
        ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "llms.txt", "adapters/README.md"];
    pages.extend(others.map(|page| top.join(page)));
    let link = Regex::new(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)").unwrap();
    let (mut found, mut wrong) = (0, Vec::new());
    let is_page = |path: &&PathBuf| path.extension().is_some_and(|it| it == "md" || it == "txt");
    for path in pages.iter().filter(is_page) {
        for parts in link.captures_iter(&prose(&fs::read_to_string(path).unwrap())) {
            if parts[1].contains(':') {
                continue;
            }
            found += 1;
            let target = if parts[1].is_empty() { path.clone() } else { path.with_file_name(&parts[1]) };
            let leads = match parts.get(2) {
                None => target.exists(),
                Some(name) => fs::read_to_string(&target).is_ok_and(|page| {
                    let text = prose(&page);
                    text.lines().any(|line| line.starts_with('#') && anchor(line) == name.as_str())
                }),
            };
            if !leads {
                wrong.push(format!("{}: {}", path.display(), &parts[0]));
            }
        }
    }
    assert!(found > 100, "only {found} links were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Readers have little time: a new fact replaces another one.
#[test]
fn the_pages_have_few_words() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = files_below(&top.join("docs"));
    pages.push(top.join("README.md"));
    // Tables of figures.
    let counted = |path: &&PathBuf| {
        path.extension().is_some_and(|it| it == "md") && !path.ends_with("docs/benchmarks/compare.md")
    };
    // The lines between the cells of a table are no words.
    let is_word = |word: &&str| word.contains(char::is_alphanumeric);
    let words =
        |path: &PathBuf| prose(&fs::read_to_string(path).unwrap()).split_whitespace().filter(is_word).count();
    let words: usize = pages.iter().filter(counted).map(words).sum();
    assert!(words <= 26_000, "{words} words outside code blocks: shorten the longest pages");
}

#[test]
fn every_page_that_code_names_exists() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let name = Regex::new(r"docs/[a-z0-9/_-]+\.(md|csv|tsv)").unwrap();
    let mut wrong = Vec::new();
    for folder in ["crates", "src", "tests", "tools", "examples", "packaging", "scripts"] {
        for path in files_below(&top.join(folder)) {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let missing = name.find_iter(&text).filter(|found| !top.join(found.as_str()).exists());
            wrong.extend(missing.map(|found| format!("{}: {}", path.display(), found.as_str())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
