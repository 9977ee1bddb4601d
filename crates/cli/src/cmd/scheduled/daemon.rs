//! Asking a daemon's index for scheduled messages, instead of reading a whole journal.

use std::{
    ops::Range,
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use serde::de::DeserializeOwned;
use url::Url;

use delayline_admin::{AdminError, ScheduleList};
use delayline_core::{codec::AppKey, message::Handle};
use delayline_settings::{Settings, WebSettings};
use delayline_watch::web::ask_for;

use delayline_term::{Failure, Output, output::aside, text::readable, time};

use super::{journal::reading, search::Filter};

/// From when on it is worth a hint that a daemon would have been faster.
const SLOW: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
pub(super) struct Daemon {
    /// Ask the daemon (`delayline serve`) there first [default: serve_url, or web_listen if it is set]
    #[arg(long, value_name = "URL", value_parser = url)]
    serve_url: Option<Url>,
}

fn url(text: &str) -> Result<Url, String> {
    WebSettings::url_of(text).map_err(|error| error.to_string())
}

/// Asks a daemon, if one is known, and otherwise reads the journal.
pub(super) struct Ask<'a> {
    settings: &'a Settings,
    url: Option<Url>,
}

impl Daemon {
    pub(super) fn ask<'a>(&self, settings: &'a Settings) -> Ask<'a> {
        Ask { url: self.serve_url.clone().or_else(|| settings.web.found_at()), settings }
    }
}

impl Ask<'_> {
    /// A list; `read` reads the journal.
    pub(super) fn list(
        &self,
        app: &AppKey,
        filter: &Filter,
        range: Range<usize>,
        output: &Output,
        read: impl FnOnce(&AtomicBool, &mut dyn FnMut(u64, u64)) -> Result<ScheduleList, AdminError>,
    ) -> Result<ScheduleList, Failure> {
        let mut query = filter.query(Some(app));
        query.extend([("skip", range.start.to_string()), ("limit", range.len().to_string())]);
        self.first("list", query, output, read)
    }

    /// A count by this unit.
    pub(super) fn count<T: DeserializeOwned>(
        &self,
        by: &str,
        app: Option<&AppKey>,
        filter: &Filter,
        output: &Output,
        read: impl FnOnce(&AtomicBool, &mut dyn FnMut(u64, u64)) -> Result<T, AdminError>,
    ) -> Result<T, Failure> {
        let mut query = filter.query(app);
        query.push(("by", by.to_owned()));
        if let Some(name) = time::zone().iana_name() {
            query.push(("zone", name.to_owned()));
        }
        self.first("count", query, output, read)
    }

    /// The message with a handle, if a daemon knows it.
    pub(super) fn find(&self, handle: &Handle) -> Option<ScheduleList> {
        let id = ("id", handle.id().to_string());
        let query = vec![("app", handle.app().to_string()), id, ("limit", "1000".to_owned())];
        let mut list: ScheduleList = self.ask("list", query)?;
        let meant = list.messages.into_iter().rev().find(|message| message.is_meant_by(handle));
        list.messages = vec![meant?];
        Some(list)
    }

    fn first<T: DeserializeOwned>(
        &self,
        path: &str,
        query: Vec<(&'static str, String)>,
        output: &Output,
        read: impl FnOnce(&AtomicBool, &mut dyn FnMut(u64, u64)) -> Result<T, AdminError>,
    ) -> Result<T, Failure> {
        if let Some(answer) = self.ask(path, query) {
            return Ok(answer);
        }
        let began = Instant::now();
        let answer = reading(output, read)?;
        if self.url.is_none() && began.elapsed() > SLOW {
            aside(
                "the whole journal was read; a daemon answers at once: use --serve-url or the setting serve_url",
            );
        }
        Ok(answer)
    }

    /// The daemon's answer. If it has none, the reason is printed.
    fn ask<T: DeserializeOwned>(&self, path: &str, mut query: Vec<(&'static str, String)>) -> Option<T> {
        let url = self.url.as_ref()?;
        let Settings { broker, topology, web, .. } = self.settings;
        query.extend([("vhost", broker.vhost.clone()), ("set", topology.set.to_string())]);
        match ask_for(web, url, &format!("/api/scheduled/{path}"), &query) {
            Ok(answer) => Some(answer),
            Err(error) => {
                aside(format!("{}; reading the journal instead", readable(&error.to_string())));
                None
            }
        }
    }
}
