//! APIs that take connections and answer nothing. A command asks many questions, and a daemon
//! asks again and again: only the first question waits for its whole time limit. Each one after
//! that begins with a short question, until the API answers again.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use url::Url;

/// How long the short question waits. A slow API still answers it within that.
pub(super) const SHORT: Duration = Duration::from_secs(5);

/// The APIs that did not answer the last question in time.
static SILENT: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

fn silent() -> MutexGuard<'static, BTreeSet<String>> {
    SILENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the API at this address left the last question without an answer.
pub(super) fn is_suspected(base: &Url) -> bool {
    silent().contains(base.as_str())
}

/// Notes whether it answered in time.
pub(super) fn note(base: &Url, in_time: bool) {
    if in_time {
        silent().remove(base.as_str());
    } else {
        silent().insert(base.to_string());
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Write},
        net::TcpListener,
        thread,
    };

    use delayline_settings::Settings;

    use super::{
        super::{ManagementApi, ManagementError},
        *,
    };

    #[test]
    fn an_api_that_did_not_answer_is_asked_a_short_question_first() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut settings = Settings::from_url("amqp://localhost").unwrap().management.unwrap();
        settings.url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let api = |ms| ManagementApi::within(&settings, Duration::from_millis(ms)).unwrap();
        for _ in 0..2 {
            assert!(matches!(api(100).nodes(), Err(ManagementError::Unreachable { .. })));
            assert!(is_suspected(&settings.url));
        }
        // From now on it answers. The requests of the first two may still be in its queue.
        let answers = thread::spawn(move || {
            let mut asked = Vec::<String>::new();
            while !asked.ends_with(&["/api/whoami".into(), "/api/nodes".into()]) {
                let (mut socket, _) = listener.accept().unwrap();
                let mut line = String::new();
                let _ = BufReader::new(&socket).read_line(&mut line);
                asked.extend(line.split(' ').nth(1).map(str::to_owned));
                let _ =
                    socket.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n[]");
            }
            asked
        });
        assert!(api(60_000).nodes().unwrap().is_empty());
        assert!(!is_suspected(&settings.url));
        let asked = answers.join().unwrap();
        assert!(asked.iter().filter(|path| *path == "/api/nodes").count() <= 2, "{asked:?}");
    }
}
