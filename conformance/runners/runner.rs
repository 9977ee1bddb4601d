//! Answers conformance cases with this library: one JSON object a line in, one a line out.
//!
//!     cargo build --package delayline-bench --example conformance_runner
//!     delayline-bench conformance target/debug/examples/conformance_runner

use std::{
    error::Error,
    io::{BufRead, stdin},
    time::Duration,
};

use delayline_core::{
    codec::{AppKey, Delay, RoutingKey},
    message::Headers,
    retry::Failure,
    topology::{Names, SetName},
};
use serde_json::{Value, json};

pub(crate) fn answer(question: &Value) -> Result<Value, Box<dyn Error>> {
    let text = |name: &str| question[name].as_str().ok_or("not a text");
    let names = Names::new(SetName::default());
    let key = || -> Result<RoutingKey, Box<dyn Error>> {
        let seconds = question["seconds"].as_f64().ok_or("the delay is not a number")?;
        let delay = Delay::at_least(Duration::try_from_secs_f64(seconds)?)?;
        Ok(RoutingKey::new(delay, AppKey::new(text("app")?)?))
    };
    Ok(match text("question")? {
        "key" => json!({ "key": key()?.encode() }),
        "recall" => {
            let key = key()?.with_id(text("id")?.parse()?)?;
            let (exchange, queue) = (names.recall(&key.app), names.recalled(&key.app));
            json!({ "key": key.encode(), "exchange": exchange, "queue": queue })
        }
        "retry" => {
            let failure = Failure::read(&Headers::new(), &names.retry(), text("key")?, &names, 0)?;
            json!({ "app": failure.app.as_str() })
        }
        "decode" => {
            let key: RoutingKey = text("key")?.parse()?;
            json!({ "seconds": key.delay.seconds(), "app": key.app.as_str() })
        }
        _ => json!({ "pattern": RoutingKey::binding_pattern(&AppKey::new(text("app")?)?) }),
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    for line in stdin().lock().lines() {
        let said = answer(&serde_json::from_str(&line?)?);
        println!("{}", said.unwrap_or_else(|error| json!({ "error": error.to_string() })));
    }
    Ok(())
}
