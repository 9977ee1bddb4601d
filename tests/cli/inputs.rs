//! Input from people, and the errors it causes.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    process::Stdio,
};

use jiff::{
    civil::{self, Weekday},
    tz::TimeZone,
};
use predicates::{prelude::PredicateBooleanExt, str::contains};

use crate::{
    common::{Inbox, PATIENCE, installed, shared_node},
    delayline, json, on, stdout,
};

/// Words of our parsers' libraries. No error may contain them.
const FOREIGN: [&str; 6] =
    ["friendly", "unexpected argument", "invalid digit", "unit designator", "relative URL", "Span"];

#[test]
fn impossible_input_gets_an_error_in_our_own_words() {
    for (arguments, word) in [
        (&["send", "--app", "a", "--delay", "-5s", "--body", "x"][..], "a delay cannot be negative: `-5s`"),
        (&["send", "--app", "a", "--delay", "9y", "--body", "x"], "exceeds the limit of 268435455 s"),
        (&["send", "--app", "a", "--delay", "6mo", "--body", "x"], "`30d`"),
        (&["send", "--app", "a", "--delay", "soon", "--body", "x"], "there should be a number"),
        (&["send", "--app", "a", "--delay", "1s", "--tolerance", "-5%"], "from 0% to 100%"),
        (&["key", "encode", "-5s", "--app", "billing"], "a delay cannot be negative: `-5s`"),
        (&["key", "encode", "1:30:00", "--app", "billing"], "`1` has no unit"),
        (&["listen", "--app", "a", "--count", "-3"], "use a whole number, 1 or more"),
        (&["listen", "--app", "a", "--timeout", "-3"], "negative"),
        (&["held", "show", "--kind", "parked", "--limit", "-3"], "use a whole number"),
        (&["held", "list", "--kind", "parked", "--examine", "many"], "use a whole number"),
        (&["held", "discard", "--yes", "--kind", "parked", "--older-than", "-3d"], "negative"),
        (&["held", "show", "--kind", "unroutable", "--body-bytes", "-3"], "use a whole number"),
        (&["serve", "--prefetch", "0"], "use a whole number, 1 or more"),
        (&["app", "add", "a", "--max-delay", "-3"], "negative"),
        (&["install", "--replicas", "-3"], "replicas"),
        (&["status", "--url", "broker.example"], "amqp://USER@HOST:5672/VHOST"),
    ] {
        let run = delayline().args(arguments).assert().code(2).stdout("").stderr(contains(word));
        let said = String::from_utf8_lossy(&run.get_output().stderr).into_owned();
        assert!(!FOREIGN.iter().any(|foreign| said.contains(foreign)), "{arguments:?}: {said}");
    }
}

#[test]
fn years_weeks_and_days_have_their_exact_length() {
    let seconds = |delay: &str| {
        json(delayline().args(["key", "encode", delay, "--app", "billing", "--json"]))["seconds"].clone()
    };
    assert_eq!([seconds("8.5y"), seconds("268435455")], [268_239_600, 268_435_455]);
    assert_eq!([seconds("1y"), seconds("1.5d"), seconds("2w")], [31_557_600, 129_600, 1_209_600]);
}

/// `send --at` with an address where no broker listens.
fn at(zone: &str, time: &str) -> assert_cmd::Command {
    let mut command = delayline();
    command.env("TZ", zone).args([
        "send",
        "--app",
        "a",
        "--body",
        "x",
        "--url",
        "amqp://127.0.0.1:1",
        "--at",
        time,
    ]);
    command
}

/// The last Sunday of a month of next year. In Berlin, clocks change on this day in March and
/// October.
fn last_sunday(month: i8) -> civil::Date {
    let year = jiff::Timestamp::now().to_zoned(TimeZone::UTC).year() + 1;
    let last = civil::date(year, month, 1).last_of_month();
    if last.weekday() == Weekday::Sunday { last } else { last.nth_weekday(-1, Weekday::Sunday).unwrap() }
}

