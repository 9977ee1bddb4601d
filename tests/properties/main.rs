//! Properties of the pure core, on inputs nobody thought of.

use delayline::codec::{AppKey, Delay, RoutingKey, Tolerance};
use proptest::prelude::*;

fn delays() -> impl Strategy<Value = Delay> {
    // Uniform over the bits as well as over the range.
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
    fn whatever_decodes_encodes_to_the_same_text(text in "(delay\\.)?([01]\\.){26,29}[a-z0-9.*# ]{0,8}") {
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
        let _ = delayline::Settings::from_url(&text);
    }

    #[test]
    fn an_app_key_keeps_its_rules(text in "[a-z.*# \\t\u{0}-\u{1f}]{0,200}") {
        if let Ok(key) = AppKey::new(text.clone()) {
            prop_assert_eq!(key.as_str(), &text);
            prop_assert!(!text.is_empty() && text.len() <= 193);
            prop_assert!(text.split('.').all(|word| !word.is_empty()));
            prop_assert!(!text.contains(['*', '#', ' ', '\t']));
        }
    }

    #[test]
    fn a_delay_comes_back_from_its_own_text(delay in delays()) {
        prop_assert_eq!(delay.to_string().parse::<Delay>(), Ok(delay));
        prop_assert_eq!(format!("PT{}S", delay.seconds()).parse::<Delay>(), Ok(delay));
        prop_assert_eq!(delay.levels().map(|level| 1_u32 << level).sum::<u32>(), delay.seconds());
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
    fn a_binding_pattern_gives_its_app_back(app in app_keys()) {
        let pattern = RoutingKey::binding_pattern(&app);
        prop_assert!(pattern.len() <= 255);
        prop_assert_eq!(RoutingKey::app_of_pattern(&pattern), Ok(app));
    }
}
