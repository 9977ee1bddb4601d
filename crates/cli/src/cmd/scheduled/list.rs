//! What `scheduled list`, `show` and `count` print.

use owo_colors::OwoColorize;

use delayline_admin::{
    AppCounts, Estimated, FoundMessage, JournalRead, ScheduleCount, ScheduleList, ScheduleState,
    ScheduledMessage,
};
use delayline_core::codec::Delay;

use crate::cmd::held::sample;
use delayline_term::{
    Code, Failure, Output, findings, output::counted, output::grouped, table::table, text::readable,
    time::date,
};

fn code(journal: &JournalRead) -> Code {
    if journal.interrupted { Code::Interrupted } else { Code::Done }
}

/// Prints messages that a journal has, or that it has none.
pub(super) fn show(
    (found, journal): (&[FoundMessage], &JournalRead),
    output: &mut Output,
) -> Result<Code, Failure> {
    for found in found {
        if output.json {
            output.json(found)?;
        } else {
            let state = coloured(found.message.state);
            output.line(format!("{state} due {}", date(found.message.due)))?;
            if let Some(latest) = found.message.due_latest {
                output.line(format!("  or later     until {}", date(latest)))?;
            }
            output.line(format!("  handle       {}", readable(&found.message.handle)))?;
            if found.message.copies > 1 {
                output.line(format!("  published    {} times", grouped(found.message.copies)))?;
            }
            for reason in &found.unchecked {
                output.line(format!("  not checked  {}", readable(reason)))?;
            }
            sample(&found.sample, output)?;
        }
    }
    if found.is_empty() && !output.json {
        output.line("the journal contains no such message")?;
        told(journal, output)?;
    }
    Ok(match found {
        _ if journal.interrupted => Code::Interrupted,
        [] => Code::Problem,
        _ => Code::Done,
    })
}

fn coloured(state: ScheduleState) -> String {
    match state {
        ScheduleState::Waiting => state.as_str().green().to_string(),
        ScheduleState::Uncertain => state.as_str().yellow().to_string(),
        ScheduleState::Recalled => state.as_str().red().to_string(),
        _ => state.as_str().to_owned(),
    }
}

/// A table of messages.
pub(super) fn messages<'a>(messages: impl Iterator<Item = &'a ScheduledMessage>) -> String {
    let number = |number: u32| if number == 0 { String::new() } else { grouped(number.into()) };
    let rows = messages.map(|it| {
        let handle = match it.copies {
            0 | 1 => readable(&it.handle),
            copies => format!("{} (published {copies} times)", readable(&it.handle)),
        };
        // Without colours, which the table would give room.
        vec![
            date(it.due),
            it.state.as_str().to_owned(),
            number(it.attempt),
            grouped(it.bytes.unwrap_or(0) as u64),
            handle,
        ]
    });
    table(&["due", "state", ">retry", ">bytes", "handle"], rows).to_string()
}

pub(super) fn list(list: &ScheduleList, output: &mut Output) -> Result<Code, Failure> {
    if output.json {
        output.json(list)?;
        return Ok(code(&list.journal));
    }
    if list.waiting + list.recalled + list.uncertain + list.due == 0 {
        output.line(format!("the journal of `{}` contains no such message", list.app))?;
    } else {
        output.line(messages(list.messages.iter()))?;
        let more = match list.more {
            0 => String::new(),
            more => format!("; {} more follow (--limit, --skip)", grouped(more)),
        };
        output.line(format!(
            "{} waiting, {} recalled, {} uncertain{more}",
            grouped(list.waiting),
            grouped(list.recalled),
            grouped(list.uncertain)
        ))?;
    }
    estimated(list.estimated, output)?;
    ending(&list.journal, &list.unchecked, output)
}

