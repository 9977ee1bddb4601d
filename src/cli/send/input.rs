//! From lines of text to messages.

use std::io::{self, BufRead};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::Deserialize;
use serde_json::{Map, Value as Json};

use crate::{
    Message,
    codec::{AppKey, Delay, Tolerance},
    message::{Headers, Properties, Value, When},
};

use super::time;

/// What a line is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Format {
    /// The body of a message.
    Lines,
    /// A message as JSON.
    Json,
}

/// What the flags say about every message.
#[derive(Debug, Clone)]
pub(super) struct Template {
    pub(super) app: Option<AppKey>,
    pub(super) when: Option<When>,
    pub(super) tolerance: Tolerance,
}

impl Template {
    pub(super) fn message(&self, body: Vec<u8>) -> Result<Message, String> {
        let app = self.app.clone().ok_or("there is no app key; use --app")?;
        let when = self.when.ok_or("there is no delay; use --delay or --at")?;
        Ok(Message::new(app, when, body).with_tolerance(self.tolerance))
    }
}

/// A message as JSON.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct JsonMessage {
    app: Option<String>,
    delay: Option<Json>,
    at: Option<String>,
    tolerance: Option<String>,
    body: Option<String>,
    body_base64: Option<String>,
    headers: Map<String, Json>,
    content_type: Option<String>,
    content_encoding: Option<String>,
    priority: Option<u8>,
    correlation_id: Option<String>,
    reply_to: Option<String>,
    expiration: Option<String>,
    message_id: Option<String>,
    timestamp: Option<u64>,
    #[serde(rename = "type")]
    kind: Option<String>,
    user_id: Option<String>,
    app_id: Option<String>,
}

impl Format {
    /// The message of a line; `None` for an empty line of JSON.
    pub(super) fn message(self, line: &[u8], template: &Template) -> Result<Option<Message>, String> {
        match self {
            Self::Lines => template.message(line.to_vec()).map(Some),
            Self::Json if line.iter().all(u8::is_ascii_whitespace) => Ok(None),
            // The deserializer would also take an array, by position.
            Self::Json if line.trim_ascii_start().first() != Some(&b'{') => {
                Err("it is not a JSON object (`{…}`)".into())
            }
            Self::Json => {
                let json: JsonMessage = serde_json::from_slice(line).map_err(|error| error.to_string())?;
                json.into_message(template).map(Some)
            }
        }
    }
}

impl JsonMessage {
    fn into_message(self, template: &Template) -> Result<Message, String> {
        let mut template = template.clone();
        if let Some(app) = self.app {
            template.app = Some(app.parse().map_err(|error: crate::codec::AppKeyError| error.to_string())?);
        }
        if let Some(tolerance) = self.tolerance {
            template.tolerance =
                tolerance.parse().map_err(|error: crate::codec::ToleranceError| error.to_string())?;
        }
        match (self.delay, self.at) {
            (Some(_), Some(_)) => {
                return Err("it has both `delay` and `at`; keep one of them".into());
            }
            (Some(delay), None) => template.when = Some(When::After(delay_of(&delay)?)),
            (None, Some(at)) => template.when = Some(When::At(time::instant(&at)?)),
            (None, None) => {}
        }
        let body = match (self.body, self.body_base64) {
            (Some(_), Some(_)) => {
                return Err("it has both `body` and `body_base64`; keep one of them".into());
            }
            (Some(text), None) => text.into_bytes(),
            (None, Some(base64)) => BASE64_STANDARD
                .decode(base64)
                .map_err(|error| format!("`body_base64` is not base64: {error}"))?,
            (None, None) => Vec::new(),
        };
        let headers: Headers = self
            .headers
            .into_iter()
            .map(|(name, value)| match Value::try_from(value) {
                Ok(value) => Ok((name, value)),
                Err(number) => Err(format!("the header `{name}` is {number}, which AMQP has no type for")),
            })
            .collect::<Result<_, _>>()?;
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
        message.headers = headers;
        // What the router would refuse is refused here, with the line's number.
        crate::message::check(&message).map_err(|error| error.to_string())?;
        Ok(message)
    }
}

fn delay_of(json: &Json) -> Result<Delay, String> {
    let text = match json {
        Json::String(text) => text.clone(),
        Json::Number(number) => format!("{number}s"),
        other => {
            return Err(format!("`delay` is {other}; write seconds (90) or a text (\"90s\")"));
        }
    };
    text.parse().map_err(|error: crate::codec::DelayError| error.to_string())
}

