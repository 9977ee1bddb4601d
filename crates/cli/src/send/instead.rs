//! Sending a message in the place of others.

use std::time::Instant;

use delayline::{
    Message,
    codec::{AppKey, MessageId},
    message::Handle,
    recall::{Answer, Recaller, ReplaceError, Replaced},
    router::Router,
    topology::Topology,
};
use delayline_admin::{self as admin, ScheduleFilter, ScheduledMessage};
use delayline_settings::Settings;

use crate::{
    Code, Failure, Output,
    ending::on_signal,
    output::{aside, at, counted, grouped},
    reschedule,
};

use super::{CLOSE, Report, Sent, send_one};

/// The most messages with one id that wait and are replaced.
const AT_ONCE: usize = 1_000;

/// What came of it if nothing waited.
pub(super) const NOTHING: &str = "nothing";

/// The messages of an application that wait with this id, as its journal knows them; or what
/// the search ended with.
pub(super) fn waiting(
    app: &AppKey,
    id: &MessageId,
    settings: &Settings,
    output: &Output,
) -> Result<Result<Vec<Handle>, Code>, Failure> {
    let topology = Topology::new(settings.topology.clone());
    let filter = ScheduleFilter::default().with_id(Some(id.clone())).not_recalled();
    let stop = on_signal()?;
    let found = output.following("reading the journal", |bar| {
        admin::list_scheduled(settings, &topology, app, &filter, AT_ONCE, &stop, |read, all| {
            at(bar, read, all)
        })
    })?;
    if found.journal.interrupted {
        return Ok(Err(Code::Interrupted));
    }
    if found.more > 0 {
        return Err(Failure::usage(format!(
            "over {} messages wait with the id `{id}`, and nothing was done; recall them first (delayline recall)",
            grouped(AT_ONCE as u64)
        )));
    }
    if found.journal.cut_off > 0 {
        let what = counted(found.journal.cut_off, "older message");
        aside(format!("the journal has cut off {what}; those of them that still wait are not replaced"));
    }
    let parsed = |it: &ScheduledMessage| it.handle.parse().ok();
    Ok(Ok(found.messages.iter().filter_map(parsed).collect()))
}

/// Sends a message, and recalls these once it is confirmed.
pub(super) fn send_instead(message: Message, old: &[Handle], settings: &Settings) -> Result<Report, Failure> {
    let Some((first, rest)) = old.split_first() else {
        return Ok(Report { replaced: Some(NOTHING), ..send_one(message, settings)? });
    };
    let mut recaller = Recaller::connect(settings.broker.clone(), settings.topology.set.clone())?;
    let router = settings.router().connect()?;
    let started = Instant::now();
    let replaced = replace(&mut recaller, &router, (first, rest), message, settings);
    let seconds = started.elapsed().as_secs_f64();
    let _ = router.close(CLOSE);
    let replaced = replaced?;
    Ok(Report {
        confirmed: 1,
        seconds,
        per_second: seconds.recip(),
        message: Some(Sent::new(&replaced.receipt, settings)),
        replaced: Some(reschedule::word(replaced.recalled)),
        ..Report::default()
    })
}

/// What came of recalling the old ones is what came of the one that may still be delivered.
fn replace(
    recaller: &mut Recaller,
    router: &Router,
    (first, rest): (&Handle, &[Handle]),
    message: Message,
    settings: &Settings,
) -> Result<Replaced, Failure> {
    let mut replaced = reschedule::replace(recaller, router, first, message, settings)?;
    for old in rest {
        let receipt = &replaced.receipt;
        // Recalling it would recall the new one as well.
        let same = |new: &Handle| new.routing_key() == old.routing_key();
        let answer = match receipt.handle.as_ref().is_some_and(same) {
            true => Answer::Uncertain,
            false => recaller.recall(old).map_err(|source| {
                let receipt = Box::new(receipt.clone());
                Failure::new(Code::Broker, ReplaceError::Recall { receipt, source })
            })?,
        };
        if answer != Answer::InTime {
            replaced.recalled = answer;
        }
    }
    Ok(replaced)
}
