//! The page of a healthy set, for different readers.

use delayline_admin::{self as admin, AppQueue, Delivery};
use delayline_client::recall::Recaller;
use delayline_core::{
    Message,
    codec::Delay,
    topology::{ExchangeKind, RecallSettings},
};
use delayline_schedules::{self as schedules, Change, Spec, Timing};
use serde_json::{Value as Json, json};

use super::{Daemon, Seen, cell, fits, open, send};
use crate::common::{self, Inbox, app, eventually, eventually_seen, http, new_set, shared_node};

/// Waits until the broker has been compared with the whole set, and until the page shows that.
fn compared(daemon: &Daemon, page: &Seen) {
    let verified = || daemon.json("api/picture")["verified"].clone();
    eventually_seen("the whole set was compared", verified, |seen| {
        seen["ok"] == true && seen["unchecked"] == Json::Array(Vec::new())
    });
    eventually("the page shows no difference", || {
        page.eval("document.querySelector('#places').hidden") == true
    });
}

/// The number of ready messages in each queue, from the management API.
fn depths(settings: &delayline_settings::Settings) -> Vec<(String, u64)> {
    let queues = http(&shared_node(), "GET", &format!("queues/{}", settings.broker.vhost), &Json::Null);
    let queues = queues.as_array().cloned().unwrap_or_default();
    let depth = |queue: &Json| Some((queue["name"].as_str()?.to_owned(), queue["messages_ready"].as_u64()?));
    queues.iter().filter_map(depth).collect()
}

#[test]
fn the_numbers_are_the_brokers() {
    let settings = new_set(1_000);
    let _inbox = Inbox::open(&settings, "billing");
    // Delays that are too long for a message to move during the comparison. The canary uses only
    // levels below 7.
    for (level, count) in [(27, 1), (26, 3), (20, 17), (14, 1_234), (12, 250), (11, 60)] {
        send(&settings, "billing", 1 << level, count);
    }
    send(&settings, "nobody", 0, 42);
    let daemon = Daemon::start(&settings, &[]).has_looked();
    let page = open(&daemon);
    let seen = || {
        let on_page = |queue: &str| match queue.strip_prefix("delay.level.") {
            Some(level) => page.number(&cell(level.parse().unwrap(), ".ready")),
            None => page.number(&format!("#{} .count", queue.strip_prefix("delay.").unwrap())),
        };
        let queues = depths(&settings).into_iter().filter(|(name, _)| {
            let long = |level: &str| level.parse::<u8>().unwrap() > 6;
            name.strip_prefix("delay.level.").is_some_and(long)
                || name == "delay.unroutable"
                || name == "delay.parked"
        });
        queues.map(|(name, broker)| (on_page(&name), Some(broker), name)).collect::<Vec<_>>()
    };
    let same = eventually_seen("the page and the broker show the same numbers", seen, |seen| {
        seen.len() == 23
            && seen.iter().all(|(page, broker, _)| page == broker)
            && seen.iter().filter_map(|(_, broker, _)| *broker).sum::<u64>() == 1_607
    });
    println!("{same:?}");

    // The conclusions are the same as those of the daemon's own report.
    let total = page.text("#total");
    assert!(total.contains("messages wait"), "{total}");
    // The doctor may have found the unroutable messages before the canary arrived.
    eventually_seen(
        "the canary has arrived",
        || page.text("#headline"),
        |headline| headline == "Delays are on time." || headline.contains("delay.unroutable"),
    );
    eventually("its lateness is drawn", || {
        page.eval("document.querySelector('.mid').getAttribute('d')") != ""
    });
    assert_eq!(page.complaints(), Vec::<String>::new());
}

