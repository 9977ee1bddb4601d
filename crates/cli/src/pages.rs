//! The commands that stand in the pages.

use std::{fs, path::Path};

use crate::snippets::{Snippet, snippets};

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

/// The arguments of `delayline` in a line of a page, if it is one of its commands.
fn command(line: &str) -> Option<Vec<String>> {
    let words = words(line.trim_start_matches("$ "));
    let assigned = |word: &&String| word.split_once('=').is_some_and(|(name, _)| name.to_uppercase() == name);
    let assigned = words.iter().take_while(assigned).count();
    (words.get(assigned)? == "delayline").then(|| words[assigned..].to_vec())
}

#[test]
fn every_command_in_the_pages_is_one() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![top.join("README.md")];
    for folder in ["docs", "docs/for-teams", "docs/migrate"] {
        pages.extend(fs::read_dir(top.join(folder)).unwrap().map(|entry| entry.unwrap().path()));
    }
    let (mut found, mut wrong) = (0, Vec::new());
    for path in pages.iter().filter(|path| path.extension().is_some_and(|it| it == "md")) {
        let page = fs::read_to_string(path).unwrap();
        let shell = |snippet: &Snippet<'_>| matches!(snippet.words[..], ["console" | "sh", ..]);
        for snippet in snippets(&page).into_iter().filter(shell) {
            // A command can go on in the next line.
            let text = snippet.text.replace("\\\n", " ");
            for arguments in text.lines().filter_map(command) {
                found += 1;
                if let Err(error) = crate::args::command().try_get_matches_from(&arguments) {
                    wrong.push(format!("{}:{}: {error}", path.display(), snippet.line));
                }
            }
        }
    }
    assert!(found > 30, "only {found} commands were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
