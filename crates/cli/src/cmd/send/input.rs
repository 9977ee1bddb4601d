//! From lines of text to messages.

use std::time::Instant;

use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, de, de::IgnoredAny};
use serde_json::{Map, Value as Json};

use delayline_core::{
    Message,
    codec::{AppKey, Delay, MessageId, Tolerance},
    message::{Headers, Properties, Quota, Value, When, admit, headers},
    topology::Unit,
};

use crate::cmd::send::problem::Problem;
use delayline_term::time;

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// How a line is read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Format {
    /// The body of a message.
    Lines,
    /// A message as JSON.
    Json,
}

/// What to do with a message whose time is in the past.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Past {
    /// Report an error
    #[default]
    Refuse,
    /// Send it at once
    Now,
}

/// The flags that apply to every message.
#[derive(Debug, Clone)]
pub(crate) struct Template {
    pub(crate) app: Option<AppKey>,
    pub(crate) when: Option<When>,
    pub(crate) past: Past,
    /// All input was read and checked before.
    pub(crate) checked: bool,
    pub(crate) tolerance: Tolerance,
    pub(crate) id: Option<MessageId>,
    pub(crate) quota: Quota,
    /// The unit of the set, and whether it has shortcuts.
    pub(crate) unit: (Unit, bool),
    /// Who we are to the broker.
    pub(crate) user: Option<String>,
}

impl Template {
    /// What the flag `--app` alone makes, for tests.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn of(app: AppKey) -> Self {
        Self {
            app: Some(app),
            when: None,
            past: Past::Refuse,
            checked: false,
            tolerance: Tolerance::NONE,
            id: None,
            quota: Quota::default(),
            unit: (Unit::SECOND, false),
            user: None,
        }
    }

    /// Refuses what the router would refuse, before anything is sent.
    pub(crate) fn admits(&self, message: Message) -> Result<Message, String> {
        let admitted = admit(&self.quota, &message, self.unit, Timestamp::now(), Instant::now());
        admitted.map(|_| message).map_err(|error| error.to_string())
    }

    pub(crate) fn message(&self, body: Vec<u8>) -> Result<Message, String> {
        let app = self.app.clone().ok_or("there is no app key; use --app")?;
        let when = self.when.ok_or("there is no delay; use --delay or --at")?;
        let message = Message::new(app, when, body).with_tolerance(self.tolerance);
        Ok(match self.id.clone() {
            Some(id) => message.with_id(id),
            None => message,
        })
    }
}

/// Refuses a time in the past unless it is wanted: the router would send at once.
pub(crate) fn not_past(at: Timestamp, past: Past, now: Timestamp) -> Result<(), String> {
    if past == Past::Now || at >= now {
        return Ok(());
    }
    Err(format!(
        "{} is in the past; use a later time, or --past now (in JSON: \"past\": \"now\") to send it at once",
        time::date(at)
    ))
}

/// A message as JSON. Each field is checked as soon as it is read, since only then is its
/// column known.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct JsonMessage {
    #[serde(deserialize_with = "text::<AppKey, _>")]
    app: Option<AppKey>,
    #[serde(deserialize_with = "delay")]
    delay: Option<Delay>,
    #[serde(deserialize_with = "at")]
    at: Option<Timestamp>,
    #[serde(deserialize_with = "past")]
    past: Option<Past>,
    #[serde(deserialize_with = "text::<Tolerance, _>")]
    tolerance: Option<Tolerance>,
    #[serde(deserialize_with = "text::<MessageId, _>")]
    id: Option<MessageId>,
    body: Option<String>,
    #[serde(deserialize_with = "base64")]
    body_base64: Option<Vec<u8>>,
    #[serde(deserialize_with = "table")]
    headers: Headers,
    content_type: Option<String>,
    content_encoding: Option<String>,
    #[serde(deserialize_with = "priority")]
    priority: Option<u8>,
    correlation_id: Option<String>,
    reply_to: Option<String>,
    expiration: Option<String>,
    message_id: Option<String>,
    #[serde(deserialize_with = "timestamp")]
    timestamp: Option<u64>,
    #[serde(rename = "type")]
    kind: Option<String>,
    user_id: Option<String>,
    app_id: Option<String>,
    // Other fields that `listen` and `held show` print: the history of a message, which does not matter
    // for sending it.
    schema: IgnoredAny,
    schema_version: IgnoredAny,
    routing_key: Option<IgnoredAny>,
    exchange: IgnoredAny,
    arrived: IgnoredAny,
    late_ms: IgnoredAny,
    redelivered: IgnoredAny,
    expired: IgnoredAny,
    #[serde(rename = "kind")]
    of_kind: IgnoredAny,
    reason: IgnoredAny,
    detail: IgnoredAny,
    gateway: IgnoredAny,
    own_key: IgnoredAny,
    failure: IgnoredAny,
    bytes: IgnoredAny,
    // Fields that `scheduled show` prints: the old due time, which does not matter for sending it
    // again.
    due: IgnoredAny,
    due_latest: IgnoredAny,
    state: IgnoredAny,
    handle: IgnoredAny,
    attempt: IgnoredAny,
    copies: IgnoredAny,
    unchecked: IgnoredAny,
    unreadable: bool,
    truncated: bool,
}