#[test]
fn old_and_unknown_numbers_are_explained() {
    let settings = new_set(1_000);
    let daemon = Daemon::start(&settings, &["--no-canary"]).has_looked();
    let page = open(&daemon);
    eventually("the page shows the counts", || page.number(&cell(16, ".ready")) == Some(0));
    compared(&daemon, &page);
    assert_eq!(page.eval("document.querySelectorAll('h1:not([role])').length"), 1);
    let row = page.eval("document.querySelector('#levels tr[data-level=\"16\"] th').textContent");
    assert!(row.as_str().unwrap().ends_with("level 16, queue delay.level.16"), "{row}");
    // Simulates a daemon whose last look was a minute ago.
    page.eval(
        "(() => { const real = window.fetch; window.fetch = async (path, options) => { \
            const answer = await real(path, options), headers = { date: answer.headers.get('date') }; \
            let seen = await answer.json(); \
            if (path === 'api/picture') { \
                seen.at = new Date(Date.parse(headers.date) - 60000).toISOString(); \
                seen.verified = { ...seen.verified, ok: false, problems: ['one is missing', 'two differs'], unchecked: ['three'] }; \
                seen.canary = { running: true, problem: null, sent: 1, arrived: 0, overdue: 1, missing: 0, twice: 0, lateness: [], \
                    probes: [{ levels: '06+04', late_ms: null, overdue: 1, missing: 0 }] }; \
            } else if (seen) { seen.failure = 'the queue is gone'; } \
            return new Response(JSON.stringify(seen), { headers }); }; return 0; })()",
    );
    eventually("the age of the numbers is shown", || page.text("#age") == "seen 60 s ago");
    page.eval("(document.querySelector('#places summary').focus(), 0)");
    page.press("Enter");
    eventually_seen(
        "the differences are listed",
        || page.text("#places"),
        |text| {
            ["2 places", "1 thing not checked", "one is missing", "two differs", "Not checked: three"]
                .iter()
                .all(|part| text.contains(part))
        },
    );
    eventually_seen(
        "the levels of the late canary are shown",
        || page.text("#ways"),
        |text| text.contains("06+") && text.contains("1 overdue"),
    );
    page.eval("(document.querySelector('#unroutable').open = true, 0)");
    eventually_seen(
        "a failed look is not shown as an empty queue",
        || page.text("#unroutable .body"),
        |text| text.contains("The queue could not be read.") && text.contains("The queue is gone."),
    );
    assert_eq!(page.complaints(), Vec::<String>::new());
}

#[test]
fn it_changes_in_place() {
    let settings = new_set(1_000);
    let daemon = Daemon::start(&settings, &["--no-canary"]).has_looked();
    let page = open(&daemon);
    eventually("the page shows the counts", || page.number(&cell(16, ".ready")) == Some(0));
    page.eval(
        "(window.removed = 0, window.row = document.querySelector('#levels tr[data-level=\"16\"]'), \
         new MutationObserver(all => all.forEach(one => one.removedNodes.forEach(node => { \
             if (node.nodeType === 1) window.removed++; }))).observe(document.querySelector('#levels'), \
         {childList: true, subtree: true}), 0)",
    );
    for count in [5, 6] {
        send(&settings, "billing", 1 << 16, count);
    }
    eventually("the number has changed", || page.number(&cell(16, ".ready")) == Some(11));
    // The row is the same, and no element of the table was removed: only texts changed. Outside the
    // table, the warning about a slow daemon may come and go.
    assert_eq!(page.eval("[window.row.isConnected, window.removed]"), json!([true, 0]));
    // After a pause, the page stays as it is.
    page.eval("(document.querySelector('#pause').focus(), 0)");
    page.press("Enter");
    eventually("the page is paused", || page.text("#age") == "paused");
    send(&settings, "billing", 1 << 16, 1);
    eventually("the daemon has seen new messages", || {
        let picture = daemon.json("api/picture");
        picture["levels"][11]["ready"] == 12
    });
    assert_eq!(page.number(&cell(16, ".ready")), Some(11));
    page.press("Enter");
    eventually("the page shows new counts again", || page.number(&cell(16, ".ready")) == Some(12));
}

