//! A picture before anything was seen.

use jiff::Timestamp;

use delayline_core::{codec, topology::Topology};
use delayline_settings::Settings;

use super::{BrokerView, Level, Picture, Rates, SetView, Verdict};

/// A picture before anything was seen.
pub(super) fn nothing(settings: &Settings, topology: &Topology) -> Picture {
    let (names, unit) = (topology.names(), topology.settings().unit);
    let level = |level: codec::Level| Level {
        level: level.number(),
        queue: names.level_queue(level),
        wait_ms: u64::try_from(unit.wait(level).as_millis()).unwrap_or(u64::MAX),
        ready: None,
        handing_on: None,
        open: None,
        stuck: None,
        stuck_since: None,
    };
    Picture {
        at: Timestamp::now(),
        version: env!("CARGO_PKG_VERSION").into(),
        set: settings.topology.set.to_string(),
        vhost: settings.broker.vhost.clone(),
        unit_ms: unit.millis().into(),
        broker: BrokerView {
            address: settings.broker.to_string(),
            problem: Some("it has not been asked yet".into()),
            ..BrokerView::default()
        },
        verified: SetView::default(),
        counted: None,
        levels: codec::Level::all().rev().map(level).collect(),
        waiting: None,
        handing_on: None,
        open: None,
        stuck: None,
        rates: Rates::default(),
        forecast: Vec::new(),
        unroutable: None,
        unroutable_last_minute: None,
        unroutable_oldest: None,
        parked: None,
        parked_last_minute: None,
        parked_oldest: None,
        retry: None,
        retries: None,
        canary: None,
        checkup: None,
        apps: None,
        unchecked: Vec::new(),
        landings: None,
        recalls: None,
        gateways: None,
        schedules: None,
        read: None,
        layouts: Vec::new(),
        verdict: Verdict::default(),
    }
}
