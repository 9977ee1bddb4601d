//! Layouts are shown below the set.

use delayline_amqp::Session;

use super::{Daemon, fits, open};
use crate::{
    common::{eventually, eventually_seen, new_set, vhost},
    others::{bound, nservicebus, publish},
};

#[test]
fn layouts_are_shown_below_the_set() {
    let settings = new_set(1_000);
    let mut session = Session::open(&settings.broker).unwrap();
    let layout = nservicebus(&mut session, 1_000);
    bound(&mut session, &layout, "Sales");
    publish(&settings, &layout, "Sales", 1 << 20, 0..3);
    let named = ["--no-canary", "--layout=nservicebus", "--layout=celery:eu"];
    let daemon = Daemon::start(&settings, &named).has_looked();
    let page = open(&daemon);
    let row = "#layouts tr[data-level=\"20\"] td:nth-child(2)";
    eventually("the waiting messages are shown", || page.number(row) == Some(3));
    let parts = [
        "Layout nservicebus",
        "Layout `celery:eu` cannot be seen",
        "3 messages wait, 0 stuck",
        "No message is stuck.",
        "has no guard",
        "No guard is set.",
    ];
    eventually_seen(
        "both layouts are shown",
        || page.text("#layouts"),
        |text| parts.iter().all(|part| text.contains(part)),
    );
    publish(&settings, &layout, "Gone", 1, 3..43);
    eventually("the stuck messages are marked", || page.text("#layouts [data-stuck]").contains("▲ 40"));
    eventually("the headline reports the stuck messages", || {
        page.text(".verdict").contains("Level 00 of layout `nservicebus` is stuck")
    });
    fits(&page);
    assert_eq!(page.complaints(), Vec::<String>::new());
}

#[test]
fn without_a_set_the_page_shows_only_layouts() {
    let settings = vhost().build().unwrap();
    let mut session = Session::open(&settings.broker).unwrap();
    let layout = nservicebus(&mut session, 1_000);
    bound(&mut session, &layout, "Sales");
    publish(&settings, &layout, "Sales", 1 << 20, 0..3);
    let daemon = Daemon::start(&settings, &["--layout=nservicebus"]);
    let page = open(&daemon);
    let words = || page.text("body");
    let shown = eventually_seen("the page reports the missing set", words, |text| {
        text.contains("No set `delay` here; watching")
    });
    assert!(shown.contains("Layout nservicebus") && shown.contains("no set here"), "{shown}");
    for of_set in ["The cascade", "Due next", "Lateness", "Retries by application", "not installed"] {
        assert!(!shown.contains(of_set), "{of_set} in {shown}");
    }
    assert_eq!(page.complaints(), Vec::<String>::new());
}
