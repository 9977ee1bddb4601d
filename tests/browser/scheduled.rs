//! The view of scheduled messages.

use delayline_admin::{self as admin, AppQueue, AppSpec, Delivery};
use delayline_core::{
    Message,
    codec::Delay,
    topology::{JournalSettings, RecallSettings},
};
use serde_json::json;

use super::{Daemon, fits, open, reading::rows};
use crate::common::{self, app, eventually, eventually_seen, new_set};

#[test]
fn scheduled_messages_are_counted_searched_and_shown() {
    let settings = new_set(1_000);
    let topology = common::topology(&settings);
    let recall = Some(RecallSettings::default().with_journal(JournalSettings::default()));
    let spec = AppSpec { recall, ..AppSpec::new(app("billing"), Delivery::Direct(AppQueue::new("billing"))) };
    admin::add_app(&settings, &topology, &spec, false, false).unwrap();
    let router = settings.router().connect().unwrap();
    for number in 0..25 {
        let delay = Delay::from_seconds(1_800 + 7_200 * number).unwrap();
        let body = format!("<img src=x onerror=window.taken=1> {number}");
        let message =
            Message::after(app("billing"), delay, body).with_id(format!("m-{number}").parse().unwrap());
        router.publish(message.with_header("note", "</pre><script>window.taken=2</script>")).unwrap();
    }
    let daemon = Daemon::start(&settings, &["--no-canary"]).has_looked();
    let page = open(&daemon);
    let apps = || rows(&page, "scheduled-apps");
    eventually_seen("the application is counted", apps, |rows| {
        rows[0][0] == "billing" && rows[0][1] == "25" && rows[0][3] != "–"
    });
    // By keyboard.
    page.eval("(document.querySelector('#scheduled-apps button').focus(), 0)");
    page.press("Enter");
    let list = || rows(&page, "scheduled-list");
    eventually_seen("the first page is shown", list, |rows| {
        rows.as_array().is_some_and(|rows| rows.len() == 20) && rows[0][1] == "m-0" && rows[0][2] == "waiting"
    });
    assert_eq!(page.text("#scheduled-page"), "1 to 20 of 25");
    let bars = || page.eval("document.querySelectorAll('#due-chart rect').length");
    // One message in each second hour.
    eventually_seen("the next day has its bars", bars, |bars| *bars == 12);
    page.eval("(document.querySelector('[data-range=hour]').click(), 0)");
    eventually_seen("the next hour has its bar", bars, |bars| *bars == 1);
    page.eval("(document.querySelector('#scheduled-on').click(), 0)");
    eventually_seen("the second page is shown", list, |rows| {
        rows.as_array().is_some_and(|rows| rows.len() == 5) && rows[0][1] == "m-20"
    });
    let search = |text: &str| {
        page.eval(&format!(
            "(document.querySelector('#scheduled-text').value = '{text}', \
             document.querySelector('#scheduled-search button').click(), 0)"
        ))
    };
    search("m-7");
    eventually_seen("the message is found", list, |rows| {
        *rows != json!([]) && rows[0][1] == "m-7" && rows[1].is_null()
    });
    page.eval("(document.querySelector('#scheduled-list button').click(), 0)");
    eventually_seen(
        "its contents are shown as text",
        || page.text("#scheduled-message"),
        |text| text.contains("onerror=window.taken=1> 7") && text.contains("</pre><script>"),
    );
    assert_eq!(page.eval("window.taken === undefined"), true);
    fits(&page);
    search("other=1");
    eventually("what is not indexed is explained", || {
        page.text("#scheduled-note").contains("does not keep the header `other`")
    });
    // The browser reports the refused question.
    let complaints = page.complaints();
    assert!(complaints.iter().all(|text| text.contains("400")), "{complaints:?}");
}
