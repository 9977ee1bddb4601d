//! The daemon's web server: metrics, health, and a page to look at.
//!
//! It answers `GET` and `HEAD` and changes nothing. A [`Site`] is what it serves: a page,
//! JSON, metrics, and whether the daemon is ready, each from a function that answers from memory and
//! never waits for a broker; and questions, each on a thread of its own, a few at a time. [`PageAccess`]
//! decides who may send requests.
//!
//! # Slow and malformed clients
//!
//! A single thread serves all clients ([`Server`]): that is why this server is asynchronous and does
//! not read from each client in turn. It takes one request from a connection, with [`MAX_HEADER`] of
//! header at most. A connection always ends after [`CONNECTION_TIMEOUT`]. Beyond [`MAX_CONNECTIONS`]
//! of them, the newest replaces the oldest. So clients that hold connections open, send one byte a
//! second or never read do not keep others out, and the memory they can use up is bounded.
//!
//! # The page
//!
//! A page may hold `<script>` and `<style>` elements; the policy that is sent with it names
//! the hash of each, and nothing else runs: no attributes such as `onclick`, no `style="…"`
//! in the markup (scripts may set `element.style`), no `eval`, nothing from elsewhere. Images
//! can be `data:` URLs, and scripts may fetch from this server.

mod access;
mod answer;
mod ask;
mod page;
mod server;

use std::{fmt, time::Duration};

use delayline_core::codec::AppKey;
use serde::Serialize;
use serde_json::Value as Json;

pub use access::{PageAccess, Token, TokenError};
pub use ask::{AskError, Health, HealthCheck, HealthError, ask, ask_for};
pub use server::{Bound, Server, WebError};

use page::Page;

/// The page that shows a [`Picture`](crate::picture::Picture). It fetches `/api/picture`
/// every second, `/api/unroutable` and `/api/parked` while those are open, and asks `/api/scheduled/` every five
/// seconds.
pub const DASHBOARD: &str = concat!(
    include_str!("page/head.html"),
    "<style>\n",
    include_str!("page/page.css"),
    "</style>\n",
    include_str!("page/body.html"),
    "<script>\n",
    include_str!("page/page.js"),
    include_str!("page/scheduled.js"),
    "</script>\n</body>\n</html>\n"
);

/// The most bytes of a request's line and headers.
pub const MAX_HEADER: usize = 16 * 1024;

/// How long a connection may last, from its beginning to the end of the answer.
pub const CONNECTION_TIMEOUT: Duration = Duration::from_secs(15);

/// How many connections there are at most.
pub const MAX_CONNECTIONS: usize = 256;

/// Gives its answer at once, on the server's only thread.
type Source<T> = Box<dyn Fn() -> T + Send + Sync>;

/// A question that may take some time: the application whose token the visitor has, the path, and the query.
/// The answer is a status and JSON.
type Queries = Box<dyn Fn(Option<&AppKey>, &str, &str) -> (u16, Json) + Send + Sync>;

/// The contents of a server.
pub struct Site {
    page: Page,
    json: Vec<(&'static str, Source<Json>)>,
    metrics: Source<String>,
    readiness: Source<Readiness>,
    /// Below this path.
    queries: Option<(&'static str, Queries)>,
}

impl Site {
    /// A site with this page at `/`, no metrics, and ready at once.
    #[must_use]
    pub fn new(page: &'static str) -> Self {
        let ready = || Readiness::default();
        Self {
            page: Page::new(page),
            json: Vec::new(),
            metrics: Box::new(String::new),
            readiness: Box::new(ready),
            queries: None,
        }
    }

    /// Serves JSON at a path, such as `/api/picture`.
    #[must_use]
    pub fn with_json(
        mut self,
        path: &'static str,
        source: impl Fn() -> Json + Send + Sync + 'static,
    ) -> Self {
        self.json.push((path, Box::new(source)));
        self
    }

    /// Answers questions below a path, such as `/api/scheduled/`, on other threads.
    #[must_use]
    pub fn with_queries(
        mut self,
        path: &'static str,
        answer: impl Fn(Option<&AppKey>, &str, &str) -> (u16, Json) + Send + Sync + 'static,
    ) -> Self {
        self.queries = Some((path, Box::new(answer)));
        self
    }

    /// Serves metrics in the OpenMetrics text format at `/metrics`.
    #[must_use]
    pub fn with_metrics(mut self, source: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.metrics = Box::new(source);
        self
    }

    /// Answers at `/readyz` whether the daemon can do its work.
    #[must_use]
    pub fn with_readiness(mut self, source: impl Fn() -> Readiness + Send + Sync + 'static) -> Self {
        self.readiness = Box::new(source);
        self
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths: Vec<_> = self.json.iter().map(|(path, _)| path).collect();
        f.debug_struct("Site").field("json", &paths).finish_non_exhaustive()
    }
}

/// Whether the daemon can do its work, and why not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Readiness {
    /// Its dependencies.
    pub checks: Vec<Check>,
}

/// A dependency of the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Check {
    /// Its name in a word, such as `broker`.
    pub name: &'static str,
    /// Whether the check passed.
    pub ok: bool,
    /// The reason.
    pub reason: String,
}

impl Readiness {
    /// Whether all checks passed.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.checks.iter().all(|check| check.ok)
    }
}
