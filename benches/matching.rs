//! What a topic match costs inside the broker: of a set, of NServiceBus' layout alone, and of
//! NServiceBus' layout with a set beside it. A broker keeps the patterns of all its topic
//! exchanges in one table, so each slows down the others.
//!
//!     cargo bench --bench matching
//!     RABBITMQ_ROOT=… cargo bench --bench matching     for another version

use std::fmt::Write as _;

use delayline_admin as admin;
use delayline_amqp::Session;
use delayline_core::{
    codec::{AppKey, Delay, Level, RoutingKey},
    topology::{Binding, Endpoint, Exchange, ExchangeKind, Queue, Topology},
};
use delayline_node::{NodeOptions, PrivateNode};

/// Matches in one go, and how often; the fastest counts.
const MATCHES: u32 = 20_000;
const ROUNDS: u32 = 7;

/// 90 s: bits 6, 4, 3 and 1.
const DELAY: u64 = 90;

const DELIVERY: &str = "nsb.v2.delay-delivery";
const TARGET: &str = "inbox";

fn main() {
    // `cargo test --benches` only wants to see that it starts.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let node = PrivateNode::start(NodeOptions::default()).expect("a private node");
    let settings = node.settings().build().expect("settings");
    let mut session = Session::open(&settings.broker).expect("a connection");
    let version = session.server_version().unwrap_or_default();
    println!("RabbitMQ {version}, {MATCHES} matches {ROUNDS} times, the fastest counts, us for each\n");
    let queue = Queue::new(TARGET);
    session.declare_queue(&queue).expect("a queue");
    nservicebus(&mut session);
    let theirs = || {
        let bits: String = (0..28).rev().map(|bit| if DELAY >> bit & 1 == 1 { "1." } else { "0." }).collect();
        measure(&node, &level(6), &format!("{bits}{TARGET}"))
    };
    let alone = theirs();
    let topology = Topology::new(settings.topology.clone());
    admin::install(&settings, &topology, false, || {}).expect("a set");
    let beside = theirs();
    let app = AppKey::new(TARGET).expect("an app key");
    session.bind(&topology.app_binding(&app, TARGET)).expect("a binding");
    let key = RoutingKey::new(Delay::from_seconds(DELAY).expect("a delay"), app).encode();
    let names = topology.names();
    println!("NServiceBus, level 06, alone              {alone:6.1}");
    println!("the same with a set beside it             {beside:6.1}  ({:.2} times)", beside / alone);
    println!("the set's entry, with NServiceBus beside  {:6.1}", measure(&node, &names.entry(), &key));
    // Where the message goes from the queue of its highest bit.
    let five = Level::try_from(5).expect("a level");
    println!(
        "the set's level 05                        {:6.1}",
        measure(&node, &names.level_exchange(five), &key)
    );
    println!("the set's dispatch                        {:6.1}", measure(&node, &names.dispatch(), &key));
}

fn level(number: u32) -> String {
    format!("nsb.v2.delay-level-{number:02}")
}

/// The exchanges and bindings of NServiceBus' delays; its queues match nothing.
fn nservicebus(session: &mut Session) {
    let mut exchange = |name: String| {
        let exchange = Exchange::new(name, ExchangeKind::Topic);
        session.declare_exchange(&exchange).expect("an exchange");
    };
    exchange(DELIVERY.into());
    (0..28).for_each(|number| exchange(level(number)));
    let mut bind = |source: String, destination: Endpoint, key: String| {
        session.bind(&Binding { source, destination, key }).expect("a binding");
    };
    for number in 0..28_u32 {
        let above = "*.".repeat(27 - number as usize);
        let below = number.checked_sub(1).map_or_else(|| DELIVERY.to_owned(), level);
        bind(level(number), Endpoint::Queue(TARGET.into()), format!("{above}1.#"));
        bind(level(number), Endpoint::Exchange(below), format!("{above}0.#"));
    }
    bind(DELIVERY.into(), Endpoint::Queue(TARGET.into()), format!("#.{TARGET}"));
}

/// How long one match takes, in µs.
fn measure(node: &PrivateNode, exchange: &str, key: &str) -> f64 {
    let mut code = String::new();
    // Since 3.12 the table has a module of its own; before, the exchange type was asked.
    let _ = write!(
        code,
        r#"X = rabbit_misc:r(<<"/">>, exchange, <<"{exchange}">>), K = <<"{key}">>,
        _ = code:ensure_loaded(rabbit_db_topic_exchange),
        Has = fun(Arity) -> erlang:function_exported(rabbit_db_topic_exchange, match, Arity) end,
        Match = case {{Has(2), Has(3)}} of
            {{true, _}} -> fun() -> rabbit_db_topic_exchange:match(X, K) end;
            {{_, true}} -> fun() -> rabbit_db_topic_exchange:match(X, K, #{{}}) end;
            _ ->
                {{ok, E}} = rabbit_exchange:lookup(X),
                M = {{basic_message, X, [K], undefined, <<>>, true}},
                D = {{delivery, false, false, self(), M, undefined, noflow}},
                fun() -> rabbit_exchange_type_topic:route(E, D) end
        end,
        [_ | _] = Match(),
        Once = fun() -> element(1, timer:tc(fun() -> [Match() || _ <- lists:seq(1, {MATCHES})], ok end)) end,
        lists:min([Once() || _ <- lists:seq(1, {ROUNDS})]) / {MATCHES}.0."#
    );
    let output = node.ctl(&["eval", &code]).expect("rabbitmqctl");
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().unwrap_or_else(|_| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}
