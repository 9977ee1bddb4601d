//! `delayline-bench conformance`

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use delayline_cli::program::{Code, Failure, Output, counted, grouped, table, whole};

/// The cases by kind of question, with the fields of the question and of the answer.
const CASES: [(&str, &[&str], &[&str], &str); 5] = [
    ("key", &["seconds", "app"], &["key"], include_str!("../../../../conformance/v1/key.json")),
    ("decode", &["key"], &["seconds", "app"], include_str!("../../../../conformance/v1/decode.json")),
    ("bind", &["app"], &["pattern"], include_str!("../../../../conformance/v1/bind.json")),
    (
        "recall",
        &["seconds", "app", "id"],
        &["key", "exchange", "queue"],
        include_str!("../../../../conformance/v1/recall.json"),
    ),
    ("retry", &["key"], &["app"], include_str!("../../../../conformance/v1/retry.json")),
];

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline-bench conformance python3 conformance/runners/runner.py
  delayline-bench conformance --only key ./my-client
  delayline-bench conformance --json ./my-client | jq .failed

Runs a program that answers the cases in conformance/v1 of the repository. It reads questions
from standard input, one JSON object per line, and answers each with a line:
  {\"question\":\"key\",\"seconds\":90,\"app\":\"billing\"}     {\"key\":\"delay.….billing\"}
  {\"question\":\"decode\",\"key\":\"delay.….billing\"}         {\"seconds\":90,\"app\":\"billing\"}
  {\"question\":\"bind\",\"app\":\"billing\"}                   {\"pattern\":\"delay.*.….billing\"}
  {\"question\":\"recall\",\"seconds\":90,                 {\"key\":\"delay.….billing.~.7\",
   \"app\":\"billing\",\"id\":\"7\"}                         \"exchange\":\"delay.recall.billing\",
                                                   \"queue\":\"delay.recalled.billing\"}
  {\"question\":\"retry\",\"key\":\"delay.….billing\"}          {\"app\":\"billing\"}
and with {\"error\":\"why\"} if there is no answer (docs/reference/conformance.md).
Exit code 1 if an answer is wrong or missing.")]
pub(crate) struct Args {
    /// Only these questions
    #[arg(long, value_name = "QUESTION", value_parser = ["key", "decode", "bind", "recall", "retry"])]
    only: Vec<String>,
    /// How long the program may take for one answer; then it is asked nothing more
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = whole::<u64>(1..=3_600))]
    timeout: u64,
    /// The program and its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

#[derive(Deserialize)]
struct File {
    cases: Vec<Map<String, Value>>,
}

/// A question, and the known parts of the right answer.
struct Case {
    question: &'static str,
    name: String,
    ask: Value,
    /// The required parts of the answer; `None` if it must be an error.
    wanted: Option<Map<String, Value>>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
pub(crate) struct Report {
    passed: u64,
    failed: Vec<Failed>,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
struct Failed {
    question: &'static str,
    case: String,
    asked: Value,
    wanted: Value,
    answer: String,
}

fn cases(only: &[String]) -> Vec<Case> {
    let chosen =
        CASES.iter().filter(|(question, ..)| only.is_empty() || only.iter().any(|it| it == question));
    chosen
        .flat_map(|&(question, ask, answer, text)| {
            let file: File = serde_json::from_str(text).expect("the cases are JSON");
            file.cases.into_iter().map(move |case| {
                let take = |names: &[&str]| -> Map<String, Value> {
                    let value =
                        |name: &&str| ((*name).to_owned(), case.get(*name).cloned().unwrap_or_default());
                    names.iter().map(value).collect()
                };
                let mut asked = Map::from_iter([("question".to_owned(), question.into())]);
                asked.extend(take(ask));
                Case {
                    question,
                    name: case.get("name").and_then(Value::as_str).unwrap_or_default().to_owned(),
                    ask: asked.into(),
                    wanted: (!case.contains_key("error")).then(|| take(answer)),
                }
            })
        })
        .collect()
}

/// Why an answer is wrong, if it is; as text.
fn judge(case: &Case, line: &str) -> Option<String> {
    let answer: Map<String, Value> = match serde_json::from_str(line) {
        Ok(answer) => answer,
        Err(_) => return Some(format!("not a JSON object: {}", shortened(line))),
    };
    let right = match &case.wanted {
        None => answer.contains_key("error"),
        // 90 and 90.0 are the same number.
        Some(wanted) => wanted.iter().all(|(name, value)| match (value.as_f64(), answer.get(name)) {
            (Some(number), Some(found)) => found.as_f64() == Some(number),
            (None, Some(found)) => found == value,
            (_, None) => false,
        }),
    };
    (!right).then(|| shortened(line))
}

fn shortened(line: &str) -> String {
    const MOST: usize = 300;
    match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

/// The program, which ends with us.
struct Program {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Program {
    fn start(command: &[String]) -> Result<Self, Failure> {
        let (name, arguments) = command.split_first().expect("clap asks for one");
        let mut child = Command::new(name)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Failure::usage(format!("`{name}` cannot be run: {error}")))?;
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("it is a pipe"));
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { break };
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, input, lines })
    }

    /// Asks, and returns the answer, or why there is none. Then nothing more is asked: a late
    /// answer would be taken for the next one.
    fn ask(&mut self, question: &Value, patience: Duration) -> Result<String, String> {
        let input = self.input.as_mut().ok_or("not asked, since an earlier answer is missing")?;
        let asked = writeln!(input, "{question}").and_then(|()| input.flush());
        let answer = match (asked, self.lines.recv_timeout(patience)) {
            (_, Ok(line)) => return Ok(line),
            (Ok(()), Err(RecvTimeoutError::Timeout)) => format!("no answer within {} s", patience.as_secs()),
            (Err(_), Err(RecvTimeoutError::Timeout)) => "it reads no questions".into(),
            (_, Err(RecvTimeoutError::Disconnected)) => "it has ended".into(),
        };
        self.input = None;
        Err(answer)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<Code, Failure> {
    let cases = cases(&args.only);
    let patience = Duration::from_secs(args.timeout);
    let mut program = Program::start(&args.command)?;
    let mut report = Report { passed: 0, failed: Vec::new() };
    let mut of_each: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    let bar = output.progress(Some(cases.len() as u64), "answered");
    for case in cases {
        let answer = program.ask(&case.ask, patience);
        bar.inc(1);
        let wrong = match &answer {
            Ok(line) => judge(&case, line),
            Err(reason) => Some(reason.clone()),
        };
        let counts = of_each.entry(case.question).or_default();
        counts.1 += 1;
        let Some(answer) = wrong else {
            counts.0 += 1;
            report.passed += 1;
            continue;
        };
        let wanted = case.wanted.map_or_else(|| json!({ "error": "…" }), Value::Object);
        report.failed.push(Failed {
            question: case.question,
            case: case.name,
            asked: case.ask,
            wanted,
            answer,
        });
    }
    bar.finish_and_clear();
    let code = if report.failed.is_empty() { Code::Done } else { Code::Problem };
    output.report(&report, |report, output| show(report, &of_each, output))?;
    Ok(code)
}

/// Prints the wrong answers, and how many of each question are right.
fn show(report: &Report, of_each: &BTreeMap<&str, (u64, u64)>, output: &mut Output) -> Result<(), Failure> {
    for failed in &report.failed {
        output.line(format!("{}, {}", failed.question, failed.case))?;
        output.line(format!("  asked   {}", failed.asked))?;
        output.line(format!("  wanted  {}", failed.wanted))?;
        output.line(format!("  answer  {}", failed.answer.escape_debug()))?;
    }
    let rows = of_each
        .iter()
        .map(|(question, (passed, all))| vec![(*question).to_owned(), grouped(*passed), grouped(*all)]);
    output.line(table(&["question", ">right", ">of"], rows))?;
    output.line(match report.failed.len() {
        0 => format!("all {} are right", counted(report.passed, "answer")),
        wrong => format!("{} wrong", counted(wrong as u64, "answer")),
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_question_has_cases_that_must_fail_and_names_of_their_own() {
        for (question, ..) in CASES {
            let cases = cases(&[question.to_owned()]);
            let names: std::collections::BTreeSet<_> = cases.iter().map(|case| &case.name).collect();
            assert_eq!(names.len(), cases.len(), "{question}");
            let errors = cases.iter().filter(|case| case.wanted.is_none()).count();
            assert!(errors >= 5 && errors < cases.len(), "{question}: {errors} of {}", cases.len());
        }
    }

    #[test]
    fn an_answer_is_right_or_shown() {
        let cases = cases(&["key".to_owned()]);
        let right = r#"{"key":"delay.0000.0000.0000.0000.0000.0101.1010.billing","more":1}"#;
        assert_eq!(judge(&cases[0], right), None);
        for wrong in [r#"{"key":"delay.x"}"#, r#"{"error":"no"}"#, "{}", "[]", "", &"x".repeat(1_000)] {
            assert!(judge(&cases[0], wrong).is_some_and(|shown| shown.len() < 400), "{wrong}");
        }
    }
}