pub(super) fn count(count: &ScheduleCount, output: &mut Output) -> Result<Code, Failure> {
    if output.json {
        output.json(count)?;
        return Ok(code(&count.journal));
    }
    if count.slots.is_empty() {
        output.line(format!("the journal of `{}` contains no scheduled message", count.app))?;
    } else {
        let rows = count
            .slots
            .iter()
            .map(|it| numbers(date(it.from), [it.waiting, it.recalled, it.uncertain, it.due]).collect());
        output.line(table(&["from", ">waiting", ">recalled", ">uncertain", ">was due"], rows))?;
    }
    if count.later > 0 {
        output
            .line(format!("{} are due later, and not counted separately", counted(count.later, "message")))?;
    }
    estimated(count.estimated, output)?;
    ending(&count.journal, &count.unchecked, output)
}

/// Prints the counts of each application.
pub(super) fn apps(counts: &AppCounts, output: &mut Output) -> Result<Code, Failure> {
    let interrupted = counts.apps.iter().any(|it| it.journal.interrupted);
    output.report(counts, |counts, output| {
        if counts.apps.is_empty() {
            output.line("no application has a journal")?;
        } else {
            let first = |it: &ScheduleList| it.messages.first().map(|it| date(it.due)).unwrap_or_default();
            let rows = counts.apps.iter().map(|it| {
                let counts = [it.waiting, it.recalled, it.uncertain, it.due];
                numbers(readable(&it.app), counts).chain([first(it)]).collect()
            });
            output.line(table(
                &["app key", ">waiting", ">recalled", ">uncertain", ">was due", "first due"],
                rows,
            ))?;
        }
        for list in &counts.apps {
            told(&list.journal, output)?;
            findings::unchecked(&list.unchecked, output)?;
        }
        findings::unchecked(&counts.unchecked, output)
    })?;
    Ok(match counts.unchecked.is_empty() {
        _ if interrupted => Code::Interrupted,
        true => Code::Done,
        false => Code::Problem,
    })
}

/// The cells of counts behind a name. A count of 0 is left out.
fn numbers(name: String, counts: [u64; 4]) -> impl Iterator<Item = String> {
    let number = |number: u64| if number == 0 { String::new() } else { grouped(number) };
    std::iter::once(name).chain(counts.into_iter().map(number))
}

fn estimated(estimated: Estimated, output: &mut Output) -> Result<(), Failure> {
    if estimated.messages > 0 {
        output.line(format!(
            "{} without the header delayline-due may be due up to {} later than shown",
            counted(estimated.messages, "message"),
            Delay::from_seconds(estimated.seconds).unwrap_or(Delay::MAX)
        ))?;
    }
    Ok(())
}

fn ending(journal: &JournalRead, unchecked: &[String], output: &mut Output) -> Result<Code, Failure> {
    told(journal, output)?;
    findings::unchecked(unchecked, output)?;
    Ok(code(journal))
}

/// What the limits of a journal have cut off, if they have.
pub(crate) fn cut_off(journal: &JournalRead) -> Option<String> {
    match journal.cut_off {
        _ if journal.emptied => Some("all older messages".into()),
        0 => None,
        count => Some(counted(count, "older message")),
    }
}

/// The limits of a journal's contents.
pub(super) fn told(journal: &JournalRead, output: &mut Output) -> Result<(), Failure> {
    let queue = readable(&journal.queue);
    if let Some(what) = cut_off(journal) {
        output.line(format!(
            "{} `{queue}` has dropped {what} at its limits of age and size; those that still wait are not listed",
            "!".yellow(),
        ))?;
    }
    if journal.odd > 0 {
        output.line(format!(
            "{} {} of `{queue}` are not delayed messages of this application: their routing key is wrong, so \
             they are not delivered",
            "!".yellow(),
            counted(journal.odd, "message")
        ))?;
    }
    if journal.unreadable > 0 {
        output.line(format!(
            "{} {} of `{queue}` left out, since their headers cannot be read here",
            "!".yellow(),
            counted(journal.unreadable, "message")
        ))?;
    }
    if journal.interrupted {
        output.line(format!("interrupted after {}", counted(journal.read, "message")))?;
    }
    Ok(())
}