#[test]
fn it_fits_a_telephone_and_suits_its_reader() {
    let settings = new_set(1_000);
    send(&settings, "billing", 1 << 12, 12_345);
    let daemon = Daemon::start(&settings, &[]).has_looked();
    let page = open(&daemon);
    eventually("the page shows the counts", || page.number(&cell(12, ".ready")) == Some(12_345));
    fits(&page);
    // Text and background differ enough in both colour schemes: 4.5 to 1, as WCAG requires.
    let contrast = "['--ink', '--soft', '--held', '--wait'].map(name => { \
        const of = name => { const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim(); \
            const [r, g, b] = [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16) / 255) \
                .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4); \
            return 0.2126 * r + 0.7152 * g + 0.0722 * b; }; \
        const [a, b] = [of(name), of('--paper')].sort((a, b) => b - a); return (a + 0.05) / (b + 0.05); })";
    let mut papers = Vec::new();
    for scheme in ["light", "dark"] {
        page.prefer(&[("prefers-color-scheme", scheme), ("prefers-reduced-motion", "no-preference")]);
        let all = page.eval(contrast);
        assert!(all.as_array().unwrap().iter().all(|one| one.as_f64().unwrap() >= 4.5), "{scheme}: {all}");
        papers.push(page.eval("getComputedStyle(document.body).backgroundColor"));
        assert_eq!(page.eval("getComputedStyle(document.querySelector('main')).transitionDuration"), "0.4s");
    }
    assert_ne!(papers[0], papers[1]);
    page.prefer(&[("prefers-reduced-motion", "reduce")]);
    assert_eq!(page.eval("getComputedStyle(document.querySelector('main')).transitionDuration"), "0s");
    // The keyboard reaches every control, in the order of the page.
    compared(&daemon, &page);
    let mut reached = Vec::new();
    page.eval("(document.activeElement.blur(), 0)");
    for _ in 0..4 {
        page.press("Tab");
        let focused = "(document.activeElement.closest('details') || document.activeElement)";
        reached.push(page.eval(&format!("{focused}.id || {focused}.className")));
    }
    assert_eq!(json!(reached), json!(["skip", "pause", "unroutable", "parked"]));
    assert_eq!(page.complaints(), Vec::<String>::new());
}

/// The cells of each row of a table.
pub(crate) fn rows(page: &Seen, body: &str) -> Json {
    page.eval(&format!(
        "[...document.querySelectorAll('#{body} tr')].map(row => [...row.children].map(cell => cell.textContent))"
    ))
}

#[test]
fn recalls_gateways_and_schedules_have_rows_that_fit_a_telephone() {
    let settings = new_set(1_000);
    let topology = common::topology(&settings);
    let spec = admin::AppSpec::new(app("billing"), Delivery::Direct(AppQueue::new("billing")));
    let spec = admin::AppSpec { recall: Some(RecallSettings::default()), ..spec };
    admin::add_app(&settings, &topology, &spec, false, false).unwrap();
    let name = "orders.delayed.of-a-shop-in-the-north";
    admin::add_gateway(&settings, &topology, name, ExchangeKind::Topic, false).unwrap().unwrap();
    let router = settings.router().connect().unwrap();
    let delay = Delay::from_seconds(90 * 86_400).unwrap();
    let message = Message::after(app("billing"), delay, "x").with_id("gone".parse().unwrap());
    let gone = router.publish(message).unwrap().handle.unwrap();
    Recaller::connect(settings.target()).unwrap().recall(&gone).unwrap();
    let every = Timing::Every { every: Delay::from_seconds(86_400).unwrap() };
    let schedule = "a-report-with-quite-a-long-name".parse().unwrap();
    schedules::change(&settings, &topology, &schedule, Change::Set(&Spec::new(app("billing"), every)), false)
        .unwrap();
    // No daemon serves this gateway.
    let path = format!("exchanges/{}/{name}.in/publish", settings.broker.vhost);
    let body = json!({ "properties": {}, "routing_key": "k", "payload": "x", "payload_encoding": "string" });
    assert_eq!(http(&shared_node(), "POST", &path, &body)["routed"], true);
    let daemon = Daemon::start(&settings, &["--no-gateways"]).has_looked();
    let page = open(&daemon);
    eventually_seen(
        "the recall is shown",
        || rows(&page, "recalled"),
        |rows| rows[0] == json!(["billing", "1", "10,000", "0", "0"]),
    );
    eventually_seen(
        "the gateway is shown",
        || rows(&page, "gateway-list"),
        |rows| rows[0] == json!([name, "1", "0", "0"]),
    );
    eventually_seen(
        "the schedule is shown",
        || rows(&page, "schedule-list"),
        |rows| {
            let due = rows[0][2].as_str().is_some_and(|due| due.starts_with("in "));
            due && (&rows[0][0], &rows[0][1], &rows[0][3])
                == (&json!(schedule), &json!("billing"), &json!("0"))
        },
    );
    eventually_seen(
        "the daemon has its turn",
        || page.eval("document.getElementById('schedule-turn').textContent"),
        |turn| *turn == json!("published by this daemon"),
    );
    fits(&page);
    assert_eq!(page.complaints(), Vec::<String>::new());
}