#[test]
fn a_time_that_cannot_be_meant_is_asked_about() {
    let (spring, autumn, year) = (last_sunday(3), last_sunday(10), last_sunday(3).year());
    for (zone, time, words) in [
        ("Mars/Phobos", "YEAR-12-24 18:00", ["TZ is `Mars/Phobos`", "unset it"]),
        ("Mars/Phobos", "18:00", ["TZ is `Mars/Phobos`", "`2026-12-24T18:00+01:00`"]),
        ("UTC", "YEAR-12-24T18:00[Mars/Phobos]", ["time zone", "tzdata"]),
        (
            "Europe/Berlin",
            "SPRING 02:30",
            ["there is no SPRING 02:30:00 in Europe/Berlin", "`SPRINGT03:30:00+02:00`"],
        ),
        ("Europe/Berlin", "AUTUMN 02:30", ["`AUTUMNT02:30:00+02:00`", "`AUTUMNT02:30:00+01:00`"]),
        (
            "Europe/Berlin",
            "2020-01-01 00:00",
            ["2020-01-01 00:00:00 +01:00 Europe/Berlin is in the past", "--past now"],
        ),
        ("UTC", "99999-01-01", ["is not a time", "write"]),
        ("UTC", "9999-01-01", ["days exceeds the limit", "8.5 years"]),
    ] {
        let dated = |text: &str| {
            let dates =
                [("SPRING", spring.to_string()), ("AUTUMN", autumn.to_string()), ("YEAR", year.to_string())];
            dates.iter().fold(text.to_owned(), |text, (name, date)| text.replace(name, date))
        };
        let (time, words) = (&*dated(time), words.map(dated));
        let run = at(zone, time).assert().stdout("");
        let said = String::from_utf8_lossy(&run.get_output().stderr).into_owned();
        assert!(words.iter().all(|word| said.contains(word)), "{zone} {time}: {said}");
        assert_eq!(run.get_output().status.code(), Some(2), "{zone} {time}: {said}");
    }
    // A time with an offset needs no zone, and `--past` settles the other case, so both commands
    // get as far as the broker.
    at("Mars/Phobos", &format!("{year}-12-24T18:00+01:00")).assert().code(3);
    at("UTC", "2020-01-01 00:00").args(["--past", "now"]).assert().code(3);
    at("UTC", "2020-01-01 00:00").args(["--past", "soon"]).assert().code(2).stderr(contains("refuse, now"));
}

#[test]
fn all_bad_lines_of_a_file_are_named_at_once() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(
        &file,
        "{\"delay\": 1}\n{\"delay\": \"soon\"}\n\n{\"at\": \"2020-01-01T00:00Z\"}\n{\"delay\": 1, \"bdy\": 1}\n",
    )
    .unwrap();
    // No broker listens there, so these errors come before any connection.
    let send = || {
        let mut command = delayline();
        command
            .args(["send", "--app", "a", "--jsonl", "--url", "amqp://127.0.0.1:1", "--file"])
            .arg(file.path());
        command
    };
    send()
        .assert()
        .code(2)
        .stdout("")
        .stderr(contains("3 bad lines; nothing was sent\nline 2, column 16: `soon` is not a delay"))
        .stderr(contains("\nline 4: 2020-01-01 ").and(contains("\"past\": \"now\"")))
        .stderr(contains("\nline 5, column 18: unknown field `bdy`; `delayline send --help` lists"));
    let output = send().arg("--json").output().unwrap();
    let error: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    let places: Vec<_> =
        error["lines"].as_array().unwrap().iter().map(|line| (&line["line"], &line["column"])).collect();
    assert_eq!(
        places,
        [(&2.into(), &16.into()), (&4.into(), &serde_json::Value::Null), (&5.into(), &18.into())]
    );
    assert_eq!(error["exit_code"], 2);

    fs::write(&file, "{\"delay\": \"soon\"}\n".repeat(1_000)).unwrap();
    send()
        .assert()
        .code(2)
        .stderr(contains("1,000 bad lines").and(contains("line 20,")).and(contains("… and 980 more")));
    assert_eq!(send().output().unwrap().stderr.split(|&byte| byte == b'\n').count(), 1 + 20 + 1 + 1);
}

