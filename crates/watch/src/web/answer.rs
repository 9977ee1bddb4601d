//! From a request to an answer.

use http_body_util::Full;
use hyper::{
    HeaderMap, Method, Response, StatusCode, Uri,
    body::Bytes,
    header::{self, HeaderName, HeaderValue},
};
use serde_json::json;

use delayline_core::codec::AppKey;

use super::{PageAccess, Site, access::Admission};

pub(super) type Answer = Response<Full<Bytes>>;

const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// For everything that is not a page: browsers must not show it as one.
const NO_PAGE: &str = "default-src 'none'; frame-ancestors 'none'";

/// Sent with everything.
const SECURITY: [(HeaderName, &str); 7] = [
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=()"),
];

/// A question that another thread answers.
#[derive(Debug)]
pub(super) struct Question {
    /// The application whose token the visitor has.
    pub(super) app: Option<AppKey>,
    uri: Uri,
}

impl Question {
    /// Its answer.
    pub(super) fn answer(&self, site: &Site) -> Answer {
        let Some((below, answer)) = &site.queries else { return nothing() };
        let path = self.uri.path().strip_prefix(below).unwrap_or_default();
        let (status, body) = answer(self.app.as_ref(), path, self.uri.query().unwrap_or_default());
        json(StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), &body)
    }
}

/// The answer to a visitor whose earlier question is not answered yet.
pub(super) fn busy() -> Answer {
    json(StatusCode::TOO_MANY_REQUESTS, &json!({ "error": "one question at a time" }))
}

fn nothing() -> Answer {
    text(StatusCode::NOT_FOUND, "there is nothing here\n")
}

/// Answers one request, or returns it as a question.
pub(super) fn answer(
    site: &Site,
    access: &PageAccess,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<Answer, Question> {
    let app = match (method, access.judge(uri, headers)) {
        (&Method::GET, Admission::Allowed) => None,
        (&Method::GET, Admission::App(app)) => Some(app),
        _ => return Ok(at_once(site, access, method, uri, headers)),
    };
    match &site.queries {
        Some((below, _)) if uri.path().starts_with(below) => Err(Question { app, uri: uri.clone() }),
        _ => Ok(at_once(site, access, method, uri, headers)),
    }
}

fn at_once(site: &Site, access: &PageAccess, method: &Method, uri: &Uri, headers: &HeaderMap) -> Answer {
    if method != Method::GET && method != Method::HEAD {
        let mut answer = text(
            StatusCode::METHOD_NOT_ALLOWED,
            "only GET and HEAD are allowed; nothing can be changed here\n",
        );
        answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return answer;
    }
    let admission = access.judge(uri, headers);
    // Supervisors have no token, and learn nothing else.
    match (uri.path(), admission) {
        ("/healthz", _) => return json(StatusCode::OK, &json!({ "status": "ok" })),
        ("/readyz", admission) => return readiness(site, admission == Admission::Allowed),
        (_, Admission::Allowed) => {}
        (_, Admission::App(_)) => {
            return text(
                StatusCode::FORBIDDEN,
                "the token of an application is only for questions about its scheduled messages\n",
            );
        }
        (_, Admission::WrongHost) => {
            return text(
                StatusCode::MISDIRECTED_REQUEST,
                "this server answers only requests for `localhost`; to reach it by another name, give it a \
                 token (web_token_file)\n",
            );
        }
        (_, Admission::Unauthorized) => {
            let mut answer = text(
                StatusCode::UNAUTHORIZED,
                "a token is needed, as bearer token or as the password of basic authentication\n",
            );
            let basic = HeaderValue::from_static("Basic realm=\"delayline\", charset=\"UTF-8\"");
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, basic);
            return answer;
        }
    }
    match uri.path() {
        "/" => with_policy(StatusCode::OK, HTML, site.page.html.into(), &site.page.policy),
        "/metrics" => with_policy(StatusCode::OK, OPEN_METRICS, (site.metrics)().into(), NO_PAGE),
        path => match site.json.iter().find(|(known, _)| *known == path) {
            Some((_, source)) => json(StatusCode::OK, &source()),
            None => nothing(),
        },
    }
}

