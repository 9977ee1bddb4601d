//! Properties of the pure core, on random inputs, and the conformance cases.

mod conformance;

use delayline_core::codec::{AppKey, Delay, Level, RoutingKey, Tolerance};
use delayline_core::retry::{Backoff, Decision, Failure, History, Jitter, ParkReason, Policy};
use delayline_core::topology::{Endpoint, Topology, TopologySettings, Unit, topic_matches};
use proptest::prelude::*;

fn delays() -> impl Strategy<Value = Delay> {
    // Uniform over the number of bits as well as over the range.
    prop_oneof![0..=u64::from(u32::MAX >> 4), (0_u32..=28).prop_flat_map(|bits| 0..(1_u64 << bits))]
        .prop_map(|seconds| Delay::from_seconds(seconds).unwrap())
}

fn app_keys() -> impl Strategy<Value = AppKey> {
    prop::collection::vec("[^.*#\\s\\p{C}]{1,12}", 1..5)
        .prop_map(|words| words.join("."))
        .prop_filter_map("too long", |key| AppKey::new(key).ok())
}

fn tolerances() -> impl Strategy<Value = Tolerance> {
    prop_oneof![delays().prop_map(Tolerance::Absolute), (0_u16..=10_000).prop_map(Tolerance::Relative)]
}

fn backoffs() -> impl Strategy<Value = Backoff> {
    let exponential = (delays(), 1.0_f64..=100.0, delays()).prop_map(|(one, factor, other)| {
        Backoff::Exponential { base: one.min(other), factor, cap: one.max(other) }
    });
    let list = prop::collection::vec(delays(), 0..20).prop_map(Backoff::List);
    prop_oneof![delays().prop_map(Backoff::Fixed), exponential, list]
}

fn jitters() -> impl Strategy<Value = Jitter> {
    let others = prop_oneof![Just(Jitter::None), Just(Jitter::Full), Just(Jitter::Equal)];
    prop_oneof![others, tolerances().prop_map(Jitter::HopAware)]
}

fn policies() -> impl Strategy<Value = Policy> {
    (backoffs(), jitters(), 0_u32..=50, prop::option::of(delays())).prop_map(
        |(backoff, jitter, attempts, max_age)| {
            let policy = Policy::new(backoff).with_jitter(jitter).with_attempts(attempts);
            max_age.into_iter().fold(policy, Policy::with_max_age)
        },
    )
}

