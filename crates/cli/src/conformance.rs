//! `delayline conformance`

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

use crate::{
    Code, Failure, Output, args,
    output::{counted, grouped},
    table::table,
};

/// The cases by what is asked, what of a case is the question, and what the answer holds.
const CASES: [(&str, &[&str], &[&str], &str); 5] = [
    ("key", &["seconds", "app"], &["key"], include_str!("../../../conformance/v1/key.json")),
    ("decode", &["key"], &["seconds", "app"], include_str!("../../../conformance/v1/decode.json")),
    ("bind", &["app"], &["pattern"], include_str!("../../../conformance/v1/bind.json")),
    (
        "recall",
        &["seconds", "app", "id"],
        &["key", "exchange", "queue"],
        include_str!("../../../conformance/v1/recall.json"),
    ),
    ("retry", &["key"], &["app"], include_str!("../../../conformance/v1/retry.json")),
];

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  delayline conformance python3 conformance/runners/runner.py
  delayline conformance --only key ./my-client
  delayline conformance --json ./my-client | jq .failed

Runs a program that answers the cases in conformance/v1 of the repository: questions come on
its standard input, one JSON object a line, and it answers each with one line:
  {\"question\":\"key\",\"seconds\":90,\"app\":\"billing\"}     {\"key\":\"delay.….billing\"}
  {\"question\":\"decode\",\"key\":\"delay.….billing\"}         {\"seconds\":90,\"app\":\"billing\"}
  {\"question\":\"bind\",\"app\":\"billing\"}                   {\"pattern\":\"delay.*.….billing\"}
  {\"question\":\"recall\",\"seconds\":90,                 {\"key\":\"delay.….billing.~.7\",
   \"app\":\"billing\",\"id\":\"7\"}                         \"exchange\":\"delay.recall.billing\",
                                                   \"queue\":\"delay.recalled.billing\"}
  {\"question\":\"retry\",\"key\":\"delay.….billing\"}          {\"app\":\"billing\"}
and with {\"error\":\"why\"} where there is no such thing. docs/conformance.md has the rest.
Exit code 1 if an answer is wrong or missing.")]
pub(super) struct Args {
    /// Only these questions
    #[arg(long, value_name = "QUESTION", value_parser = ["key", "decode", "bind", "recall", "retry"])]
    only: Vec<String>,
    /// How long the program may take for one answer; then it is asked nothing more
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = args::whole::<u64>(1..=3_600))]
    timeout: u64,
    /// The program and its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

#[derive(Deserialize)]
struct File {
    cases: Vec<Map<String, Value>>,
}

/// A question, and what is known about the right answer.
struct Case {
    question: &'static str,
    name: String,
    ask: Value,
    /// What the answer must hold; `None` if it must be an error.
    wanted: Option<Map<String, Value>>,
}

#[derive(Debug, Serialize)]
struct Report {
    passed: u64,
    failed: Vec<Failed>,
}

#[derive(Debug, Serialize)]
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
        let input = self.input.as_mut().ok_or("not asked, as an answer before is missing")?;
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

pub(super) fn run(args: &Args, output: &mut Output) -> Result<Code, Failure> {
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
    if output.json {
        output.json(&report)?;
        return Ok(code);
    }
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
    Ok(code)
}

#[cfg(test)]
mod tests {
    use delayline_core::{
        codec::{AppKey, Delay, RoutingKey},
        message::Headers,
        retry::Failure,
        topology::{Names, SetName},
    };

    use super::*;

    /// What our own codec says. Its delays are durations, not numbers of a JSON file.
    fn answer(question: &Value) -> Value {
        let text = |name: &str| question[name].as_str().unwrap_or_default();
        let said = (|| -> Result<Value, Box<dyn std::error::Error>> {
            let names = Names::new(SetName::default());
            let key = || -> Result<RoutingKey, Box<dyn std::error::Error>> {
                let seconds = question["seconds"].as_f64().ok_or("not a number")?;
                let delay = if seconds > 4e9 { u64::MAX as f64 } else { seconds };
                let delay = Delay::at_least(Duration::try_from_secs_f64(delay)?)?;
                Ok(RoutingKey::new(delay, AppKey::new(text("app"))?))
            };
            Ok(match text("question") {
                "key" => json!({ "key": key()?.encode() }),
                "recall" => {
                    let key = key()?.with_id(text("id").parse()?)?;
                    let (exchange, queue) = (names.recall(&key.app), names.recalled(&key.app));
                    json!({ "key": key.encode(), "exchange": exchange, "queue": queue })
                }
                "retry" => {
                    let failure = Failure::read(&Headers::new(), "delay.retry", text("key"), &names, 0)?;
                    json!({ "app": failure.app.as_str() })
                }
                "decode" => {
                    let key: RoutingKey = text("key").parse()?;
                    json!({ "seconds": key.delay.seconds(), "app": key.app.as_str() })
                }
                _ => json!({ "pattern": RoutingKey::binding_pattern(&AppKey::new(text("app"))?) }),
            })
        })();
        said.unwrap_or_else(|error| json!({ "error": error.to_string() }))
    }

    #[test]
    fn our_own_codec_passes() {
        let cases = cases(&[]);
        assert!(cases.len() > 230, "only {} cases", cases.len());
        for case in &cases {
            let said = answer(&case.ask).to_string();
            assert_eq!(judge(case, &said), None, "{}: {}", case.question, case.name);
        }
    }

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