fn readiness(site: &Site, with_reasons: bool) -> Answer {
    let readiness = (site.readiness)();
    let ready = readiness.is_ready();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut body = json!({ "status": if ready { "ready" } else { "not ready" } });
    if with_reasons {
        body["checks"] = json!(readiness.checks);
    }
    json(status, &body)
}

fn json(status: StatusCode, value: &serde_json::Value) -> Answer {
    with_policy(status, JSON, value.to_string().into(), NO_PAGE)
}

fn text(status: StatusCode, body: &'static str) -> Answer {
    with_policy(status, TEXT, body.into(), NO_PAGE)
}

fn with_policy(status: StatusCode, kind: &'static str, body: Bytes, policy: &str) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_str(policy).unwrap_or_else(|_| HeaderValue::from_static(NO_PAGE)),
    );
    for (name, value) in SECURITY {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;
    use crate::web::{Check, Readiness, Token};

    fn site() -> Site {
        let check = |ok| Check { name: "broker", ok, reason: "seen".into() };
        Site::new("<script>1</script>")
            .with_json("/api/picture", || json!({ "seen": true }))
            .with_metrics(|| "# EOF\n".into())
            .with_readiness(move || Readiness { checks: vec![check(true), check(false)] })
    }

    fn ask(access: &PageAccess, method: Method, path: &'static str) -> (u16, HeaderMap, String) {
        let answer = at_once(&site(), access, &method, &Uri::from_static(path), &HeaderMap::new());
        let (parts, body) = answer.into_parts();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let body = runtime.block_on(body.collect()).unwrap().to_bytes();
        (parts.status.as_u16(), parts.headers, String::from_utf8(body.to_vec()).unwrap())
    }

    #[test]
    fn knows_its_paths() {
        for (path, status, body) in [
            ("/", 200, "<script>1</script>"),
            ("/api/picture?x=1", 200, "{\"seen\":true}"),
            ("/metrics", 200, "# EOF\n"),
            ("/healthz", 200, "{\"status\":\"ok\"}"),
            ("/readyz", 503, "\"reason\":\"seen\""),
            ("/api", 404, "nothing"),
            ("//", 404, "nothing"),
            ("/../etc/passwd", 404, "nothing"),
        ] {
            let (found, headers, text) = ask(&PageAccess::Local, Method::GET, path);
            assert!(found == status && text.contains(body), "{path}: {found} {text}");
            assert_eq!(headers["x-content-type-options"], "nosniff");
            assert!(headers["content-security-policy"].to_str().unwrap().contains("default-src 'none'"));
            assert!(!headers.contains_key("access-control-allow-origin"));
        }
        assert!(
            ask(&PageAccess::Local, Method::GET, "/").1["content-security-policy"]
                .to_str()
                .unwrap()
                .contains("sha256-")
        );
    }

    #[test]
    fn changes_nothing() {
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS, Method::TRACE] {
            let (status, headers, _) = ask(&PageAccess::Local, method, "/");
            assert_eq!((status, &headers["allow"]), (405, &HeaderValue::from_static("GET, HEAD")));
        }
    }

    #[test]
    fn without_the_token_only_health_is_told_and_no_reason() {
        let access = PageAccess::Token(Token::new("0123456789abcdef").unwrap());
        for path in ["/", "/metrics", "/api/picture", "/nowhere"] {
            let (status, headers, _) = ask(&access, Method::GET, path);
            assert!(status == 401 && headers.contains_key("www-authenticate"), "{path}: {status}");
        }
        assert_eq!(ask(&access, Method::GET, "/healthz").0, 200);
        let (status, _, body) = ask(&access, Method::GET, "/readyz");
        assert_eq!((status, body.as_str()), (503, "{\"status\":\"not ready\"}"));
    }
}