/// Lines with their numbers from 1, without their endings, as bytes: a body need
/// not be UTF-8.
pub(super) fn lines(reader: impl BufRead) -> impl Iterator<Item = (u64, io::Result<Vec<u8>>)> {
    let mut failed = false;
    let lines = reader.split(b'\n').take_while(move |line| {
        // After an error there is nothing to go on with, only the error again.
        let go_on = !failed;
        failed |= line.is_err();
        go_on
    });
    (1..).zip(lines.map(|line| {
        line.map(|mut line| {
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            line
        })
    }))
}

/// Reads a line as JSON, as if the flags had said `--app app --delay 1s`.
#[cfg(all(feature = "cli", any(test, fuzzing)))]
pub(crate) fn read_json_line(line: &[u8]) -> Result<Option<Message>, String> {
    let app = AppKey::new("app").map_err(|error| error.to_string())?;
    let delay = Delay::from_seconds(1).map_err(|error| error.to_string())?;
    let template = Template { app: Some(app), when: Some(When::After(delay)), tolerance: Tolerance::NONE };
    Format::Json.message(line, &template)
}

/// Reads everything without sending anything. Returns the number of messages.
pub(super) fn check(reader: impl BufRead, format: Format, template: &Template) -> Result<u64, String> {
    let mut messages = 0;
    for (number, line) in lines(reader) {
        let line = line.map_err(|error| error.to_string())?;
        match format.message(&line, template) {
            Ok(found) => messages += u64::from(found.is_some()),
            Err(problem) => return Err(format!("line {number}: {problem}")),
        }
    }
    Ok(messages)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template() -> Template {
        Template {
            app: Some(AppKey::new("billing").unwrap()),
            when: Some(When::After(Delay::from_seconds(5).unwrap())),
            tolerance: Tolerance::NONE,
        }
    }

    fn json(line: &str) -> Result<Option<Message>, String> {
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
    fn flags_fill_in_what_a_line_leaves_out() {
        let message = json("{}").unwrap().unwrap();
        assert_eq!((message.app.as_str(), message.body.len()), ("billing", 0));
        assert_eq!(json(" \t").unwrap(), None);
        assert_eq!(
            json(r#"{"delay": 7}"#).unwrap().unwrap().when,
            When::After(Delay::from_seconds(7).unwrap())
        );
        assert_eq!(json(r#"{"body_base64": "/w=="}"#).unwrap().unwrap().body, [0xff]);
    }

    #[test]
    fn bad_lines_say_what_is_wrong() {
        for (line, word) in [
            ("{", "EOF"),
            ("[]", "object"),
            ("[\"billing\"]", "object"),
            ("7", "object"),
            (r#"{"bdy": "x"}"#, "bdy"),
            (r#"{"app": "a b"}"#, "app key"),
            (r#"{"delay": "soon"}"#, "soon"),
            (r#"{"delay": true}"#, "true"),
            (r#"{"delay": 268435456}"#, "268435455"),
            (r#"{"delay": 1, "at": "18:00"}"#, "both"),
            (r#"{"body": "x", "body_base64": "eA=="}"#, "both"),
            (r#"{"body_base64": "%"}"#, "base64"),
            (r#"{"headers": {"n": 18446744073709551615}}"#, "18446744073709551615"),
            (r#"{"expiration": "soon"}"#, "expiration"),
            (r#"{"priority": 256}"#, "256"),
            (r#"{"at": "soon"}"#, "soon"),
        ] {
            let error = json(line).expect_err(line);
            assert!(error.contains(word), "{line}: {error}");
        }
        let long = format!(r#"{{"message_id": "{}"}}"#, "x".repeat(256));
        assert!(json(&long).unwrap_err().contains("message_id"));
    }

    #[test]
    fn a_body_line_may_be_any_bytes() {
        let text = b"one\r\n\xff\n\nlast";
        let bodies: Vec<_> = lines(&text[..])
            .map(|(number, line)| {
                (number, Format::Lines.message(&line.unwrap(), &template()).unwrap().unwrap().body)
            })
            .collect();
        let expected: [(u64, &[u8]); 4] = [(1, b"one"), (2, b"\xff"), (3, b""), (4, b"last")];
        assert_eq!(bodies, expected.map(|(number, body)| (number, body.to_vec())));
    }

    #[test]
    fn without_app_or_delay_nothing_can_be_sent() {
        let none = Template { app: None, when: None, tolerance: Tolerance::NONE };
        assert!(none.message(vec![]).unwrap_err().contains("--app"));
        let app = Template { app: template().app, ..none };
        assert!(app.message(vec![]).unwrap_err().contains("--delay"));
        assert_eq!(
            check(&b"{}\n{\"app\": 1}\n"[..], Format::Json, &template()).unwrap_err().split(':').next(),
            Some("line 2")
        );
    }
}