impl Format {
    /// The message of a line; `None` for an empty line of JSON.
    pub(crate) fn message(self, line: &[u8], template: &Template) -> Result<Option<Message>, Problem> {
        // Some editors begin a text with it, and mean nothing by it.
        let line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        let message = match self {
            Self::Lines if std::str::from_utf8(line).is_err() || line.contains(&0) => {
                let reason = "it is not UTF-8 text, as if the input were UTF-16 or binary. Convert the input, or \
                              send bytes with --file, or in `body_base64` with --jsonl";
                return Err(reason.to_owned().into());
            }
            Self::Lines => template.message(line.to_vec())?,
            Self::Json if line.iter().all(u8::is_ascii_whitespace) => return Ok(None),
            // The deserializer would also take an array, by position.
            Self::Json if line.trim_ascii_start().first() != Some(&b'{') => {
                let column = Some(line.len() - line.trim_ascii_start().len() + 1);
                return Err(Problem { column, reason: "it is not a JSON object (`{…}`)".into() });
            }
            Self::Json => serde_json::from_slice::<JsonMessage>(line)
                .map_err(|error| Problem::of_json(&error, line))?
                .into_message(template)?,
        };
        Ok(Some(template.admits(message)?))
    }
}

impl JsonMessage {
    fn into_message(self, template: &Template) -> Result<Message, String> {
        let mut template = template.clone();
        template.app = self.app.or(template.app);
        template.tolerance = self.tolerance.unwrap_or(template.tolerance);
        template.id = self.id.or(template.id);
        match (self.delay, self.at) {
            (Some(_), Some(_)) => {
                return Err("it has both `delay` and `at`; remove either".into());
            }
            (Some(delay), None) => template.when = Some(When::After(delay)),
            (None, Some(at)) => {
                if !template.checked {
                    not_past(at, self.past.unwrap_or(template.past), Timestamp::now())?;
                }
                template.when = Some(When::At(at));
            }
            (None, None) => {}
        }
        if self.unreadable {
            return Err("its headers could not be read when it was printed; it cannot be sent again".into());
        }
        if self.truncated {
            return Err("its body was cut when it was printed; print all of it (--body-bytes)".into());
        }
        let body = match (self.body, self.body_base64) {
            (Some(_), Some(_)) => {
                return Err("it has both `body` and `body_base64`; remove either".into());
            }
            (Some(text), None) => text.into_bytes(),
            (None, bytes) => bytes.unwrap_or_default(),
        };
        let mut message = template.message(body)?.with_properties(Properties {
            content_type: self.content_type,
            content_encoding: self.content_encoding,
            priority: self.priority,
            correlation_id: self.correlation_id,
            reply_to: self.reply_to,
            expiration: self.expiration,
            message_id: self.message_id,
            timestamp: self.timestamp,
            kind: self.kind,
            user_id: self.user_id,
            app_id: self.app_id,
        });
        message.headers = self.headers;
        // The broker accepts a `user_id` only from the user it names, and a message that was
        // printed may be anybody's.
        if self.routing_key.is_some() && message.properties.user_id != template.user {
            let user = message.properties.user_id.take();
            message.headers.extend(user.map(|user| (headers::USER_ID.to_owned(), user.into())));
        }
        Ok(message)
    }
}

