//! Differences between versions of RabbitMQ, as documented in `docs/reference/versions.md`.

use delayline_amqp::Session;
use delayline_broker::ManagementApi;
use delayline_client::router::Cause;
use delayline_core::{Message, codec::Delay};
use delayline_settings::Settings;

use crate::common::Counting;
use crate::common::{Inbox, PATIENCE, app, as_user, installed, permit};

/// The broker's major and minor version.
fn version(settings: &Settings) -> (u32, u32) {
    let api = ManagementApi::new(settings.management.as_ref().unwrap()).unwrap();
    let version = api.overview().unwrap().rabbitmq_version;
    let mut parts = version.split('.').map(|part| part.parse().unwrap());
    (parts.next().unwrap(), parts.next().unwrap())
}

#[test]
fn a_body_over_the_brokers_limit_fails_alone() {
    let settings = installed(1);
    let inbox = Inbox::open(&settings, "app");
    let router = settings.router().connect().unwrap();
    let publish = |size: usize| {
        router.publish(Message::after(app("app"), Delay::from_seconds(1).unwrap(), vec![7; size]))
    };
    let large = 17 * 1024 * 1024;
    let result = publish(large);
    publish(1).unwrap();
    let expected = match version(&settings) {
        // The limit is 128 MiB before 4.0, and 16 MiB from then on.
        (..4, _) => {
            result.unwrap();
            vec![1, large]
        }
        _ => {
            let error = result.unwrap_err();
            assert!(matches!(error.cause(), Cause::Rejected { code: 406, .. }), "{error}");
            vec![1]
        }
    };
    let mut sizes: Vec<_> = expected.iter().map(|_| inbox.next(PATIENCE).unwrap().body.len()).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, expected);
}

#[test]
fn the_rights_that_a_queue_depth_needs() {
    let settings = installed(1);
    let asks = |name: &str, configure: &str, write: &str| {
        permit(&settings.broker.vhost, name, [configure, write, "^$"]);
        let mut session = Session::open(&as_user(&settings, name).broker).unwrap();
        session.counts("delay.level.00").is_ok()
    };
    let allowed = [
        asks("nobody", "^$", "^delay$"),
        asks("writer", "^$", "^delay\\.level"),
        asks("owner", "^delay\\.level", "^$"),
    ];
    match version(&settings) {
        (..4, _) | (4, ..=1) => assert_eq!(allowed, [true, true, true]),
        // The user needs a right to the queue, no matter which.
        _ => assert_eq!(allowed, [false, true, true]),
    }
}
