//! Where schedules are kept, and what exists there.

use delayline_amqp::Session;
use delayline_broker::{ManagementApi, escape};
use delayline_core::{
    codec::AppKey,
    topology::{Names, Topology},
};
use delayline_settings::Settings;

use crate::error::{ACCESS_REFUSED, ScheduleError, doing};

/// The exchange and the stream of the schedules of an application, or of the platform team.
pub(crate) fn place(names: &Names, owner: Option<&AppKey>) -> String {
    owner.map_or_else(|| names.schedules(), |app| names.schedules_of(app))
}

/// How many bytes the stream of this owner keeps.
pub(crate) const fn keeps(owner: Option<&AppKey>) -> u64 {
    match owner {
        Some(_) => Topology::SCHEDULES_OF_BYTES,
        None => Topology::SCHEDULES_BYTES,
    }
}

/// Whether the stream exists, and whether the set does, as the management API reports it. A broker logs each
/// question about a missing object as an error if it is asked over AMQP.
pub(crate) fn asked(
    settings: &Settings,
    topology: &Topology,
    owner: Option<&AppKey>,
) -> Result<Option<(bool, bool)>, ScheduleError> {
    let Some(management) = &settings.management else { return Ok(None) };
    let (api, vhost, names) = (ManagementApi::new(management)?, &settings.broker.vhost, topology.names());
    match (api.queue(vhost, &place(names, owner)), api.exchange(vhost, &names.entry())) {
        (Ok(stream), Ok(entry)) => Ok(Some((stream.is_some(), entry.is_some()))),
        _ => Ok(None),
    }
}

/// The applications that manage their schedules themselves, which only the management API reports.
pub(crate) fn owners(settings: &Settings, topology: &Topology) -> Result<Vec<AppKey>, ScheduleError> {
    let Some(management) = &settings.management else { return Ok(Vec::new()) };
    let names = topology.names();
    let pattern = format!("^{}", escape(&names.schedules_of_prefix()));
    let found = ManagementApi::new(management)?.queue_counts(&settings.broker.vhost, Some(&pattern))?;
    Ok(found.iter().filter_map(|queue| AppKey::new(names.app_of_schedules(&queue.name)?).ok()).collect())
}

pub(crate) fn session(settings: &Settings) -> Result<Session, ScheduleError> {
    Session::open_for(&settings.broker, "schedules").map_err(ScheduleError::Connection)
}

/// Whether messages of an application can be recalled.
pub(crate) fn is_recallable(
    settings: &Settings,
    topology: &Topology,
    app: &AppKey,
    session: &mut Session,
) -> Result<bool, ScheduleError> {
    let exchange = topology.names().recall(app);
    if let Some(management) = &settings.management
        && let Ok(found) = ManagementApi::new(management)?.exchange(&settings.broker.vhost, &exchange)
    {
        return Ok(found.is_some());
    }
    match session.exchange_exists(&exchange) {
        // A user that may not recall messages of the application. Some versions tell it nothing.
        Err(error) if error.code() == Some(ACCESS_REFUSED) => Ok(false),
        found => found.map_err(doing("examining the application")),
    }
}
