//! TLS to a node with real certificates.

use std::{fs, path::PathBuf, process::Command};

use delayline_admin as admin;
use delayline_amqp::{AmqpError, Session};
use delayline_broker::{ManagementApi, ManagementError};
use delayline_core::{Message, codec::Delay};
use delayline_node::{FreePort, NodeOptions, NodeTls, PrivateNode};
use delayline_settings::Layers;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use tempfile::TempDir;

use crate::common::{Inbox, PATIENCE, app, eventually, install, topology};

pub(crate) struct Pki {
    directory: TempDir,
    ca: CertifiedIssuer<'static, KeyPair>,
}

impl Pki {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(DnType::CommonName, "test authority");
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let pki = Self { directory: TempDir::new().unwrap(), ca };
        pki.write("ca.pem", &pki.ca.pem());
        pki
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Issues a certificate; returns the paths of the certificate and its key.
    pub(crate) fn issue(&self, name: &str, host: Option<&str>, expired: bool) -> (PathBuf, PathBuf) {
        let mut params =
            CertificateParams::new(host.map(str::to_owned).into_iter().collect::<Vec<_>>()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        if expired {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2021, 1, 1);
        }
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.ca).unwrap();
        self.write(&format!("{name}.pem"), &certificate.pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
        (self.path(&format!("{name}.pem")), self.path(&format!("{name}.key")))
    }

    pub(crate) fn node(
        &self,
        server: (PathBuf, PathBuf),
        require_client_cert: bool,
        more: &str,
    ) -> PrivateNode {
        let logins =
            "auth_mechanisms.1 = PLAIN\nauth_mechanisms.2 = EXTERNAL\nssl_cert_login_from = common_name\n";
        PrivateNode::start(NodeOptions {
            tls: Some(NodeTls {
                ca_file: self.path("ca.pem"),
                cert_file: server.0,
                key_file: server.1,
                require_client_cert,
            }),
            plugins: vec!["rabbitmq_auth_mechanism_ssl".into()],
            config: format!("{logins}{more}"),
            ..NodeOptions::default()
        })
        .unwrap()
    }

    fn layers(&self, node: &PrivateNode) -> Layers {
        node.settings().set("url", node.tls_url()).set("ca_file", self.path("ca.pem").to_str().unwrap())
    }
}

fn fails(layers: Layers) -> AmqpError {
    Session::open(&layers.build().unwrap().broker).expect_err("this must not connect")
}

#[test]
fn a_server_is_verified_over_amqp_and_http() {
    let pki = Pki::new();
    let (cert, key) = pki.issue("localhost", Some("localhost"), false);
    let free = FreePort::claim().unwrap();
    let mut config = format!("management.ssl.ip = 127.0.0.1\nmanagement.ssl.port = {}\n", free.number());
    for (name, path) in
        [("cacertfile", pki.path("ca.pem")), ("certfile", cert.clone()), ("keyfile", key.clone())]
    {
        config += &format!("management.ssl.{name} = {}\n", path.display());
    }
    let node = pki.node((cert, key), false, &config);
    // First, while no set is installed.
    an_unverified_server_is_refused(&pki, &node);
    the_management_api_is_verified_as_well(&pki, &node, free.number());
    verified_connections_carry_messages_of_any_size(&pki, &node);
}

fn verified_connections_carry_messages_of_any_size(pki: &Pki, node: &PrivateNode) {
    let settings = pki.layers(node).set("unit_ms", "1").build().unwrap();
    install(&settings);
    assert_eq!(admin::verify(&settings, &topology(&settings)).unwrap().findings, []);
    let inbox = Inbox::open(&settings, "app");
    let router = settings.router().connect().unwrap();
    let mut pipeline = router.pipeline();
    // Sizes around a TLS record of 16 KiB, and far larger than the socket's buffer.
    let sizes = [0, 1, 16_383, 16_384, 16_385, 100_000, 5_000_000];
    for tag in 0..200 {
        let body = vec![b'x'; sizes[tag % sizes.len()]];
        let message = Message::after(app("app"), Delay::from_seconds(5).unwrap(), body);
        assert!(pipeline.push(tag, message).is_none_or(|outcome| outcome.result.is_ok()));
    }
    assert!(pipeline.all(|outcome| outcome.result.is_ok()));
    let arrivals = inbox.collect(200, PATIENCE);
    let sum = |lengths: &mut dyn Iterator<Item = usize>| lengths.sum::<usize>();
    assert_eq!(
        sum(&mut arrivals.iter().map(|arrival| arrival.body.len())),
        sum(&mut (0..200).map(|tag| sizes[tag % sizes.len()]))
    );
}

fn the_management_api_is_verified_as_well(pki: &Pki, node: &PrivateNode, port: u16) {
    let ask = |url: String, ca: &Pki| {
        let layers =
            node.settings().set("management_url", url).set("ca_file", ca.path("ca.pem").to_str().unwrap());
        let settings = layers.build().unwrap();
        ManagementApi::new(settings.management.as_ref().unwrap()).unwrap().overview()
    };
    eventually("the management API answers", || ask(format!("https://localhost:{port}"), pki).is_ok());
    let other = Pki::new();
    for (url, ca) in
        [(format!("https://localhost:{port}"), &other), (format!("https://127.0.0.1:{port}"), pki)]
    {
        let error = ask(url, ca).unwrap_err();
        assert!(matches!(error, ManagementError::Unreachable { .. }), "{error}");
        assert!(error.to_string().contains("ertificate"), "{error}");
    }
}

