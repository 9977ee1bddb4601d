//! Sending a message in place of the waiting messages with its id.

use jiff::Timestamp;

use delayline_admin::{self as admin, ScheduleFilter};
use delayline_core::{
    Message,
    codec::{AppKey, MessageId},
    message::Handle,
    topology::Topology,
};
use delayline_settings::Settings;

use crate::{cmd::scheduled::cut_off, cmd::scheduled::journal::reading, cmd::scheduled::replace::replace};
use delayline_term::{Code, Failure, Output, output::aside, output::grouped};

use super::report::{Report, Sent};

/// The most messages with one id that wait and are replaced.
const AT_ONCE: usize = 1_000;

/// The result if nothing waited.
pub(crate) const NOTHING: &str = "nothing";

/// The waiting messages with this id in an application's journal; or the failed search.
pub(crate) fn waiting(
    app: &AppKey,
    id: &MessageId,
    settings: &Settings,
    output: &Output,
) -> Result<Result<Vec<Handle>, Code>, Failure> {
    let topology = Topology::new(settings.topology.clone());
    let filter = ScheduleFilter::default().with_id(Some(id.clone())).only_recalled(false);
    let found = reading(output, |stop, at| {
        admin::list_scheduled(settings, &topology, app, &filter, 0..AT_ONCE, stop, at)
    })?;
    if found.journal.interrupted {
        return Ok(Err(Code::Interrupted));
    }
    // Recalled messages are left alone: their due times could be wrong, and the answer uncertain.
    if let Some(reason) = found.unchecked.first() {
        let code = if settings.management.is_some() { Code::Broker } else { Code::Usage };
        let text = format!("nothing was done, since this cannot be checked: {reason}. Pass a HANDLE instead");
        return Err(Failure::new(code, text));
    }
    if found.more > 0 {
        return Err(Failure::usage(format!(
            "nothing was done: over {} messages wait with the id `{id}`; recall them first (`{}`)",
            grouped(AT_ONCE as u64),
            settings.command(&["scheduled", "recall", "--app", app.as_str(), "--id", id.as_str()])
        )));
    }
    if let Some(what) = cut_off(&found.journal) {
        aside(format!(
            "the journal no longer has {what}; any of them that wait with this id are not replaced"
        ));
    }
    let now = Timestamp::now();
    Ok(Ok(found.messages.iter().filter_map(|it| it.recallable(now)).collect()))
}

/// Sends a message in place of the message with this handle, unless the old message was recalled:
/// another message may wait in its place.
pub(crate) fn send_for_handle(
    message: Message,
    old: &Handle,
    settings: &Settings,
) -> Result<Report, Failure> {
    match admin::is_recall_bound(settings, &Topology::new(settings.topology.clone()), old) {
        Ok(true) => Err(Failure::usage(format!(
            "nothing was sent: the message to replace, {old}, was recalled before. Pass the handle of the \
             message that waits in its place, or send it without --replace"
        ))),
        Ok(false) => send_instead(message, std::slice::from_ref(old), settings),
        Err(error) => {
            aside(format!(
                "it is unknown whether the message to replace was recalled before: {error}; if another \
                 message took its place, both will be delivered"
            ));
            send_instead(message, std::slice::from_ref(old), settings)
        }
    }
}

/// Sends a message, and recalls these once it is confirmed.
pub(crate) fn send_instead(message: Message, old: &[Handle], settings: &Settings) -> Result<Report, Failure> {
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
