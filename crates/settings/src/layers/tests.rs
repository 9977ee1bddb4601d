//! Tests of merged layers.

use std::{fs, num::NonZeroU8};

use delayline_amqp::broker::Credentials;
use delayline_core::topology::TopologySettings;
use url::Url;

use super::*;
use crate::settings::RouterSettings;

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, text).unwrap();
    file
}

fn variables(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|&(name, value)| (name.into(), value.into())).collect()
}

fn fails(layers: Layers) -> String {
    layers.build().expect_err("these settings should be refused").to_string()
}

#[test]
fn later_layers_win() {
    let file = file("url = \"amqp://file\"\nset = \"file\"\nwindow = 7\n");
    let settings = Layers::new()
        .with_file(Some(file.path()))
        .with_environment(variables(&[
            ("DELAYLINE_SET", "env"),
            ("DELAYLINE_URL", "amqp://env"),
            ("HOME", "/"),
        ]))
        .set("url", "amqp://flag")
        .build()
        .unwrap();
    assert_eq!(settings.broker.host, "flag");
    assert_eq!(settings.topology.set.as_str(), "env");
    assert_eq!(settings.router.window, 7);
}

#[test]
fn a_named_broker_comes_above_the_layer_that_names_it() {
    const FILE: &str = "
        set = 'later'
        url = 'amqp://here'
        password = 'hunter2'
        [brokers.prod]
        url = 'amqps://admin@prod'
        password_file = '/dev/null'
        replicas = 5
        [brokers.test]
        url = 'amqp://test'
    ";
    let of = |text: &str, pairs: &[(&str, &str)], flag: Option<&str>| {
        let file = file(text);
        let layers = Layers::new().with_file(Some(file.path())).with_environment(variables(pairs));
        let layers = match flag {
            Some(name) => layers.set("broker", name),
            None => layers,
        };
        layers.build()
    };
    let host = |pairs: &[(&str, &str)], flag| of(FILE, pairs, flag).unwrap().broker.host;
    assert_eq!(host(&[], None), "here");
    assert_eq!(host(&[], Some("test")), "test");
    assert_eq!(host(&[("DELAYLINE_BROKER", "test")], None), "test");
    assert_eq!(host(&[("DELAYLINE_BROKER", "test")], Some("prod")), "prod");
    // A layer with both an address and a name means the address. A flag with a name means the name.
    assert_eq!(host(&[("DELAYLINE_BROKER", "test"), ("DELAYLINE_URL", "amqp://there")], None), "there");
    assert_eq!(host(&[("DELAYLINE_URL", "amqp://there")], Some("prod")), "prod");
    assert_eq!(of(&format!("broker = 'test'\n{FILE}"), &[], None).unwrap().broker.host, "test");
    let path = file(FILE);
    let names = |path: &Path| Layers::new().with_file(Some(path)).broker_names();
    assert_eq!(names(path.path()).unwrap(), ["prod", "test"]);
    assert!(names(Path::new("/nowhere/at/all")).is_err());
    let prod = of(FILE, &[], Some("prod")).unwrap();
    assert_eq!((prod.topology.set.as_str(), prod.topology.replicas), ("later", NonZeroU8::new(5)));
    assert_eq!(prod.broker.credentials.username(), Some("admin"));
    // Another broker's password is not sent to this one.
    let test = of(FILE, &[], Some("test")).unwrap();
    let Credentials::Plain { password, .. } = test.broker.credentials else { panic!("no password") };
    assert_eq!(password.expose(), "guest");
    for (text, flag, words) in [
        (FILE, "prd", "no broker is called `prd`: the settings file has `prod`, `test`"),
        ("", "prod", "write [brokers.prod] into it"),
        ("[brokers.prod]\nurl = 'http://h'", "prod", "amqp"),
        ("[brokers.prod]\nulr = 'amqp://h'", "prod", "ulr"),
        ("[brokers.prod]\nbroker = 'test'", "prod", "[brokers.prod] has the key `broker`"),
    ] {
        let error = of(text, &[], Some(flag)).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn quotas_are_read() {
    let file = file("max_message_size = 65536\nmax_delay = \"30d billing=90d\"\n");
    let quota = Layers::new().with_file(Some(file.path())).build().unwrap().router.quota;
    assert_eq!(quota.max_message_size, Some(65_536));
    let days = |app: &str| quota.max_delay.of(&app.parse().unwrap()).map(|delay| delay.seconds() / 86_400);
    assert_eq!((days("billing"), days("x")), (Some(90), Some(30)));
    assert_eq!(Layers::new().build().unwrap().router.quota, Default::default());
    let variables = variables(&[("DELAYLINE_MAX_DELAY", "1h"), ("DELAYLINE_MAX_MESSAGE_SIZE", "0")]);
    let quota = Layers::new().with_environment(variables).build().unwrap().router.quota;
    assert_eq!(quota.max_message_size, Some(0));
    assert_eq!(quota.max_delay.default.map(|delay| delay.seconds()), Some(3_600));
}

#[test]
fn defaults_are_a_local_broker() {
    let settings = Layers::new().build().unwrap();
    assert_eq!(settings.broker.to_string(), "amqp://localhost:5672");
    assert_eq!(settings.management.unwrap().url.as_str(), "http://localhost:15672/");
    assert_eq!(settings.topology, TopologySettings::default());
    assert_eq!(settings.router, RouterSettings::default());
}

#[test]
fn numbers_come_as_text_from_the_environment() {
    let settings = Layers::new()
        .with_environment(variables(&[("DELAYLINE_REPLICAS", "3"), ("DELAYLINE_PASSWORD", "007")]))
        .build()
        .unwrap();
    assert_eq!(settings.topology.replicas, NonZeroU8::new(3));
    match settings.broker.credentials {
        Credentials::Plain { password, .. } => assert_eq!(password.expose(), "007"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn unknown_keys_are_named() {
    let file = file("windw = 7\n");
    let error = fails(Layers::new().with_file(Some(file.path())));
    let path = file.path().display().to_string();
    assert!(error.starts_with(&format!("{path}: line 1: no setting is called `windw`")), "{error}");
    for (text, words) in [
        ("set = 'a'\n\n[retry]\nx = 1\n", "line 3: no setting is called `retry`"),
        ("set = 'a'\n[brokers.b]\nurl = 'amqp://b'\nwindw = 7\n", "line 4: no setting is called `windw`"),
        ("set = 'a'\nbrokers.b.windw = 7\nz = 1", "line 2: no setting is called `windw`"),
        ("brokers = 1", "brokers"),
        ("heartbeat = 70000", "it is 70000; it must be a whole number from 0 to 65535"),
        ("window = -1", "it is -1; it must be a whole number, 0 or more"),
        ("canary_horizon = 300", "it is 300; it must be a whole number from 0 to 255"),
        ("window = 'x'", "the setting `window` is not usable: it is \"x\"; it must be a whole number"),
        (
            "[brokers.b]\nwindow = 'x'",
            "the setting `window` is not usable: in [brokers.b] it is \"x\"; it must be a whole",
        ),
    ] {
        let said = parse(text).unwrap_err();
        assert!(said.contains(words) && !said.contains("unknown field"), "{text}: {said}");
    }
    let error = fails(Layers::new().with_environment(variables(&[("DELAYLINE_WINDW", "7")])));
    assert!(error.contains("DELAYLINE_WINDW"), "{error}");
    // These two variables are delayline's own, but not settings.
    let ours = variables(&[("DELAYLINE_LOG", "debug"), ("DELAYLINE_CONFIG", "x")]);
    assert!(Layers::new().with_environment(ours).build().is_ok());
}

#[test]
fn variables_that_kubernetes_sets_for_this_name_are_no_settings() {
    let links = variables(&[
        ("DELAYLINE_SERVICE_HOST", "10.0.0.1"),
        ("DELAYLINE_SERVICE_PORT", "80"),
        ("DELAYLINE_SERVICE_PORT_HTTP_WEB", "80"),
        ("DELAYLINE_PORT", "tcp://10.0.0.1:80"),
        ("DELAYLINE_PORT_80_TCP", "tcp://10.0.0.1:80"),
        ("DELAYLINE_PORT_80_TCP_PROTO", "tcp"),
        ("DELAYLINE_PORT_80_TCP_PORT", "80"),
        ("DELAYLINE_PORT_80_TCP_ADDR", "10.0.0.1"),
        ("DELAYLINE_WEB_SERVICE_HOST", "10.0.0.1"),
        ("DELAYLINE_WEB_PORT", "tcp://10.0.0.1:80"),
        ("DELAYLINE_WEB_PORT_443_UDP", "udp://10.0.0.1:443"),
    ]);
    Layers::new().with_environment(links).build().unwrap();
    for mistaken in [("DELAYLINE_PORT", "5672"), ("DELAYLINE_PORT_HTTP", "80"), ("DELAYLINE_HOST", "h")] {
        let error = fails(Layers::new().with_environment(variables(&[mistaken])));
        assert!(error.contains(mistaken.0), "{error}");
    }
}

/// The environment overrides the file, so a variable of the image would override the manifest.
#[test]
fn in_the_image_the_settings_of_the_manifests_apply() {
    let read = |name: &str| {
        fs::read_to_string(format!("{}/../../packaging/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
    };
    let image = read("container/Dockerfile");
    let set = image.lines().filter_map(|line| line.strip_prefix("ENV ")?.split_once('='));
    let set: Vec<_> = set.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let secret = file("secret");
    let secrets = ["password", "token"].map(|name| format!("/run/secrets/delayline/{name}"));
    let text = secrets.iter().fold(read("kubernetes/delayline.toml"), |text, path| {
        text.replace(path, secret.path().to_str().unwrap())
    });
    let manifest = file(&text);
    let settings = Layers::new().with_file(Some(manifest.path())).with_environment(set).build().unwrap();
    let probed = read("kubernetes/serve.yaml");
    let port = settings.web.listen.unwrap().port();
    assert!(settings.web.listen.unwrap().ip().is_unspecified());
    assert!(probed.contains(&format!("containerPort: {port}")), "{probed}");
    // The labels of every series.
    let monitored = read("kubernetes/monitoring/servicemonitor.yaml");
    for (label, value) in [("vhost", &*settings.broker.vhost), ("set", settings.topology.set.as_str())] {
        let line = format!("{{ targetLabel: {label}, replacement: {value} }}");
        assert!(monitored.contains(&line), "{line} in {monitored}");
    }
}

#[test]
fn every_key_can_be_deserialized() {
    for key in KEYS {
        let error = Layers::new().set(key, "").build().err().map(|error| error.to_string());
        assert!(!error.clone().unwrap_or_default().contains("unknown field"), "{key}: {error:?}");
    }
}

#[test]
fn mistyped_values_are_named() {
    for (key, text) in [
        ("heartbeat", "0"),
        ("heartbeat", "often"),
        ("window", "0"),
        ("replicas", "0"),
        ("unit_ms", "2000"),
        ("queue_type", "mirrored"),
        ("set", "two words"),
        ("connect_timeout", "soon"),
        ("request_timeout", "10ms"),
        ("publish_timeout", "0s"),
        ("confirm_timeout", "never"),
        ("max_message_size", "big"),
        ("max_delay", "30d billing"),
        ("max_recalls", "many"),
        ("password_file", "/nowhere/at/all"),
        ("client_cert_file", "cert.pem"),
        ("url", "localhost"),
        ("other_hosts", "amqp://h"),
        ("management_url", "http://h,"),
        ("management_url", "amqp://h"),
        ("web_listen", "15628"),
        ("web_token_file", "/nowhere/at/all"),
        ("canary", "perhaps"),
        ("canary_interval", "100ms"),
        ("canary_horizon", "10"),
        ("serve_url", "localhost:15628"),
        ("serve_url", "http://me:secret@localhost"),
        ("index_headers", "a,b,c,d,e,f,g,h,i"),
        ("index_bytes", "9"),
    ] {
        let error = fails(Layers::new().set(key, text));
        let named = error.contains(key) || (key == "client_cert_file" && error.contains("client_key_file"));
        assert!(named, "{key} = {text}: {error}");
    }
}

#[test]
fn passwords_come_from_one_place_and_stay_hidden() {
    let secret = file("hunter2\n");
    let path = secret.path().to_str().unwrap();
    let settings = Layers::new().set("username", "app").set("password_file", path).build().unwrap();
    match &settings.broker.credentials {
        Credentials::Plain { password, .. } => assert_eq!(password.expose(), "hunter2"),
        other => panic!("{other:?}"),
    }
    assert!(!format!("{settings:?}").contains("hunter2"));
    let both = Layers::new().set("password_file", path).set("password", "x");
    assert!(fails(both).contains("password_file"));
    assert!(fails(Layers::new().set("username", "app")).contains("DELAYLINE_PASSWORD"));
}

#[test]
fn a_later_layer_wins_for_passwords_in_every_form() {
    let secret = file("flag\n");
    let path = secret.path().to_str().unwrap();
    let plain = |layers: Layers| match layers.build().unwrap().broker.credentials {
        Credentials::Plain { username, password } => (username, password.expose().to_owned()),
        other => panic!("{other:?}"),
    };
    let env = |pairs: &[(&str, &str)]| Layers::new().with_environment(variables(pairs));
    let is = |layers, username: &str, password: &str| {
        assert_eq!(plain(layers), (username.to_owned(), password.to_owned()));
    };
    // A flag over the environment.
    is(env(&[("DELAYLINE_PASSWORD", "env")]).set("password_file", path), "guest", "flag");
    is(env(&[("DELAYLINE_URL", "amqp://u:env@h")]).set("password_file", path), "u", "flag");
    is(env(&[("DELAYLINE_PASSWORD_FILE", "/nowhere")]).set("password", "flag"), "guest", "flag");
    let both = [("DELAYLINE_USERNAME", "env"), ("DELAYLINE_PASSWORD", "env")];
    is(env(&both).set("url", "amqp://flag@h"), "flag", "env");
    is(env(&both).set("url", "amqp://h"), "env", "env");
    is(env(&both).set("url", "amqp://flag:too@h"), "flag", "too");
    is(env(&[("DELAYLINE_URL", "amqp://u:p@h")]).set("username", "flag"), "flag", "p");
    // The environment over the file.
    let toml = file("username = \"toml\"\npassword = \"toml\"\n");
    let over = |pairs: &[(&str, &str)]| env(pairs).with_file(Some(toml.path()));
    is(over(&[]), "toml", "toml");
    is(over(&[("DELAYLINE_PASSWORD_FILE", path)]), "toml", "flag");
    is(over(&[("DELAYLINE_URL", "amqp://env:env@h")]), "env", "env");
    is(over(&[("DELAYLINE_URL", "amqp://env@h")]), "env", "toml");
    // Within one layer, only one form is allowed.
    let both = [("DELAYLINE_PASSWORD", "x"), ("DELAYLINE_PASSWORD_FILE", path)];
    assert!(fails(env(&both)).contains("password_file"));
    is(env(&both).set("password_file", path), "guest", "flag");
    // The same for the other secrets.
    let app = env(&[("DELAYLINE_APP_PASSWORD", "env")]).set("app_password_file", path);
    assert_eq!(app.build().unwrap().app_password.unwrap().expose(), "flag");
    let token = file("a token that is long enough\n");
    let web = env(&[("DELAYLINE_WEB_TOKEN", "another that is long enough")])
        .set("web_token_file", token.path().to_str().unwrap());
    assert_eq!(web.build().unwrap().web.token.unwrap().expose(), "a token that is long enough");
}

#[test]
fn a_file_that_cannot_be_parsed_is_not_quoted() {
    for text in
        ["password = \"hunter2", "password = hunter2", "password = [\"hunter2\"]", "x = 1\npassword: hunter2"]
    {
        let file = file(text);
        let error = fails(Layers::new().with_file(Some(file.path())));
        assert!(!error.contains("hunter2"), "{error}");
        assert!(error.len() > file.path().display().to_string().len() + 10, "{error}");
    }
}

#[test]
fn a_client_certificate_alone_logs_in() {
    let layers = || Layers::new().set("client_cert_file", "c").set("client_key_file", "k");
    let settings = layers().set("url", "amqps://h").build().unwrap();
    assert!(matches!(settings.broker.credentials, Credentials::External));
    assert!(settings.management.is_none());
    let settings = layers().set("url", "amqps://u:p@h").build().unwrap();
    assert!(matches!(settings.broker.credentials, Credentials::Plain { .. }));
}

#[test]
fn layouts_are_separated_by_commas() {
    let named = |text: &str| Layers::new().set("layouts", text).build();
    let names = |text: &str| {
        let layouts = named(text).unwrap().layouts;
        layouts.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(names("nservicebus, celery:eu,nservicebus"), ["nservicebus", "celery:eu"]);
    assert!(Layers::new().build().unwrap().layouts.is_empty());
    for wrong in ["", "celery,", "masstransit"] {
        let error = named(wrong).unwrap_err().to_string();
        assert!(error.contains("`layouts`") && error.contains("celery:PREFIX"), "{error}");
    }
}

#[test]
fn the_management_api_is_derived_only_beside_the_default_port() {
    let url = |text: &str| {
        let management = Layers::new().set("url", text).build().unwrap().management;
        management.map(|management| management.url.to_string())
    };
    assert_eq!(url("amqp://h").as_deref(), Some("http://h:15672/"));
    assert_eq!(url("amqps://h").as_deref(), Some("https://h:15671/"));
    assert_eq!(url("amqp://[::1]").as_deref(), Some("http://[::1]:15672/"));
    assert_eq!(url("amqp://h:5999"), None);
    let others = Layers::new().set("url", "amqp://a").set("other_hosts", "b,c:5999").build().unwrap();
    assert_eq!(delayline_amqp::broker::candidates(&others.broker).count(), 3);
    let management = others.management.unwrap();
    assert_eq!(management.other_urls.iter().map(Url::as_str).collect::<Vec<_>>(), ["http://b:15672/"]);
    assert!(Layers::new().set("management_url", "none").build().unwrap().management.is_none());
}

#[test]
fn debug_output_shows_no_value() {
    let layers = Layers::new()
        .with_environment([("DELAYLINE_PASSWORD".to_owned(), "hunter2".to_owned())])
        .set("url", "amqp://me:hunter2@localhost");
    let shown = format!("{layers:?}");
    assert!(shown.contains("DELAYLINE_PASSWORD") && shown.contains("url"), "{shown}");
    let raw = format!("{:?}", parse("password = 'hunter2'").unwrap());
    assert!(!shown.contains("hunter2") && !raw.contains("hunter2"), "{shown} {raw}");
}
