//! What flags and help say.

use super::*;

#[test]
fn the_definition_is_sound() {
    command().debug_assert();
}

#[test]
fn flags_that_are_settings_name_their_variables() {
    let mut command = command();
    // Lines are wrapped anywhere.
    let short = command.render_help().to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    for variable in ["DELAYLINE_CONFIG", "DELAYLINE_URL", "DELAYLINE_PASSWORD_FILE", "DELAYLINE_REPLICAS"] {
        assert!(short.contains(&format!("[env: {variable}]")), "{variable} is not in {short}");
    }
    let long = command.render_long_help().to_string();
    let words: Vec<_> = long.split([',', ' ', '\n']).collect();
    for variable in delayline_settings::variables() {
        assert!(words.contains(&variable.as_str()), "{variable} is not in {long}");
    }
}

#[test]
fn every_command_has_examples() {
    let cli = Cli::command();
    let nested = cli.get_subcommands().flat_map(|command| command.get_subcommands());
    for command in cli.get_subcommands().chain(nested) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(help.starts_with("Examples:"), "{} has no examples", command.get_name());
    }
    // Rendering adds a command, `help`.
    assert!({ cli }.render_long_help().to_string().contains("Exit codes: 0 done"));
}

#[test]
fn json_is_wanted_however_it_is_spelled() {
    let wanted = |typed: &str| wants_json(&typed.split(' ').map(OsString::from).collect::<Vec<_>>());
    for typed in ["key --json", "key -o json", "-ojson key", "key --output json", "key --output=json 90s"] {
        assert!(wanted(typed), "{typed}");
    }
    for typed in ["key", "key -o wide", "key -- --json", "key -o", "export --format json"] {
        assert!(!wanted(typed), "{typed}");
    }
}

#[test]
fn notices_a_password_in_a_url() {
    assert!(has_password("amqp://u:p@h"));
    for url in ["amqp://u@h", "amqp://h", "none", "http://h:15672"] {
        assert!(!has_password(url), "{url}");
    }
}

#[test]
fn numbers_say_what_they_may_be() {
    let rounds = whole::<u16>(1..);
    assert_eq!((rounds("1"), rounds("65535")), (Ok(1), Ok(65_535)));
    for (text, word) in [
        ("-3", "1 or more"),
        ("0", "a whole number, 1 or more"),
        ("x", "1 or more"),
        ("65536", "smaller"),
        ("", "1 or more"),
    ] {
        assert!(rounds(text).unwrap_err().contains(word), "{text}: {:?}", rounds(text));
    }
    let level = whole::<u8>(0..=9);
    assert_eq!((level("0"), level("9")), (Ok(0), Ok(9)));
    assert_eq!(level("10").unwrap_err(), "use a whole number from 0 to 9");
}

#[test]
fn a_flag_gets_its_negative_value() {
    let given = |typed: &str| {
        let given = with_negative_values(typed.split(' ').map(OsString::from));
        given.iter().map(|argument| argument.to_str().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
    };
    for (typed, expected) in [
        ("send --delay -5s --app a", "send --delay=-5s --app a"),
        ("bench --count -3", "bench --count=-3"),
        ("plan --rate -.5", "plan --rate=-.5"),
        ("send --delay=1s -5s", "send --delay=1s -5s"),
        ("key -5s billing", "key -5s billing"),
        ("send --json -v", "send --json -v"),
        ("decode -- --delay -5s", "decode -- --delay -5s"),
        ("send -- -5s", "send -- -5s"),
        ("send --delay -", "send --delay -"),
    ] {
        assert_eq!(given(typed), expected);
    }
}
