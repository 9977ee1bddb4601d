//! Sending a message in the place of what waits with its id.

use delayline_admin::{self as admin, ScheduleFilter, ScheduledMessage};
use delayline_core::{
    Message,
    codec::{AppKey, MessageId},
    message::Handle,
    topology::Topology,
};
use delayline_settings::Settings;

use crate::{
    Code, Failure, Output,
    journal::reading,
    output::{aside, grouped},
    replace::replace,
    scheduled::cut_off,
};

use super::report::{Report, Sent};

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
    let found = reading(output, |stop, at| {
        admin::list_scheduled(settings, &topology, app, &filter, AT_ONCE, stop, at)
    })?;
    if found.journal.interrupted {
        return Ok(Err(Code::Interrupted));
    }
    // What was recalled is left alone: its due time could be wrong, and the answer uncertain.
    if let Some(reason) = found.unchecked.first() {
        let code = if settings.management.is_some() { Code::Broker } else { Code::Usage };
        let text = format!("nothing was done, since this cannot be seen: {reason}. Name a HANDLE instead");
        return Err(Failure::new(code, text));
    }
    if found.more > 0 {
        return Err(Failure::usage(format!(
            "over {} messages wait with the id `{id}`, and nothing was done; recall them first (delayline recall)",
            grouped(AT_ONCE as u64)
        )));
    }
    if let Some(what) = cut_off(&found.journal) {
        aside(format!(
            "the journal no longer has {what}; any of them that wait with this id are not replaced"
        ));
    }
    // Those that do not say when they are due may wait as well.
    let parsed = |it: &ScheduledMessage| it.handle.parse().ok();
    Ok(Ok(found.messages.iter().filter_map(parsed).collect()))
}

/// Sends a message in the place of the one with this handle, unless it is seen that the old one
/// was recalled: another message may wait in its place.
pub(super) fn send_for_handle(
    message: Message,
    old: &Handle,
    settings: &Settings,
) -> Result<Report, Failure> {
    match admin::is_recall_bound(settings, &Topology::new(settings.topology.clone()), old) {
        Ok(true) => Err(Failure::usage(format!(
            "what it is to replace, {old}, was recalled before, and nothing was sent. Name the handle of the \
             message that waits in its place, or send it without --replace"
        ))),
        Ok(false) => send_instead(message, std::slice::from_ref(old), settings),
        Err(error) => {
            aside(format!(
                "whether what it is to replace was recalled before is not known: {error}; if another message \
                 took its place, both will be delivered"
            ));
            send_instead(message, std::slice::from_ref(old), settings)
        }
    }
}

/// Sends a message, and recalls these once it is confirmed.
pub(super) fn send_instead(message: Message, old: &[Handle], settings: &Settings) -> Result<Report, Failure> {
    let replaced = replace(old, message, settings)?;
    let seconds = replaced.took.as_secs_f64();
    Ok(Report {
        confirmed: 1,
        seconds,
        per_second: seconds.recip(),
        message: Some(Sent::new(&replaced.receipt, settings)),
        replaced: Some(if old.is_empty() { NOTHING } else { replaced.answer() }),
        left: replaced.left,
        ..Report::default()
    })
}
