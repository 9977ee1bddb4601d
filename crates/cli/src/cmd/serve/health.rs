//! `delayline serve check`

use owo_colors::OwoColorize;

use delayline_settings::WebSettings;
use delayline_watch::web::{HealthError, ask};

use delayline_term::{Code, Failure, Output, text::readable};

/// Asks the daemon that runs whether it is ready.
pub(crate) fn run(settings: &WebSettings, output: &mut Output) -> Result<Code, Failure> {
    let health = ask(settings).map_err(|error| match error {
        HealthError::NoAddress(_) => Failure::usage(error),
        error => Failure::new(Code::Broker, error),
    })?;
    let code = if health.ready { Code::Done } else { Code::Problem };
    if output.json {
        output.json(&health)?;
        return Ok(code);
    }
    let word = match health.ready {
        true => "ready".green().bold().to_string(),
        false => "not ready".red().bold().to_string(),
    };
    output.line(format!("{word} at {}", health.address))?;
    for check in health.checks.iter().flatten() {
        let sign = if check.ok { "✓".green().to_string() } else { "✗".red().to_string() };
        output.line(format!("{sign} {}: {}", readable(&check.name), readable(&check.reason)))?;
    }
    if health.checks.is_none() && !health.ready {
        output.line("it shows the reason only to holders of its token (web_token_file)")?;
    }
    Ok(code)
}
