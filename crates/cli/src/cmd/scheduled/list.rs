//! What `scheduled list`, `show` and `count` print.

use owo_colors::OwoColorize;

use delayline_admin::{Estimated, FoundMessage, JournalRead, ScheduleCount, ScheduleList, ScheduleState};
use delayline_core::codec::Delay;

use crate::cmd::held::sample;
use delayline_term::{
    Code, Failure, Output, findings, output::counted, output::grouped, table::table, text::readable,
    time::date,
};

fn code(journal: &JournalRead) -> Code {
    if journal.interrupted { Code::Interrupted } else { Code::Done }
}

/// Prints a message that a journal has, or that it has none.
pub(super) fn show(
    (found, journal): (Option<&FoundMessage>, &JournalRead),
    output: &mut Output,
) -> Result<Code, Failure> {
    let code = match found {
        _ if journal.interrupted => Code::Interrupted,
        Some(_) => Code::Done,
        None => Code::Problem,
    };
    match found {
        Some(found) if output.json => output.json(found)?,
        Some(found) => {
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
        None if output.json => {}
        None => {
            output.line("the journal does not contain it")?;
            told(journal, output)?;
        }
    }
    Ok(code)
}

fn coloured(state: ScheduleState) -> String {
    match state {
        ScheduleState::Waiting => state.as_str().green().to_string(),
        ScheduleState::Uncertain => state.as_str().yellow().to_string(),
        ScheduleState::Recalled => state.as_str().red().to_string(),
        _ => state.as_str().to_owned(),
    }
}

pub(super) fn list(list: &ScheduleList, output: &mut Output) -> Result<Code, Failure> {
    if output.json {
        output.json(list)?;
        return Ok(code(&list.journal));
    }
    let number = |number: u32| if number == 0 { String::new() } else { grouped(number.into()) };
    let rows = list.messages.iter().map(|it| {
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
    if list.messages.is_empty() && list.more == 0 {
        output.line(format!("the journal of `{}` contains no such message", list.app))?;
    } else {
        output.line(table(&["due", "state", ">retry", ">bytes", "handle"], rows))?;
        let more = match list.more {
            0 => String::new(),
            more => format!("; {} more are not listed (--limit)", grouped(more)),
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
        let rows = count.slots.iter().map(|it| {
            let number = |number: u64| if number == 0 { String::new() } else { grouped(number) };
            vec![date(it.from), number(it.waiting), number(it.recalled), number(it.uncertain), number(it.due)]
        });
        output.line(table(&["from", ">waiting", ">recalled", ">uncertain", ">was due"], rows))?;
    }
    if count.later > 0 {
        output
            .line(format!("{} are due later, and not counted separately", counted(count.later, "message")))?;
    }
    estimated(count.estimated, output)?;
    ending(&count.journal, &count.unchecked, output)
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
fn told(journal: &JournalRead, output: &mut Output) -> Result<(), Failure> {
    if let Some(what) = cut_off(journal) {
        output.line(format!(
            "{} the journal has dropped {what} at its limits of age and size; those that still wait are not \
             listed",
            "!".yellow(),
        ))?;
    }
    if journal.odd > 0 {
        output.line(format!(
            "{} {} of the journal are not delayed messages of this application: their routing key is wrong, \
             so they are not delivered",
            "!".yellow(),
            counted(journal.odd, "message")
        ))?;
    }
    if journal.interrupted {
        output.line(format!("interrupted after {}", counted(journal.read, "message")))?;
    }
    Ok(())
}