/// The path of a key through the set from the entry exchange, and the most exchanges that it
/// crosses without a queue between them. Every exchange must have exactly one binding for it.
fn walk(topology: &Topology, key: &str) -> Result<(Vec<Level>, usize), String> {
    let (mut exchange, mut levels, mut crossed, mut most) = (topology.names().entry(), Vec::new(), 0, 0);
    loop {
        if exchange == topology.names().dispatch() {
            return Ok((levels, most));
        }
        crossed += 1;
        most = most.max(crossed);
        let from_here = topology.bindings().filter(|binding| binding.source == exchange);
        let ends: Vec<_> = from_here.filter(|binding| topic_matches(&binding.key, key)).collect();
        let [end] = ends[..] else {
            return Err(format!("{} bindings of {exchange} match {key}", ends.len()));
        };
        exchange = match &end.destination {
            Endpoint::Exchange(name) => name.clone(),
            Endpoint::Queue(name) => {
                let level = topology.queues().find(|queue| queue.name == *name).and_then(|queue| queue.level);
                let level = level.ok_or(format!("{name} is no level"))?;
                levels.push(level);
                crossed = 0;
                match level.below() {
                    None => topology.names().dispatch(),
                    Some(below) => topology.names().level_exchange(below),
                }
            }
        };
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_message_passes_exactly_the_levels_of_its_bits(delay in delays(), app in app_keys()) {
        let topology = Topology::new(TopologySettings::default());
        let (levels, crossed) = walk(&topology, &RoutingKey::new(delay, app).encode()).unwrap();
        prop_assert_eq!(levels, delay.levels().collect::<Vec<_>>());
        prop_assert!(crossed <= 3, "crossed {crossed} exchanges at once");
    }

    #[test]
    fn a_key_that_is_cut_short_or_wrong_where_it_is_read_first_matches_nothing(
        words in prop::collection::vec("[01]{4}", 0..=7), wrong in "[01]{1,3}|[01]{5}|[2-9]{4}|", app in "[a-z]{1,5}",
    ) {
        let topology = Topology::new(TopologySettings::default());
        let entry = topology.names().entry();
        let matches = |key: &str| topology.bindings().any(|b| b.source == entry && topic_matches(&b.key, key));
        let all = words.join(".");
        prop_assert_eq!(matches(&["delay", &all, &app].join(".")), words.len() == 7);
        prop_assert!(!matches(&["delay", &all].join(".")));
        prop_assert!(!matches(&["delay", &wrong, &all, &app].join(".")));
        // The wrong word has only zeros before it, so the entry exchange must check it, too.
        let zeros = words.len().min(6);
        let words = [vec!["delay"], vec!["0000"; zeros], vec![&wrong], vec!["1111"; 6 - zeros], vec![&app]];
        prop_assert!(!matches(&words.concat().join(".")));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_routing_key_comes_back_as_it_was(delay in delays(), app in app_keys()) {
        let key = RoutingKey::new(delay, app);
        let text = key.encode();
        prop_assert!(text.len() <= 255);
        prop_assert_eq!(text.parse::<RoutingKey>(), Ok(key));
    }

    #[test]
    fn whatever_decodes_encodes_to_the_same_text(
        delay in delays(), app in app_keys(), place in any::<prop::sample::Index>(), instead in "[01a.*#~ ]{0,2}",
    ) {
        // Replaces one character of a key. The result is often a valid key.
        let mut text: Vec<char> = RoutingKey::new(delay, app).encode().chars().collect();
        let place = place.index(text.len());
        text.splice(place..=place, instead.chars());
        let text: String = text.into_iter().collect();
        if let Ok(key) = text.parse::<RoutingKey>() {
            prop_assert_eq!(key.encode(), text);
        }
    }

    #[test]
    fn no_text_makes_a_parser_panic(text in any::<String>()) {
        let _ = text.parse::<RoutingKey>();
        let _ = text.parse::<AppKey>();
        let _ = text.parse::<Delay>();
        let _ = text.parse::<Tolerance>();
        let _ = RoutingKey::app_of_pattern(&text);
        let _ = delayline_amqp::broker::Broker::from_url(&text);
    }

    #[test]
    fn an_app_key_keeps_its_rules(text in "([a-z]{1,40}\\.?){0,6}(\\.~)?[.*#~ \\t\u{0}-\u{1f}]?") {
        if let Ok(key) = AppKey::new(text.clone()) {
            prop_assert_eq!(key.as_str(), &text);
            prop_assert!(!text.is_empty() && text.len() <= 150);
            prop_assert!(text.split('.').all(|word| !word.is_empty() && word != "~"));
            prop_assert!(!text.contains(['*', '#', ' ', '\t']));
        }
    }

    #[test]
    fn a_delay_comes_back_from_its_own_text(delay in delays()) {
        prop_assert_eq!(delay.to_string().parse::<Delay>(), Ok(delay));
        prop_assert_eq!(delay.levels().map(Level::units).sum::<u32>(), delay.seconds());
        prop_assert_eq!(delay.levels().count() as u32, delay.hops());
    }

    #[test]
    fn fractions_round_up(seconds in 0_u64..1_000_000, nanoseconds in 1_u32..1_000_000_000) {
        let delay = Delay::at_least(std::time::Duration::new(seconds, nanoseconds)).unwrap();
        prop_assert_eq!(u64::from(delay.seconds()), seconds + 1);
    }

    #[test]
    fn rounding_is_never_early_never_too_late_and_never_dearer(delay in delays(), tolerance in tolerances()) {
        let rounded = tolerance.round(delay);
        prop_assert!(rounded >= delay);
        prop_assert!(rounded <= tolerance.latest(delay));
        prop_assert!(rounded.hops() <= delay.hops());
    }

    #[test]
    fn rounding_finds_the_fewest_hops_and_the_shortest_of_them(seconds in 0_u64..200_000, extra in 0_u64..2_000) {
        let delay = Delay::from_seconds(seconds).unwrap();
        let rounded = Tolerance::Absolute(Delay::from_seconds(extra).unwrap()).round(delay);
        let best = (seconds..=seconds + extra).min_by_key(|candidate| (candidate.count_ones(), *candidate)).unwrap();
        prop_assert_eq!(u64::from(rounded.seconds()), best);
    }

    #[test]
    fn chance_stays_within_what_the_schedule_says(policy in policies(), attempt in 1_u32..2_000, random in 0.0..1.0) {
        let (shortest, longest) = policy.bounds(attempt);
        let delay = policy.delay(attempt, random);
        prop_assert!((shortest..=longest).contains(&delay), "{delay} of {shortest} to {longest}");
        let full = policy.backoff.delay(attempt);
        match policy.jitter {
            Jitter::None => prop_assert_eq!(delay, full),
            Jitter::Full => prop_assert!(delay <= full),
            Jitter::Equal => prop_assert!(delay <= full && 2 * delay.seconds() >= full.seconds()),
            Jitter::HopAware(window) => {
                prop_assert!(delay >= full && delay <= window.latest(full) && delay.hops() <= full.hops());
            }
            _ => prop_assert!(false, "a kind of jitter without a test"),
        }
    }

    #[test]
    fn exponential_backoff_never_shrinks_and_stays_under_its_cap(one in delays(), other in delays(), factor in 1.0_f64..=100.0) {
        let backoff = Backoff::Exponential { base: one.min(other), factor, cap: one.max(other) };
        let steps: Vec<_> = (1..40).map(|attempt| backoff.delay(attempt)).collect();
        prop_assert!(steps.is_sorted() && steps[0] == one.min(other) && steps[38] <= one.max(other));
    }

    #[test]
    fn every_message_is_parked_in_the_end_and_in_time(
        policy in policies(), random in 0.0..1.0, lifetime in prop::option::of(1_i64..10_000_000), slow in 0_i64..5_000,
    ) {
        let start = 1_700_000_000_000;
        let mut history = History::new("e", "k");
        history.expires = lifetime.map(|ms| start + ms);
        let mut failure = Failure::new(AppKey::new("a").unwrap(), "rejected", start, history);
        let (mut now, mut retries) = (start, 0);
        let why = loop {
            match Decision::new(&policy, &failure, None, Unit::SECOND, now, random) {
                Decision::Park(why) => break why,
                Decision::Retry { attempt, delay } => {
                    retries += 1;
                    prop_assert_eq!(attempt, retries);
                    now += i64::from(delay.seconds()) * 1_000;
                    if let Some(age) = policy.max_age {
                        prop_assert!(now - start <= i64::from(age.seconds()) * 1_000);
                    }
                    prop_assert!(failure.history.expires.is_none_or(|expires| now < expires));
                    now += slow;
                    failure.failed = now;
                    failure.history.first_failed = Some(start);
                    failure.history.attempt = attempt;
                }
            }
            prop_assert!(retries <= policy.attempts);
        };
        if why == ParkReason::Attempts {
            prop_assert_eq!(retries, policy.attempts);
        }
    }

    #[test]
    fn a_schedule_adds_up_and_its_hops_are_possible(policy in policies()) {
        let (mut shortest, mut longest) = (0, 0);
        for step in policy.schedule() {
            shortest += u64::from(step.shortest.seconds());
            longest += u64::from(step.longest.seconds());
            prop_assert_eq!(step.after, (shortest, longest));
            prop_assert!(step.hops() >= step.shortest.hops().max(step.longest.hops()));
        }
        prop_assert!(policy.schedule().count() <= policy.attempts as usize);
    }

    #[test]
    fn a_binding_pattern_gives_its_app_back(app in app_keys()) {
        let pattern = RoutingKey::binding_pattern(&app);
        prop_assert!(pattern.len() <= 255);
        prop_assert_eq!(RoutingKey::app_of_pattern(&pattern), Ok(app));
    }
}