#[test]
fn a_due_time_has_a_date_a_zone_and_a_span() {
    let settings = installed(1_000);
    let mut send = on(&settings);
    send.env("TZ", "Europe/Berlin").args([
        "send",
        "--app",
        "app",
        "--delay",
        "32d 5h 51m 21s",
        "--body",
        "x",
    ]);
    let said = stdout(&mut send);
    let form = regex::Regex::new(
        r"^confirmed; due \d{4}-\d\d-\d\d \d\d:\d\d:\d\d \+0[12]:00 Europe/Berlin \(in 32 d, \d+ hops\)\n$",
    )
    .unwrap();
    assert!(form.is_match(&said), "{said}");
    // An unknown zone is reported, but the time is correct.
    let year = last_sunday(3).year();
    let time = format!("{year}-12-24T18:00+01:00");
    let mut send = on(&settings);
    send.env("TZ", "Mars/Phobos").args(["send", "--app", "app", "--at", &time, "--body", "x"]);
    let run = send.assert().success().stdout(contains(format!("due {year}-12-24 17:00:00 +00:00 UTC (in ")));
    run.stderr(contains("shown in UTC").and(contains("TZ is `Mars/Phobos`")));
    // The times of held messages have the same form.
    on(&settings).args(["send", "--app", "nobody", "--delay", "0", "--body", "x"]).assert().success();
    crate::common::eventually("the message is unroutable", || {
        let shown =
            stdout(on(&settings).env("TZ", "Europe/Berlin").args(["held", "show", "--kind", "unroutable"]));
        regex::Regex::new(r"delayline-due = \d+ \(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \+0[12]:00 Europe/Berlin\)")
            .unwrap()
            .is_match(&shown)
    });
}

#[test]
fn a_pipe_is_sent_as_it_comes_without_its_bad_lines() {
    let settings = installed(10);
    let inbox = Inbox::open(&settings, "app");
    let lines = "{\"body\": \"1\"}\n{\"at\": \"2020-01-01T00:00Z\", \"body\": \"past\"}\n{\"delay\": \"soon\"}\n\
                 {\"at\": \"2020-01-01T00:00Z\", \"past\": \"now\", \"body\": \"2\"}\n{\"body\": \"3\"}\n";
    on(&settings)
        .args(["send", "--app", "app", "--delay", "5", "--jsonl"])
        .write_stdin(lines)
        .assert()
        .code(2)
        .stdout(contains("3 confirmed, 2 failed"))
        .stderr(contains("line 2: ").and(contains("in the past")).and(contains("line 3, column 16: ")));
    let mut bodies: Vec<_> = inbox.collect(3, PATIENCE).into_iter().map(|arrival| arrival.body).collect();
    bodies.sort();
    assert_eq!(bodies, [b"1", b"2", b"3"]);
}

#[test]
fn a_bad_line_of_a_pipe_without_an_end_is_named_at_once() {
    let settings = installed(1_000);
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_delayline"))
        .args(["send", "--app", "app", "--delay", "1d", "--jsonl"])
        .env("DELAYLINE_URL", format!("{}/{}", shared_node().url(), settings.broker.vhost))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    for number in [1, 2] {
        input.write_all(b"junk\n").unwrap();
        let line = said.next().unwrap();
        assert!(line.starts_with(&format!("line {number}, column 1: ")), "{line}");
    }
    input.write_all(&b"junk\n".repeat(20)).unwrap();
    drop(input);
    let rest: Vec<_> = said.collect();
    assert_eq!(rest.len(), 19, "{rest:#?}");
    assert_eq!(rest.last().unwrap(), "… and 2 more");
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&ended.stdout).contains("0 confirmed, 22 failed"), "{ended:?}");
}

/// The peak memory of a process so far, in bytes; `None` once it has ended.
fn most_memory(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1_024)
}

#[test]
fn a_pipe_of_large_lines_is_not_held_in_memory() {
    const LINES: usize = 60;
    let settings = installed(1_000);
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_delayline"))
        .args(["send", "--app", "app", "--delay", "1d", "--lines", "--json"])
        .env("DELAYLINE_URL", format!("{}/{}", shared_node().url(), settings.broker.vhost))
        .env("DELAYLINE_PUBLISH_TIMEOUT", "10m")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let writing = std::thread::spawn(move || {
        let line = [vec![b'x'; 4 << 20], vec![b'\n']].concat();
        (0..LINES).for_each(|_| input.write_all(&line).unwrap());
    });
    let mut most = 0;
    while let Some(held) = most_memory(child.id()) {
        most = most.max(held);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    writing.join().unwrap();
    let output = child.wait_with_output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["confirmed"], LINES, "{report}");
    println!("{LINES} lines of 4 MiB: {} MiB at most", most >> 20);
    // The limit covers lines that were read ahead, unanswered messages and unwritten frames.
    // Without limits, these would need 240 MiB and more.
    assert!(most > 0 && most < 176 << 20, "{} MiB were held of {} MiB", most >> 20, LINES * 4);
}
