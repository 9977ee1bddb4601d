//! Single causes of a failure: each has the same error in every command.

use delayline_amqp::Session;
use predicates::{prelude::PredicateBooleanExt, str::contains};

use super::ready;
use crate::{
    common::{installed, shared_node, vhost},
    delayline, on,
};

#[test]
fn without_a_set_no_application_is_to_blame() {
    let nothing = vhost().build().unwrap();
    for words in [
        &["scheduled", "list", "--app", "shop"][..],
        &["held", "list", "--kind", "recalled", "--app", "shop"],
        &["scheduled", "list", "--recalls", "--app", "shop"],
        &["held", "replay", "--kind", "unroutable", "--app", "shop"],
    ] {
        on(&nothing).args(words).assert().stderr(contains("is the set installed?"));
    }
}

#[test]
fn one_message_and_one_of_many_end_alike() {
    let settings = installed(1_000);
    let send = |more: &[&str], input: &'static str| {
        let mut send = on(&settings);
        send.args(["send", "--app", "a", "--delay", "1s"]).args(more).write_stdin(input).assert()
    };
    // A message that is too large to be sent.
    let long: &'static str = "100000000 characters\n";
    let limited = |more: &[&str]| {
        let mut send = on(&settings);
        send.args(["send", "--app", "a", "--delay", "1s"]).args(more).env("DELAYLINE_MAX_MESSAGE_SIZE", "5");
        send.write_stdin(long).assert()
    };
    limited(&[]).code(2);
    limited(&["--lines"]).code(2);
    send(&["--jsonl"], "{\"body\": \"good\"}\nnonsense\n").code(2).stdout(contains("1 confirmed, 1 failed"));
    // Messages that the broker did not confirm, together with lines that could not be sent.
    let mut session = Session::open(&settings.broker).unwrap();
    session.delete_exchange("delay").unwrap();
    send(&["--body", "x"], "").code(3);
    send(&["--lines"], "x\ny\n").code(3).stderr(contains("delayline install"));
    send(&["--jsonl"], "{\"body\": \"good\"}\nnonsense\n").code(3).stderr(contains("delayline install"));
}

#[test]
fn a_missing_password_is_wrong_usage_wherever_it_is_missed() {
    let settings = installed(1_000);
    for command in ["add", "check"] {
        let mut it = on(&settings);
        it.args(["app", command, "newcomer"]).env_remove("DELAYLINE_APP_PASSWORD");
        let ended = it.assert().code(2);
        let said =
            [&ended.get_output().stdout, &ended.get_output().stderr].map(|it| String::from_utf8_lossy(it));
        assert!(said.concat().contains("DELAYLINE_APP_PASSWORD"), "{command}: {said:?}");
    }
}

#[test]
fn a_command_that_needs_the_management_api_is_wrong_usage_without_it() {
    let settings = installed(1_000);
    let needy = [
        "app remove",
        "app pause",
        "app resume",
        "app list",
        "app show",
        "gateway add",
        "gateway list",
        "gateway check",
        "gateway remove",
        "guard add",
        "transfer",
        "doctor",
        "unstick",
    ];
    for command in needy {
        let mut it = ready(&settings, command);
        it.env("DELAYLINE_MANAGEMENT_URL", "none");
        it.assert().code(2).stderr(
            contains("needs the management API, which alone ")
                .and(contains("(--management-url; it is guessed only where AMQP uses a default port)")),
        );
    }
}

#[test]
fn errors_in_settings_are_reported_with_advice() {
    let node = &shared_node();
    let run = |variables: &[(&str, &str)]| {
        let mut it = delayline();
        it.arg("verify").envs(variables.iter().copied()).env("DELAYLINE_CONNECT_TIMEOUT", "5s");
        it.assert()
    };
    run(&[("DELAYLINE_URL", "broker.example")])
        .code(2)
        .stderr(contains("write amqp://USER@HOST:5672/VHOST").and(contains("relative URL").not()));
    // The error names its cause only once.
    run(&[("DELAYLINE_URL", "amqp://h:99999")]).code(2).stderr(
        "error: the setting `url` is not usable: its port is not a number from 0 to 65535; write \
         amqp://USER@HOST:5672/VHOST\n",
    );
    run(&[("DELAYLINE_MANAGEMENT_URL", "broker:x")]).code(2).stderr(contains("write http://HOST:15672"));
    // TLS to a server that does not support it.
    let secure = node.url().replace("amqp://", "amqps://");
    run(&[("DELAYLINE_URL", &secure)]).code(3).stderr(
        contains("does not speak TLS").and(contains("amqp://")).and(contains("InvalidContentType").not()),
    );
    // Without the management API, the command checks as much as possible, and reports which checks
    // it skipped.
    let secure = node.management_url().replace("http://", "https://");
    let url = format!("{}/{}", node.url(), installed(1_000).broker.vhost);
    run(&[("DELAYLINE_URL", &url), ("DELAYLINE_UNIT_MS", "1000"), ("DELAYLINE_MANAGEMENT_URL", &secure)])
        .stdout(
            contains("not checked")
                .and(contains("does not speak TLS"))
                .and(contains("InvalidContentType").not()),
        );
    // A vhost that does not exist, with a name that needs quoting in a shell.
    let url = format!("{}/it%27s%20new", node.url());
    run(&[("DELAYLINE_URL", &url)]).code(3).stderr(contains(r"rabbitmqctl add_vhost 'it'\''s new'"));
}
