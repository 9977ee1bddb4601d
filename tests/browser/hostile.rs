//! Publishers choose the contents of messages, so these may be hostile to the page.

use serde_json::json;

use super::{Daemon, open};
use crate::common::{
    eventually, eventually_seen, new_set,
    raw::{message, publish},
};

const IMAGE: &str = "<img src=x onerror=window.taken=1>";

#[test]
fn contents_of_messages_are_shown_only_as_text() {
    let settings = new_set(1_000);
    let bits = "0000.".repeat(7);
    // An app key must not contain white space.
    let app = "<img/src=x/onerror=window.taken=2>.<script>taken=3</script>";
    let headers = json!({ "headers": { "delayline-reason": IMAGE, "delayline-failure": "</td><script>taken=4</script>" } });
    publish(
        &settings,
        [
            message("delay", &format!("delay.{bits}{app}"), "x", &json!({})),
            message("delay", IMAGE, "x", &json!({})),
            message("delay", "\u{202e}\u{0}<b>", "x", &json!({})),
            message("delay.parked", app, "x", &headers),
        ],
    );
    let daemon = Daemon::start(&settings, &["--no-canary"]).has_looked();
    let page = open(&daemon);
    eventually("the unroutable messages are counted", || page.number("#unroutable .count") == Some(3));
    for (which, texts) in [
        ("unroutable", vec![app, "its routing key is malformed"]),
        ("parked", vec![app, IMAGE, "</td><script>"]),
    ] {
        page.eval(&format!("(document.querySelector('#{which} summary').focus(), 0)"));
        page.press("Enter");
        eventually_seen(
            &format!("the messages in {which} are shown"),
            || page.text(&format!("#{which} .body")),
            |shown| texts.iter().all(|text| shown.contains(text)),
        );
    }
    let inside =
        page.eval("document.querySelectorAll('main img, main script, main b:not([id]):not(li b)').length");
    assert_eq!(inside, 0);
    assert_eq!(page.eval("window.taken === undefined"), true);
    assert_eq!(page.complaints(), Vec::<String>::new());

    // Even a script that got into the page in some other way would not run.
    page.eval(
        "(() => { const script = document.createElement('script'); script.textContent = 'window.taken = 5'; \
           document.body.append(script); document.body.insertAdjacentHTML('beforeend', \
           '<img src=x onerror=\"window.taken=6\">'); return 0; })()",
    );
    eventually("the browser refuses the script", || {
        page.complaints().iter().any(|text| text.contains("Content Security Policy"))
    });
    assert_eq!(page.eval("window.taken === undefined"), true);
}
