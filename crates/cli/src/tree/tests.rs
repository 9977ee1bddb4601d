//! What flags and help say.

use super::*;

const HANDLE: &str = "delay.0000.0000.0000.0000.0000.0101.1010.billing.~.invoice-17";

#[test]
fn the_definition_is_sound() {
    command().debug_assert();
}

/// Every command, with its words.
fn all(command: &clap::Command, words: &str, found: &mut Vec<(String, clap::Command)>) {
    for nested in command.get_subcommands() {
        let words = format!("{words} {}", nested.get_name());
        all(nested, &words, found);
        found.push((words, nested.clone()));
    }
}

fn every_command() -> Vec<(String, clap::Command)> {
    let mut root = command();
    root.build();
    let mut found = Vec::new();
    all(&root, "delayline", &mut found);
    found
}

#[test]
fn the_help_is_a_tree_of_all_commands_on_one_screen() {
    let help = command().render_help().to_string();
    let tree = help.lines().filter(|line| line.starts_with("  ") || line.ends_with(':')).count();
    assert!(tree < 60 && help.lines().count() < 65, "{tree}, {} lines: {help}", help.lines().count());
    for (words, command) in every_command().iter().filter(|(_, command)| !command.is_hide_set()) {
        let line = format!("  {:<22} ", words.trim_start_matches("delayline "));
        let leaf = !command.has_subcommands() || !command.is_subcommand_required_set();
        assert_eq!(help.lines().any(|it| it.starts_with(&line)), leaf, "{words}: {help}");
    }
    let wide: Vec<_> = help.lines().filter(|line| line.chars().count() > 100).collect();
    assert!(wide.is_empty(), "{wide:#?}");
    let page = include_str!("../../../../docs/reference/commands.md");
    let tree = help.lines().filter(|line| line.starts_with("  "));
    let missing: Vec<_> = tree.filter(|line| !page.contains(*line)).collect();
    assert!(missing.is_empty(), "docs/reference/commands.md lacks {missing:#?}");
}

#[test]
fn the_readme_names_every_command() {
    let readme = include_str!("../../../../README.md").split("## The commands").nth(1).unwrap();
    let mut named: Vec<String> = Vec::new();
    let mut noun = "";
    for word in readme.split("```").nth(1).unwrap().split_whitespace() {
        let verbs = word.trim_matches(['[', ']']);
        match verbs.contains('|') || verbs != word {
            true => named.extend(verbs.split('|').map(|verb| format!("{noun} {verb}"))),
            false => (noun, _) = (word, named.push(word.to_owned())),
        }
    }
    for (words, command) in every_command().iter().filter(|(_, command)| !command.is_hide_set()) {
        let words = words.trim_start_matches("delayline ");
        let leaf = !command.has_subcommands();
        assert!(!leaf || named.iter().any(|it| it == words), "README.md does not name `{words}`: {named:?}");
    }
}

#[test]
fn the_short_help_of_every_command_fits_a_screen_and_its_examples_are_commands() {
    let mut wrong = Vec::new();
    for (words, mut command) in every_command() {
        let help = command.render_help().to_string();
        if help.lines().count() >= 50 {
            wrong.push(format!("{words}: {} lines", help.lines().count()));
        }
        let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        if !examples.starts_with("Examples:") {
            wrong.push(format!("{words} has no examples"));
        }
        for line in examples.lines() {
            if line.chars().count() > 100 {
                wrong.push(format!("{words}: {line} is wrapped"));
            }
            // A remark may stand behind the command.
            let typed = line.trim().split("   ").next().unwrap_or_default().replace("HANDLE", HANDLE);
            if let Some(arguments) = pages::command(&typed)
                && let Err(error) = super::command().try_get_matches_from(arguments)
                && error.exit_code() != 0
            {
                wrong.push(format!("{line}: {error}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_values_that_help_offers_are_accepted() {
    let (mut tried, mut wrong) = (0, Vec::new());
    for (words, command) in every_command() {
        for argument in command.get_arguments() {
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            let offered = help.rsplit_once(": ").map(|(_, values)| values).unwrap_or_default();
            let is_value =
                |it: &&str| it.starts_with(|first: char| first.is_ascii_digit()) && !it.contains(' ');
            for value in offered.trim_end_matches(']').split(", ").filter(is_value) {
                let typed = match (argument.get_long(), argument.get_index()) {
                    (Some(long), _) => format!("--{long}={value}"),
                    (None, Some(1)) => value.to_owned(),
                    _ => continue,
                };
                tried += 1;
                let line = words.split(' ').chain([typed.as_str()]);
                let refused = super::command().try_get_matches_from(line).err().map(|error| error.kind());
                if let Some(ErrorKind::ValueValidation | ErrorKind::InvalidValue) = refused {
                    wrong.push(format!("{words} offers {value}"));
                }
            }
        }
    }
    assert!(tried >= 9 && wrong.is_empty(), "{tried} tried; {wrong:?}");
}

#[test]
fn json_is_wanted_however_it_is_spelled() {
    let wanted = |typed: &str| wants_json(&typed.split(' ').map(OsString::from).collect::<Vec<_>>());
    for typed in ["key --json", "key -o json", "-ojson key", "key --output json", "key --output=json 90s"] {
        assert!(wanted(typed), "{typed}");
    }
    for typed in ["key", "key -o wide", "key -- --json", "key -o", "export --format json"] {
        assert!(!wanted(typed), "{typed}");
    }
}

#[test]
fn a_negative_value_reaches_the_parser_of_its_argument() {
    let said = |typed: &str| match command().try_get_matches_from(typed.split(' ')) {
        Ok(matches) => path(&matches).join(" "),
        Err(error) => error.to_string(),
    };
    for (typed, words) in [
        ("delayline key encode --json -5s --app billing", "a delay cannot be negative: `-5s`"),
        ("delayline key encode -5s --app billing", "a delay cannot be negative: `-5s`"),
        ("delayline send --delay -5s --app a", "a delay cannot be negative: `-5s`"),
        ("delayline listen --app a --count -3", "use a whole number, 1 or more"),
        ("delayline send --app a --at -.5", "is not a time"),
        // Not a value, but a flag.
        ("delayline status --watch -v", "status"),
        ("delayline send --app -x", "unexpected argument '-x'"),
        // The command of another program keeps what it gets.
        ("delayline dev -- run --seed -5", "dev"),
    ] {
        assert!(said(typed).contains(words), "{typed}: {}", said(typed));
    }
}
