//! `/api/scheduled/`: questions about scheduled messages, from the index. Read-only.

use std::{ops::Range, sync::Arc};

use jiff::{Timestamp, tz::TimeZone};
use serde::Serialize;
use serde_json::{Value as Json, json};
use url::form_urlencoded;

use delayline_admin::{CountBy, HeaderFilter, Index, ScheduleFilter, ShowError, Unindexed};
use delayline_broker::Survey;
use delayline_core::codec::AppKey;
use delayline_settings::Settings;

use delayline_term::output::Marked;

/// The most messages of an answer, and how many there are by default.
const MOST: usize = 10_000;
const LIMIT: usize = 50;

/// How much of a body is shown by default, in bytes.
const BODY: usize = 1_000;

/// A status of HTTP, and why there is no answer.
struct Refusal(u16, String);

impl Refusal {
    fn wrong(reason: impl ToString) -> Self {
        Self(400, reason.to_string())
    }
}

impl From<Unindexed> for Refusal {
    fn from(error: Unindexed) -> Self {
        let status = match error {
            Unindexed::NoJournal(_) => 404,
            Unindexed::Past | Unindexed::Header(_) => 400,
            _ => 503,
        };
        Self(status, error.to_string())
    }
}

impl From<ShowError> for Refusal {
    fn from(error: ShowError) -> Self {
        match error {
            ShowError::Unindexed(error) => error.into(),
            error => Self(503, error.to_string()),
        }
    }
}

/// The parameters of a question.
#[derive(Default)]
struct Asked {
    app: Option<AppKey>,
    filter: ScheduleFilter,
    skip: usize,
    limit: Option<usize>,
    by: Option<String>,
    zone: Option<TimeZone>,
    body_bytes: Option<usize>,
}

impl Asked {
    fn read(query: &str, settings: &Settings) -> Result<Self, Refusal> {
        let mut asked = Self::default();
        let (vhost, set) = (&settings.broker.vhost, settings.topology.set.as_str());
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let wrong = |error: &dyn ToString| Refusal::wrong(format!("{name}: {}", error.to_string()));
            let number = || value.parse::<usize>().map_err(|error| wrong(&error));
            let time = || value.parse::<Timestamp>().map_err(|error| wrong(&error));
            match &*name {
                "app" => asked.app = Some(AppKey::new(value.clone()).map_err(|error| wrong(&error))?),
                "due_after" => asked.filter.due_after = Some(time()?),
                "due_before" => asked.filter.due_before = Some(time()?),
                "id" => asked.filter.id = Some(value.parse().map_err(|error| wrong(&error))?),
                "header" => {
                    let header: Result<HeaderFilter, _> = value.parse();
                    asked.filter.headers.push(header.map_err(|error| wrong(&error))?);
                }
                "place" => asked.filter.place = Some(number()? as u64),
                "skip" => asked.skip = number()?,
                "limit" => asked.limit = Some(number()?),
                "body_bytes" => asked.body_bytes = Some(number()?),
                "by" => asked.by = Some(value.into_owned()),
                "zone" => asked.zone = Some(TimeZone::get(&value).map_err(|error| wrong(&error))?),
                "vhost" if value == *vhost => {}
                "set" if value == *set => {}
                "vhost" | "set" => {
                    return Err(Refusal::wrong(format!("this daemon is for set `{set}` of vhost `{vhost}`")));
                }
                _ => return Err(Refusal::wrong(format!("there is no parameter `{}`", name.escape_debug()))),
            }
        }
        Ok(asked)
    }

    fn one(&self) -> Result<&AppKey, Refusal> {
        self.app.as_ref().ok_or_else(|| Refusal::wrong("name the application with `app`"))
    }

    fn range(&self) -> Result<Range<usize>, Refusal> {
        match self.limit.unwrap_or(LIMIT) {
            limit if limit <= MOST => Ok(self.skip..self.skip.saturating_add(limit)),
            _ => Err(Refusal::wrong(format!("limit: {MOST} at most"))),
        }
    }
}

/// The queues of the set; `None` if they are unknown.
pub(super) fn queues(survey: &Survey) -> Option<Vec<String>> {
    let reading = survey.reading()?;
    let counts = reading.counts.as_ref().ok()?;
    Some(counts.queues.iter().map(|queue| queue.name.clone()).collect())
}

/// Answers a question. A visitor with the token of an application sees only that application.
pub(super) fn answer(
    (index, settings): (&Arc<Index>, &Settings),
    visitor: Option<&AppKey>,
    path: &str,
    query: &str,
) -> (u16, Json) {
    match answered(index, settings, visitor, path, query) {
        Ok(answer) => (200, answer),
        Err(Refusal(status, error)) => (status, json!({ "error": error })),
    }
}

fn answered(
    index: &Index,
    settings: &Settings,
    visitor: Option<&AppKey>,
    path: &str,
    query: &str,
) -> Result<Json, Refusal> {
    let mut asked = Asked::read(query, settings)?;
    match (visitor, &asked.app) {
        (Some(own), Some(app)) if own != app => {
            return Err(Refusal(403, format!("this token is for the application `{own}` only")));
        }
        (Some(own), _) => asked.app = Some(own.clone()),
        (None, _) => {}
    }
    match path {
        "list" => marked("scheduled-list", &index.list(asked.one()?, &asked.filter, asked.range()?)?),
        "show" => {
            let bytes = asked.body_bytes.unwrap_or(BODY);
            let found = index.show(asked.one()?, &asked.filter, asked.range()?, bytes)?;
            let found: Result<Vec<_>, _> = found.iter().map(|it| marked("scheduled-show", it)).collect();
            Ok(json!({ "messages": found? }))
        }
        "count" => {
            let by = match asked.by.as_deref() {
                None | Some("hour") => CountBy::Hour,
                Some("minute") => CountBy::Minute,
                Some("day") => CountBy::Day,
                Some("app") => {
                    return marked("scheduled-count", &index.count_apps(asked.app.as_ref(), &asked.filter)?);
                }
                Some(_) => return Err(Refusal::wrong("by: use minute, hour, day or app")),
            };
            let zone = asked.zone.clone().unwrap_or(TimeZone::UTC);
            marked("scheduled-count", &index.count(asked.one()?, &asked.filter, (by, zone))?)
        }
        _ => Err(Refusal(404, "ask for /api/scheduled/list, /count or /show".into())),
    }
}

fn marked(schema: &str, answer: &impl Serialize) -> Result<Json, Refusal> {
    serde_json::to_value(Marked::new(schema, answer)).map_err(|error| Refusal(500, error.to_string()))
}