/// A field in its JSON form; `null` counts as absent.
fn field<'de, D: Deserializer<'de>, J: Deserialize<'de>, T, E: std::fmt::Display>(
    json: D,
    read: impl FnOnce(J) -> Result<T, E>,
) -> Result<Option<T>, D::Error> {
    Option::<J>::deserialize(json)?.map(read).transpose().map_err(de::Error::custom)
}

fn text<'de, T: std::str::FromStr<Err: std::fmt::Display>, D: Deserializer<'de>>(
    json: D,
) -> Result<Option<T>, D::Error> {
    field(json, |text: String| text.parse())
}

fn delay<'de, D: Deserializer<'de>>(json: D) -> Result<Option<Delay>, D::Error> {
    field(json, |json: Json| match json {
        Json::String(text) => {
            text.parse().map_err(|error: delayline_core::codec::DelayError| error.to_string())
        }
        Json::Number(number) => {
            number.to_string().parse().map_err(|error: delayline_core::codec::DelayError| error.to_string())
        }
        other => Err(format!("`delay` is {other}; write seconds (90) or text (\"90s\")")),
    })
}

fn at<'de, D: Deserializer<'de>>(json: D) -> Result<Option<Timestamp>, D::Error> {
    field(json, |text: String| time::instant(&text))
}

fn past<'de, D: Deserializer<'de>>(json: D) -> Result<Option<Past>, D::Error> {
    field(json, |json: Json| match json.as_str() {
        Some("refuse") => Ok(Past::Refuse),
        Some("now") => Ok(Past::Now),
        _ => Err(format!(
            "`past` is {json}; write \"now\" to send a message that is in the past at once, or \"refuse\""
        )),
    })
}

fn base64<'de, D: Deserializer<'de>>(json: D) -> Result<Option<Vec<u8>>, D::Error> {
    field(json, |text: String| {
        let decoded = BASE64_STANDARD.decode(text);
        decoded.map_err(|_| "`body_base64` is not base64 (A-Z, a-z, 0-9, + and /, padded with =)")
    })
}

fn table<'de, D: Deserializer<'de>>(json: D) -> Result<Headers, D::Error> {
    let headers = field(json, |map: Map<String, Json>| {
        map.into_iter()
            .map(|(name, value)| match Value::try_from(value) {
                Ok(value) => Ok((name, value)),
                Err(number) => Err(format!("the header `{name}` is {number}, for which AMQP has no type")),
            })
            .collect::<Result<Headers, _>>()
    })?;
    headers.ok_or_else(|| de::Error::custom("`headers` is null; leave it out, or write {}"))
}

fn priority<'de, D: Deserializer<'de>>(json: D) -> Result<Option<u8>, D::Error> {
    field(json, |json: Json| {
        let number = json.as_u64().and_then(|number| number.try_into().ok());
        number.ok_or_else(|| format!("`priority` is {json}; write a whole number from 0 to 255"))
    })
}

fn timestamp<'de, D: Deserializer<'de>>(json: D) -> Result<Option<u64>, D::Error> {
    field(json, |json: Json| {
        json.as_u64().ok_or_else(|| format!("`timestamp` is {json}; write whole seconds since 1970"))
    })
}

