//! The delays of others, below the set.

use delayline_amqp::Session;

use super::{Daemon, fits, open};
use crate::{
    common::{eventually, eventually_seen, new_set, vhost},
    others::{bound, nservicebus, publish},
};

#[test]
fn the_delays_of_others_are_below_the_set() {
    let settings = new_set(1_000);
    let mut session = Session::open(&settings.broker).unwrap();
    let layout = nservicebus(&mut session, 1_000);
    bound(&mut session, &layout, "Sales");
    publish(&settings, &layout, "Sales", 1 << 20, 0..3);
    let named = ["--no-canary", "--layout=nservicebus", "--layout=celery:eu"];
    let daemon = Daemon::start(&settings, &named).has_looked();
    let page = open(&daemon);
    let row = "#layouts tr[data-level=\"20\"] td:nth-child(2)";
    eventually("what waits is shown", || page.number(row) == Some(3));
    let text = eventually_seen(
        "both are there",
        || page.text("#layouts"),
        |text| text.contains("Delays of nservicebus") && text.contains("Layout `celery:eu` cannot be seen"),
    );
    for part in ["3 messages wait, 0 stuck", "Nothing is held up.", "has no guard", "No guard is set."] {
        assert!(text.contains(part), "{part} in {text}");
    }
    publish(&settings, &layout, "Gone", 1, 3..43);
    eventually("what is stuck is marked", || page.text("#layouts [data-stuck]").contains("▲ 40"));
    eventually("and said", || page.text(".verdict").contains("Level 00 of layout `nservicebus` is stuck"));
    fits(&page);
    assert_eq!(page.complaints(), Vec::<String>::new());
}

#[test]
fn where_there_is_no_set_the_page_has_nothing_of_one() {
    let settings = vhost().build().unwrap();
    let mut session = Session::open(&settings.broker).unwrap();
    let layout = nservicebus(&mut session, 1_000);
    bound(&mut session, &layout, "Sales");
    publish(&settings, &layout, "Sales", 1 << 20, 0..3);
    let daemon = Daemon::start(&settings, &["--layout=nservicebus"]);
    let page = open(&daemon);
    let words = || page.text("body");
    let shown = eventually_seen("it says so", words, |text| text.contains("No set `delay` here; watching"));
    assert!(shown.contains("Delays of nservicebus") && shown.contains("no set here"), "{shown}");
    for of_set in ["The cascade", "Due next", "Lateness", "Retries by application", "not installed"] {
        assert!(!shown.contains(of_set), "{of_set} in {shown}");
    }
    assert_eq!(page.complaints(), Vec::<String>::new());
}
