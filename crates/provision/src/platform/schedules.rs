//! `[[schedules]]` of a platform file.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use delayline_core::codec::{AppKey, Delay};
use delayline_schedules::{Missed, ScheduleName, Spec, Timing};
use jiff::Timestamp;
use serde::Deserialize;

use super::{
    PlatformSet,
    file::{PlatformError, wrong},
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: String,
    set: Option<String>,
    app: String,
    cron: Option<String>,
    zone: Option<String>,
    every: Option<String>,
    start: Option<Timestamp>,
    end: Option<Timestamp>,
    jitter: Option<String>,
    missed: Option<Missed>,
    missed_within: Option<String>,
    ahead: Option<String>,
    content_type: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    body: Option<String>,
    body_file: Option<PathBuf>,
}

/// Adds the schedules of a file to its sets. Files with bodies are relative to `directory`.
pub(super) fn read(
    tables: Vec<toml::Table>,
    sets: &mut [PlatformSet],
    directory: Option<&Path>,
) -> Result<(), PlatformError> {
    for (number, table) in (1_u64..).zip(tables) {
        let place = match table.get("name").and_then(toml::Value::as_str) {
            Some(name) => format!("[schedules]] name = {name:?}"),
            None => format!("[schedules]] number {number}"),
        };
        let wrong = |error: &dyn ToString| wrong(&place, error);
        let written: Written = table.try_into().map_err(|error: toml::de::Error| wrong(&error.message()))?;
        let found = match &written.set {
            Some(name) => sets.iter_mut().find(|it| it.topology.settings().set.as_str() == name),
            None if sets.len() > 1 => return Err(wrong(&"this file has several sets; name one with `set`")),
            None => sets.first_mut(),
        };
        let set = found.ok_or_else(|| wrong(&"this file has no such set"))?;
        let name: ScheduleName = written.name.parse().map_err(|error| wrong(&error))?;
        if name.owner().is_some() {
            return Err(wrong(
                &"an application manages such a schedule itself (`schedules = true`); leave `APP/` out",
            ));
        }
        if set.schedules.iter().any(|(other, _)| *other == name) {
            return Err(wrong(&"this file has another schedule of this name"));
        }
        let spec = spec(written, directory).map_err(|reason| wrong(&reason))?;
        set.topology = set.topology.clone().with_schedules();
        set.schedules.push((name, spec));
    }
    Ok(())
}

fn spec(written: Written, directory: Option<&Path>) -> Result<Spec, String> {
    let delay = |text: Option<String>| {
        text.map(|text| text.parse::<Delay>()).transpose().map_err(|error| error.to_string())
    };
    let text = |error: &dyn ToString| error.to_string();
    let timing = Timing::new(written.cron, delay(written.every)?, written.zone).map_err(|it| text(&it))?;
    let app = AppKey::new(written.app).map_err(|error| text(&error))?;
    let mut spec = Spec::new(app, timing);
    (spec.start, spec.end, spec.content_type) = (written.start, written.end, written.content_type);
    spec.jitter = delay(written.jitter)?.unwrap_or(spec.jitter);
    spec.missed = written.missed.unwrap_or(spec.missed);
    spec.missed_within = delay(written.missed_within)?.unwrap_or(spec.missed_within);
    spec.ahead = delay(written.ahead)?.unwrap_or(spec.ahead);
    spec.headers = written.headers;
    spec.body = match (written.body, written.body_file, directory) {
        (Some(_), Some(_), _) => return Err("`body` and `body_file` exclude each other".into()),
        (Some(body), None, _) => body.into_bytes(),
        (None, Some(file), Some(directory)) => {
            let file = directory.join(file);
            fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?
        }
        (None, Some(_), None) => return Err("`body_file` needs a platform file on disk".into()),
        (None, None, _) => Vec::new(),
    };
    spec.check().map_err(|error| text(&error))?;
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::Platform;
    use delayline_core::topology::TopologySettings;

    fn parse(text: &str) -> Result<Platform, String> {
        Platform::parse(text, &TopologySettings::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_schedule_is_as_it_is_written() {
        let platform = parse(
            r#"
            [sets.delay]

            [[schedules]]
            name = "newsletter"
            app = "billing"
            cron = "0 8 * * MON-FRI"
            zone = "Europe/Berlin"
            body = "{}"
            content_type = "application/json"
            headers = { kind = "news" }

            [[schedules]]
            name = "heartbeat"
            app = "billing"
            every = "15m"
            start = "2026-01-01T00:00:00Z"
            missed = "skip"
            ahead = "2h"
            "#,
        )
        .unwrap();
        let set = &platform.sets[0];
        assert!(set.topology.has_schedules());
        let [(first, news), (second, beat)] = &set.schedules[..] else { panic!("{:?}", set.schedules) };
        assert_eq!((first.as_str(), second.as_str()), ("newsletter", "heartbeat"));
        assert_eq!(news.timing.to_string(), "0 8 * * MON-FRI (Europe/Berlin)");
        assert_eq!((news.body.as_slice(), news.headers["kind"].as_str()), (&b"{}"[..], "news"));
        assert_eq!((beat.missed, beat.ahead.seconds(), beat.start.is_some()), (Missed::Skip, 7_200, true));
        assert!(!parse("[sets.delay]").unwrap().sets[0].topology.has_schedules());
    }

    #[test]
    fn an_application_manages_its_own_schedules() {
        let own = "[sets.a]\n[[schedules]]\nname = \"billing/x\"\napp = \"billing\"\nevery = '1m'";
        assert!(parse(own).unwrap_err().contains("manages such a schedule itself"));
    }

    #[test]
    fn faults_are_named_with_their_schedule() {
        let fault = |schedule: &str| {
            let text = format!("[sets.a]\n[sets.b]\n[[schedules]]\nname = \"x\"\napp = \"y\"\n{schedule}");
            parse(&text).unwrap_err()
        };
        for (schedule, reason) in [
            ("every = '1m'", "several sets"),
            ("set = 'c'\nevery = '1m'", "no such set"),
            ("set = 'a'", "either a cron expression"),
            ("set = 'a'\nevery = '1s'", "shortest interval is 10s"),
            ("set = 'a'\ncron = '0 25 * * *'", "hour `25`"),
            ("set = 'a'\nevery = '1m'\nbody = ''\nbody_file = 'z'", "exclude each other"),
            ("set = 'a'\nevery = '1m'\nbodi = ''", "bodi"),
        ] {
            let fault = fault(schedule);
            assert!(fault.contains("[[schedules]] name = \"x\"]") && fault.contains(reason), "{fault}");
        }
    }
}