/// Reads a line as JSON, as if the flags had said `--app app --delay 1s --past now`.
#[cfg(any(test, fuzzing))]
pub(crate) fn read_json_line(line: &[u8]) -> Result<Option<Message>, String> {
    let app = AppKey::new("app").map_err(|error| error.to_string())?;
    let delay = Delay::from_seconds(1).map_err(|error| error.to_string())?;
    let template = Template { when: Some(When::After(delay)), past: Past::Now, ..Template::of(app) };
    Format::Json.message(line, &template).map_err(|problem| problem.reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template() -> Template {
        Template {
            when: Some(When::After(Delay::from_seconds(5).unwrap())),
            user: Some("operator".into()),
            ..Template::of("billing".parse().unwrap())
        }
    }

    fn json(line: &str) -> Result<Option<Message>, Problem> {
        Format::Json.message(line.as_bytes(), &template())
    }

    #[test]
    fn a_line_overrides_the_flags() {
        let message = json(
            r#"{"app": "mail", "delay": "1m", "body": "x", "headers": {"n": 1}, "message_id": "7", "type": "t"}"#,
        )
        .unwrap()
        .unwrap();
        assert_eq!((message.app.as_str(), message.body.as_slice()), ("mail", b"x".as_slice()));
        assert_eq!(message.when, When::After(Delay::from_seconds(60).unwrap()));
        assert_eq!(message.headers["n"], Value::I64(1));
        assert_eq!(message.properties.message_id.as_deref(), Some("7"));
        assert_eq!(message.properties.kind.as_deref(), Some("t"));
    }

    #[test]
    fn what_other_commands_print_can_be_sent_again() {
        let printed = |more: &str| {
            json(&format!(
                r#"{{"late_ms": 3, "app": "mail", "redelivered": false, "expired": false, "exchange": "delay",
                    "routing_key": "mail", "arrived": "2026-01-01T00:00:00Z", "reason": "attempts", "failure": null, "detail": null, "gateway": "orders", "own_key": "x",
                    "unreadable": false, "user_id": "billing", "priority": 3, "headers": {{"n": 1}}, "bytes": 1,
                    "body_base64": "/w=="{more}}}"#
            ))
        };
        let message = printed(r#", "truncated": false"#).unwrap().unwrap();
        assert_eq!((message.app.as_str(), message.body.as_slice()), ("mail", [0xff].as_slice()));
        assert_eq!((message.properties.priority, message.properties.user_id.as_ref()), (Some(3), None));
        assert_eq!(message.headers["delayline-user-id"], "billing".into());
        // It is not ours to send what was not seen whole.
        assert!(printed(r#", "truncated": true"#).unwrap_err().reason.contains("--body-bytes"));
        assert!(json(r#"{"unreadable": true}"#).unwrap_err().reason.contains("could not be read"));
        // Our own line, and a line written by hand.
        let of = |line: &str| json(line).unwrap().unwrap().properties.user_id;
        assert_eq!(of(r#"{"routing_key": "k", "user_id": "operator"}"#).as_deref(), Some("operator"));
        assert_eq!(of(r#"{"user_id": "billing"}"#).as_deref(), Some("billing"));
    }

    #[test]
    fn flags_fill_in_what_a_line_leaves_out() {
        let message = json("{}").unwrap().unwrap();
        assert_eq!((message.app.as_str(), message.body.len()), ("billing", 0));
        assert_eq!(json(" \t").unwrap(), None);
        assert_eq!(json("\u{feff}{}").unwrap(), Some(message), "as some editors write it");
        assert_eq!(
            json(r#"{"delay": 7}"#).unwrap().unwrap().when,
            When::After(Delay::from_seconds(7).unwrap())
        );
        assert_eq!(json(r#"{"body_base64": "/w=="}"#).unwrap().unwrap().body, [0xff]);
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_line() {
        let template = template();
        let line = |text: &str| Format::Lines.message(text.as_bytes(), &template).unwrap().unwrap().body;
        assert_eq!(line("\u{feff}hello"), line("hello"));
    }

    #[test]
    fn bad_lines_say_what_is_wrong_and_where() {
        for (line, column, word) in [
            ("{", Some(1), "ends in the middle"),
            ("{\"body\": x}", Some(10), "this is not JSON"),
            ("[]", Some(1), "object"),
            ("[\"billing\"]", Some(1), "object"),
            (" \t7", Some(3), "object"),
            (r#"{"bdy": "x"}"#, Some(6), "bdy"),
            (r#"{"app": "a b"}"#, Some(13), "app key"),
            (r#"{"app": 7}"#, Some(9), "a string"),
            // The é is one character and two bytes.
            (r#"{"body": "é", "delay": "soon"}"#, Some(29), "soon"),
            (r#"{"delay": true}"#, Some(14), "true"),
            (r#"{"delay": 268435456}"#, Some(19), "268435455"),
            (r#"{"delay": -3}"#, Some(12), "negative"),
            (r#"{"delay": 1, "at": "2100-01-01"}"#, None, "both"),
            (r#"{"body": "x", "body_base64": "eA=="}"#, None, "both"),
            (r#"{"body_base64": "%"}"#, Some(19), "base64"),
            (r#"{"headers": {"n": 18446744073709551615}}"#, Some(39), "18446744073709551615"),
            (r#"{"headers": null}"#, Some(16), "leave it out"),
            (r#"{"expiration": "soon"}"#, None, "expiration"),
            (r#"{"priority": 256}"#, Some(16), "0 to 255"),
            (r#"{"timestamp": -1}"#, Some(16), "since 1970"),
            (r#"{"at": "soon"}"#, Some(13), "soon"),
            (r#"{"at": "2020-01-01T00:00Z"}"#, None, "in the past"),
            (r#"{"past": "no"}"#, Some(13), "refuse"),
        ] {
            let problem = json(line).expect_err(line);
            assert!(problem.reason.contains(word), "{line}: {problem:?}");
            assert!(!problem.reason.contains("at line"), "{line}: {problem:?}");
            assert_eq!(problem.column, column, "{line}: {problem:?}");
        }
        let long = format!(r#"{{"message_id": "{}"}}"#, "x".repeat(256));
        assert!(json(&long).unwrap_err().reason.contains("message_id"));
    }

    #[test]
    fn the_past_is_sent_at_once_only_if_that_is_meant() {
        let at = r#""at": "2020-01-01T00:00Z""#;
        let past: When = When::At("2020-01-01T00:00:00Z".parse().unwrap());
        let when = |line: &str, template: &Template| {
            Format::Json.message(line.as_bytes(), template).map(|message| message.unwrap().when)
        };
        let (refuse, now) = (template(), Template { past: Past::Now, ..template() });
        assert!(when(&format!("{{{at}}}"), &refuse).is_err());
        assert_eq!(when(&format!("{{{at}}}"), &now), Ok(past));
        assert_eq!(when(&format!(r#"{{{at}, "past": "now"}}"#), &refuse), Ok(past));
        assert!(when(&format!(r#"{{{at}, "past": "refuse"}}"#), &now).is_err());
        // A time that has passed since a file was checked is no mistake in the file.
        let checked = Template { checked: true, ..template() };
        assert_eq!(when(&format!(r#"{{{at}, "past": "refuse"}}"#), &checked), Ok(past));
        let moment = Timestamp::from_second(100).unwrap();
        assert_eq!(not_past(moment, Past::Refuse, moment), Ok(()));
        assert!(not_past(moment, Past::Refuse, Timestamp::from_second(101).unwrap()).is_err());
    }

    #[test]
    fn a_line_over_the_quota_is_a_bad_line() {
        let quota = Quota::default().with_max_message_size(2).with_max_delay("1h mail=1m".parse().unwrap());
        let template = Template { quota, ..template() };
        let refused = |format: Format, line: &str| match format.message(line.as_bytes(), &template) {
            Ok(_) => String::new(),
            Err(problem) => problem.reason,
        };
        assert_eq!(refused(Format::Lines, "ab"), "");
        assert!(refused(Format::Lines, "abc").contains("max_message_size"));
        assert!(refused(Format::Json, r#"{"delay": "2h"}"#).contains("max_delay"));
        assert!(refused(Format::Json, r#"{"app": "mail", "delay": "2m"}"#).contains("`mail`"));
        assert_eq!(refused(Format::Json, r#"{"delay": "1h"}"#), "");
    }

    #[test]
    fn without_app_or_delay_nothing_can_be_sent() {
        let none = Template { app: None, when: None, ..template() };
        assert!(none.message(vec![]).unwrap_err().contains("--app"));
        let app = Template { app: template().app, ..none };
        assert!(app.message(vec![]).unwrap_err().contains("--delay"));
    }
}
