//! The tutorial, with every step that a reader takes.

use std::{env, fs, path::Path, process::Command};

use crate::common::run_in_time;

const PAGE: &str = include_str!("../../docs/tutorial.md");

/// The code blocks of a language: the rest of the first line, and the text.
fn blocks(language: &str) -> Vec<(&'static str, &'static str)> {
    let fences = PAGE.split("```").skip(1).step_by(2);
    fences.filter_map(|block| block.strip_prefix(language)?.split_once('\n')).collect()
}

#[test]
fn every_command_of_the_tutorial_works_and_prints_what_the_page_shows() {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in blocks("toml ").into_iter().chain(blocks("python ")) {
        fs::write(directory.path().join(name), text).unwrap();
    }
    let (commands, printed): (Vec<_>, Vec<_>) = blocks("console")
        .into_iter()
        .flat_map(|(_, text)| text.lines())
        .partition(|line| line.starts_with("$ "));
    let commands: Vec<_> = commands.iter().map(|line| &line[2..]).collect();
    assert!(commands.len() > 8 && printed.len() > 2, "{commands:?}");
    let script = format!("set -ex\npython3() {{ \"$TEST_PYTHON\" \"$@\"; }}\n{}\n", commands.join("\n"));
    fs::write(directory.path().join("commands"), script).unwrap();

    let (_, start) = blocks("sh")[0];
    let arguments = start.trim_end().strip_prefix("delayline ").unwrap().split(' ');
    let program = Path::new(env!("CARGO_BIN_EXE_delayline"));
    let path = format!("{}:{}", program.parent().unwrap().display(), env::var("PATH").unwrap());
    let mut tutorial = Command::new(program);
    tutorial.args(arguments).arg("commands").env("PATH", path).current_dir(directory.path());
    let output = run_in_time(tutorial);
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    for line in printed {
        assert!(text.lines().any(|it| it == line), "`{line}` is not in {text}");
    }
}
