//! What the index of a daemon costs, and how fast it answers.

use std::{env, fs, time::Instant};

use delayline_admin::Index;
use delayline_node::{NodeOptions, PrivateNode};

use super::*;

const DAY: u64 = 86_400;

#[test]
#[ignore = "measures for half an hour, in a release build: scripts/index-cost"]
fn what_an_index_costs() {
    let all = env::var("TEST_INDEXED").map_or(1_000_000, |count| count.parse().unwrap());
    for journals in [1, 100] {
        measure(journals, all / journals);
    }
}

/// The memory of this process in MB.
fn memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1_024
}

fn measure(journals: u64, each: u64) {
    let node = PrivateNode::start(NodeOptions::default()).unwrap();
    let mut settings = node.settings().build().unwrap();
    settings.index.headers = vec!["customer".into()];
    common::install(&settings);
    let apps: Vec<_> = (0..journals).map(|number| format!("app-{number}")).collect();
    let journal = JournalSettings::default().with_max_bytes(NonZeroU64::new(10_000_000_000).unwrap());
    for app in &apps {
        added(&settings, &journalled(&settings, app, journal));
    }
    let version = session_version(&settings);
    let print = |what: &str, [middle, most_of, most]: [f64; 3]| {
        println!("{version},{journals},{each},\"{what}\",{middle:.1},{most_of:.1},{most:.1}");
    };
    let router = settings.router().connect().unwrap();
    let mut random = fastrand::Rng::with_seed(7);
    let began = Instant::now();
    let mut pipeline = router.pipeline();
    for number in 0..journals * each {
        let key = app(&apps[usize::try_from(number % journals).unwrap()]);
        let delay = Delay::from_seconds(random.u64(DAY..30 * DAY)).unwrap();
        let message =
            Message::after(key, delay, vec![b'x'; 256]).with_id(format!("m-{number}").parse().unwrap());
        let message = message.with_header("customer", format!("C-{}", random.u32(0..10_000)));
        if let Some(outcome) = pipeline.push((), message) {
            outcome.result.unwrap();
        }
    }
    assert!(pipeline.all(|outcome| outcome.result.is_ok()));
    print("publish, in ms", [began.elapsed().as_secs_f64() * 1e3; 3]);

    let before = memory();
    let (index, stop) = (Arc::new(Index::new(settings.clone())), Arc::new(AtomicBool::new(false)));
    let queues: Vec<_> = apps.iter().map(|app| format!("delay.journal.{app}")).collect();
    let (runs, until) = (Arc::clone(&index), Arc::clone(&stop));
    let began = Instant::now();
    let thread = thread::spawn(move || runs.run(|| Some(queues.clone()), &until));
    eventually("all journals are indexed", || {
        let found = index.journals();
        found.len() as u64 == journals && found.iter().all(|it| it.behind.is_some())
    });
    print("build, in ms", [began.elapsed().as_secs_f64() * 1e3; 3]);
    eventually("the messages are counted", || {
        index.journals().iter().map(|it| it.messages.unwrap_or(0)).sum::<u64>() == journals * each
    });
    #[expect(clippy::cast_precision_loss, reason = "megabytes are enough")]
    let megabytes = |bytes: u64| [bytes as f64; 3];
    print("memory, in MB more", megabytes(memory().saturating_sub(before)));
    print("index, in MB", megabytes(index.journals().iter().map(|it| it.bytes).sum::<u64>() / 1_000_000));

    let any = ScheduleFilter::default;
    let pick = |random: &mut fastrand::Rng| app(&apps[random.usize(0..apps.len())]);
    let later = |random: &mut fastrand::Rng| {
        any().with_due_after(Some(
            Timestamp::now() + SignedDuration::from_secs(random.i64(0..20 * DAY.cast_signed())),
        ))
    };
    let zone = || TimeZone::get("Europe/Berlin").unwrap();
    let mut time = |what: &str, ask: &mut dyn FnMut(&mut fastrand::Rng)| {
        let mut took: Vec<_> = (0..200)
            .map(|_| {
                let began = Instant::now();
                ask(&mut random);
                began.elapsed().as_secs_f64() * 1e3
            })
            .collect();
        took.sort_by(f64::total_cmp);
        print(&format!("{what}, in ms"), [took[100], took[198], took[199]]);
    };
    time("list, first 50", &mut |random| drop(index.list(&pick(random), &any(), 0..50).unwrap()));
    time("list, 50 from a time on", &mut |random| {
        drop(index.list(&pick(random), &later(random), 0..50).unwrap());
    });
    let deep = usize::try_from(each / 10).unwrap();
    time("list, 50 after a tenth of all", &mut |random| {
        drop(index.list(&pick(random), &any(), deep..deep + 50).unwrap());
    });
    time("list, by id", &mut |random| {
        let id = format!("m-{}", random.u64(0..journals * each)).parse().unwrap();
        drop(index.list(&pick(random), &any().with_id(Some(id)), 0..50).unwrap());
    });
    time("list, by header", &mut |random| {
        let header = format!("customer=C-{}", random.u32(0..10_000)).parse().unwrap();
        drop(index.list(&pick(random), &any().with_headers(vec![header]), 0..50).unwrap());
    });
    for by in [CountBy::Hour, CountBy::Day] {
        time(&format!("count, by {}", by.as_str()), &mut |random| {
            drop(index.count(&pick(random), &any(), (by, zone())).unwrap());
        });
    }
    time("count, by app", &mut |_| {
        assert_eq!(index.count_apps(None, &any()).unwrap().apps.len(), apps.len())
    });
    time("show, one with its contents", &mut |random| {
        let id = format!("m-{}", random.u64(0..journals * each)).parse().unwrap();
        drop(index.show(&pick(random), &any().with_id(Some(id)), 0..1, 100).unwrap());
    });

    // From the confirm until it is listed, while 2,000 messages/s are published.
    let done = AtomicBool::new(false);
    let mut took = Vec::new();
    let mut behind = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            let router = settings.router().connect().unwrap();
            let (mut pipeline, began) = (router.pipeline(), Instant::now());
            for number in 0_u64.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                let key = app(&apps[usize::try_from(number % journals).unwrap()]);
                let delay = Delay::from_seconds(DAY + number % 1_000).unwrap();
                pipeline.push((), Message::after(key, delay, vec![b'x'; 256]));
                let due = Duration::from_micros(500 * number);
                thread::sleep(due.saturating_sub(began.elapsed()));
            }
            assert!(pipeline.all(|outcome| outcome.result.is_ok()));
        });
        for number in 0..200 {
            let id = format!("lag-{number}");
            let key = app(&apps[number % apps.len()]);
            let message = Message::after(key.clone(), Delay::from_seconds(DAY).unwrap(), "x");
            router.publish(message.with_id(id.parse().unwrap())).unwrap();
            let began = Instant::now();
            let filter = any().with_id(Some(id.parse().unwrap()));
            while index.list(&key, &filter, 0..1).map_or(true, |list| list.messages.is_empty()) {
                assert!(began.elapsed() < PATIENCE);
                thread::sleep(Duration::from_millis(2));
            }
            took.push(began.elapsed().as_secs_f64() * 1e3);
            behind = behind.max(index.journals().iter().filter_map(|it| it.behind).max().unwrap_or(0));
            thread::sleep(Duration::from_millis(100));
        }
        done.store(true, Ordering::Relaxed);
    });
    took.sort_by(f64::total_cmp);
    print("listed after its confirm at 2000 messages/s, in ms", [took[100], took[198], took[199]]);
    print("behind, in s", megabytes(behind));
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap();
}
