//! Passwords that change while programs run.

use std::fs;

use delayline_amqp::{
    Session,
    broker::{Credentials, Secret},
};
use delayline_broker::ManagementApi;
use serde_json::json;

use crate::common::{Inbox, PATIENCE, app, as_user, http, installed, permit, shared_node};

#[test]
fn a_password_is_read_again_from_its_file_for_every_login() {
    let settings = installed(10);
    let vhost = &settings.broker.vhost;
    let user = format!("rotated-in-{vhost}");
    permit(vhost, &user, [".*", ".*", ".*"]);
    let becomes = |password: &str| {
        let body = json!({ "password": password, "tags": "monitoring" });
        http(&shared_node(), "PUT", &format!("users/{user}"), &body);
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    let write = |password: &str| fs::write(&file, format!("{password}\n")).unwrap();
    becomes("first");
    write("first");
    let secret = Secret::from_file(file.path()).unwrap();
    let mut theirs = as_user(&settings, &user);
    theirs.broker.credentials = Credentials::plain(&user, secret.clone());
    let mut management = settings.management.clone().unwrap();
    (management.username, management.password) = (user.clone(), secret);
    let api = ManagementApi::new(&management).unwrap();
    api.nodes().unwrap();
    Session::open(&theirs.broker).unwrap();

    becomes("second");
    assert!(Session::open(&theirs.broker).is_err() && api.nodes().is_err(), "the old password still works");
    write("second");
    api.nodes().unwrap();
    let inbox = Inbox::open(&theirs, "app");
    let message = delayline_core::Message::after(app("app"), delayline_core::codec::Delay::ZERO, "x");
    theirs.router().connect().unwrap().publish(message).unwrap();
    assert_eq!(inbox.next(PATIENCE).unwrap().body, b"x");
}
