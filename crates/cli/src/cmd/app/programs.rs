//! The programs of docs/for-teams, with an application's names in them: one text for the
//! pages, for `delayline app`, and for the tests that run it.

use regex::{Captures, Regex};
use serde::Serialize;

use crate::cmd::app::snippets::snippets;

/// The pages that have programs.
const PAGES: [&str; 8] = [
    include_str!("../../../../../docs/for-teams/python.md"),
    include_str!("../../../../../docs/for-teams/javascript.md"),
    include_str!("../../../../../docs/for-teams/rust.md"),
    include_str!("../../../../../docs/for-teams/java.md"),
    include_str!("../../../../../docs/for-teams/go.md"),
    include_str!("../../../../../docs/for-teams/php.md"),
    include_str!("../../../../../docs/for-teams/ruby.md"),
    include_str!("../../../../../docs/for-teams/dotnet.md"),
];

/// The languages and clients that have programs.
pub(crate) const CLIENTS: [&str; 12] = [
    "python",
    "aio-pika",
    "celery",
    "javascript",
    "rust",
    "lapin",
    "java",
    "go",
    "php",
    "ruby",
    "dotnet",
    "spring",
];

/// What an application has.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub(crate) struct Names {
    /// Its app key.
    pub(crate) app: String,
    /// The queue it consumes, if it receives.
    pub(crate) queue: Option<String>,
    /// The exchange it publishes to.
    pub(crate) exchange: String,
    /// The applications to which it sends, if it receives no messages itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) sends_to: Vec<String>,
    /// Whether its messages can be recalled.
    #[serde(skip)]
    pub(crate) recall: bool,
}

/// A program.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub(crate) struct Program {
    /// The file it belongs in.
    pub(crate) file: String,
    pub(crate) text: String,
}

/// The programs of a registered application for a client from [`CLIENTS`]. An application without
/// a queue gets only the sending programs.
pub(crate) fn programs(client: &str, names: &Names) -> Vec<Program> {
    let all = PAGES.iter().flat_map(|page| snippets(page));
    // A program with a fourth word is for another reader; a part for the first client of a language has two.
    let ours = all.filter(|snippet| match snippet.words[..] {
        [_, _, of] => of == client,
        [of, file] => of == client && names.queue.is_some() && (names.recall || !file.contains("recall")),
        _ => false,
    });
    ours.filter(|snippet| names.queue.is_some() || !snippet.text.contains(QUEUE))
        .map(|snippet| Program {
            file: snippet.words[1].into(),
            text: named(&snippet.text, snippet.words[0], names),
        })
        .collect()
}

/// The queue in the pages.
const QUEUE: &str = "\"billing-in\"";

/// A program with other names than those in the pages.
fn named(text: &str, language: &str, names: &Names) -> String {
    let known = Regex::new("\"(billing-in|billing|delay)\"").expect("a pattern");
    let name = |found: &Captures<'_>| {
        let name = match &found[1] {
            "billing-in" => names.queue.as_deref().unwrap_or_default(),
            "billing" => names.sends_to.first().unwrap_or(&names.app),
            _ => &names.exchange,
        };
        literal(name, language)
    };
    let text = known.replace_all(text, name).into_owned();
    // Other names of the set have its name in front, which needs no quoting.
    ["delay.parked", "delay.recall.", "delay.recalled."]
        .iter()
        .fold(text, |text, it| text.replace(it, &it.replacen("delay", &names.exchange, 1)))
}

/// A text as a program in this language writes it, in double quotes.
fn literal(text: &str, language: &str) -> String {
    let mut literal = String::from("\"");
    for letter in text.chars() {
        match (letter, language) {
            ('"' | '\\', _) | ('$', "php") | ('#', "ruby") => literal.extend(['\\', letter]),
            (control, "php" | "rust") if control.is_control() => {
                literal.push_str(&format!("\\u{{{:x}}}", u32::from(control)));
            }
            (control, _) if control.is_control() => {
                literal.push_str(&format!("\\u{:04x}", u32::from(control)));
            }
            _ => literal.push(letter),
        }
    }
    literal + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(app: &str, queue: &str) -> Names {
        Names {
            app: app.into(),
            queue: Some(queue.into()),
            exchange: "later".into(),
            sends_to: Vec::new(),
            recall: false,
        }
    }

    #[test]
    fn every_client_has_programs_with_the_names_of_the_application() {
        for client in CLIENTS {
            let programs = programs(client, &names("eu.shop", "shop"));
            let all: String = programs.iter().map(|program| program.text.as_str()).collect();
            for name in ["\"eu.shop\"", "\"shop\"", "\"later\""] {
                // Spring's annotations and .NET's constants name them as the others do.
                assert!(all.contains(name), "{client} has no {name}");
            }
            for name in ["\"billing\"", QUEUE, "\"delay\"", "delay.dispatch", "declare_queue"] {
                assert!(!all.contains(name), "{client} has {name}");
            }
        }
    }

    #[test]
    fn recalling_is_shown_to_applications_whose_messages_can_be_recalled() {
        for (client, parts) in [("python", &["park.py", "recall.py"][..]), ("javascript", &["recall.js"])] {
            for recall in [false, true] {
                let programs = programs(client, &Names { recall, ..names("shop", "shop") });
                for part in parts {
                    let found = programs.iter().find(|program| program.file == *part);
                    assert_eq!(found.is_some(), recall || !part.contains("recall"), "{part}");
                    assert!(found.is_none_or(
                        |it| !it.text.contains("delay.park") && !it.text.contains("delay.recall")
                    ));
                }
            }
        }
    }

    #[test]
    fn who_only_publishes_gets_no_receiver() {
        let names = Names { queue: None, sends_to: vec!["mail".into()], ..names("shop", "") };
        for client in CLIENTS.into_iter().filter(|client| !["celery", "spring"].contains(client)) {
            let programs = programs(client, &names);
            assert!(programs.iter().all(|program| program.text.contains("\"mail\"")), "{client}");
            let files: Vec<_> = programs.into_iter().map(|program| program.file).collect();
            assert!(files.len() == 1 && files[0].to_lowercase().starts_with("send"), "{client}: {files:?}");
        }
    }

    #[test]
    fn no_name_ends_its_literal() {
        let names = names("a\"b$c", "billing#{x}\\\n");
        for (language, app, queue) in [
            ("python", r#""a\"b$c""#, r#""billing#{x}\\\u000a""#),
            ("php", r#""a\"b\$c""#, r#""billing#{x}\\\u{a}""#),
            ("ruby", r#""a\"b$c""#, r#""billing\#{x}\\\u000a""#),
        ] {
            assert_eq!(named("\"billing\"", language, &names), app);
            assert_eq!(named("\"billing-in\"", language, &names), queue);
        }
    }
}