fn an_unverified_server_is_refused(pki: &Pki, node: &PrivateNode) {
    // Another authority, the system's authorities, another host name, and a server without TLS.
    let other = Pki::new();
    let error = fails(
        node.settings().set("url", node.tls_url()).set("ca_file", other.path("ca.pem").to_str().unwrap()),
    );
    assert!(matches!(error, AmqpError::Tls { .. }), "{error}");
    let error = fails(node.settings().set("url", node.tls_url()));
    assert!(matches!(error, AmqpError::Tls { .. }), "{error}");
    let error = fails(pki.layers(node).set("url", node.tls_url().replace("localhost", "127.0.0.1")));
    assert!(matches!(&error, AmqpError::Tls { reason, .. } if reason.contains("name")), "{error}");
    let error =
        fails(pki.layers(node).set("url", node.url().replace("amqp://127.0.0.1", "amqps://localhost")));
    assert!(matches!(error, AmqpError::Tls { .. }), "{error}");
    let error = fails(pki.layers(node).set("ca_file", "/nowhere.pem"));
    assert!(error.to_string().contains("/nowhere.pem"), "{error}");

    // The system's authorities are accepted if they have signed the node's certificate.
    // SSL_CERT_FILE sets them on any system.
    let verify = |authority: &Pki| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_delayline"));
        command.args(["verify", "--management-url", "none", "--url", &node.tls_url()]);
        command.env("SSL_CERT_FILE", authority.path("ca.pem")).env_remove("SSL_CERT_DIR").current_dir("/");
        command.output().unwrap()
    };
    let trusted = verify(pki);
    assert!(String::from_utf8_lossy(&trusted.stdout).contains("not installed"), "{trusted:?}");
    let distrusted = verify(&other);
    assert_eq!(distrusted.status.code(), Some(3), "{distrusted:?}");
    assert!(String::from_utf8_lossy(&distrusted.stderr).contains("TLS"), "{distrusted:?}");
}

#[test]
fn nothing_switches_the_verification_off() {
    for name in ["VERIFY", "TLS_VERIFY", "INSECURE", "SKIP_VERIFY", "TLS_INSECURE"] {
        let variable = (format!("DELAYLINE_{name}"), "false".to_owned());
        assert!(Layers::new().with_environment([variable]).build().is_err(), "{name}");
    }
    for query in ["?verify=verify_none", "?fail_if_no_peer_cert=false", "?server_name_indication=disable"] {
        assert!(Layers::new().set("url", format!("amqps://localhost{query}")).build().is_err(), "{query}");
    }
    // The management URL that is derived from a TLS connection also uses TLS.
    let settings = Layers::new().set("url", "amqps://localhost").build().unwrap();
    assert_eq!(settings.management.unwrap().url.scheme(), "https");
}

#[test]
fn an_expired_certificate_is_refused() {
    let pki = Pki::new();
    let node = pki.node(pki.issue("localhost", Some("localhost"), true), false, "");
    let error = fails(pki.layers(&node));
    assert!(matches!(&error, AmqpError::Tls { reason, .. } if reason.contains("xpired")), "{error}");
}

#[test]
fn a_client_certificate_logs_in() {
    let pki = Pki::new();
    let node = pki.node(pki.issue("localhost", Some("localhost"), false), true, "");
    let (certificate, key) = pki.issue("operator", None, false);
    for arguments in
        [&["add_user", "operator", "unused"][..], &["set_permissions", "operator", ".*", ".*", ".*"]]
    {
        node.tell(arguments).unwrap();
    }
    let with_certificate = || {
        pki.layers(&node)
            .set("management_url", "none")
            .set("client_cert_file", certificate.to_str().unwrap())
            .set("client_key_file", key.to_str().unwrap())
    };
    install(&with_certificate().build().unwrap());
    // The node ends the handshake if the client has no certificate, or one from another authority.
    let error = fails(pki.layers(&node));
    assert!(matches!(error, AmqpError::Tls { .. } | AmqpError::Unreachable { .. }), "{error}");
    let other = Pki::new();
    let (certificate, key) = other.issue("operator", None, false);
    let error = fails(
        with_certificate()
            .set("client_cert_file", certificate.to_str().unwrap())
            .set("client_key_file", key.to_str().unwrap()),
    );
    assert!(matches!(error, AmqpError::Tls { .. } | AmqpError::Unreachable { .. }), "{error}");
    // A valid certificate of an unknown user is a refused login.
    let (certificate, key) = pki.issue("stranger", None, false);
    let error = fails(
        with_certificate()
            .set("client_cert_file", certificate.to_str().unwrap())
            .set("client_key_file", key.to_str().unwrap()),
    );
    assert!(matches!(error, AmqpError::Refused { .. }), "{error:?}");
}
