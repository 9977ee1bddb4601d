//! How many bits to write in a word of the routing key: the layouts that were tried, each on a
//! node of its own, since a broker keeps the patterns of all its exchanges in one table.
//!
//!     cargo bench --bench words                     with RabbitMQ's own settings
//!     cargo bench --bench words -- 512              with this prefetch of dead-lettering
//!     RABBITMQ_ROOT=… cargo bench --bench words     for another version
//!
//! The figure to trust is the broker's CPU time per message, for the whole way from the
//! publisher to the consumer: it hardly moves with what else the machine does.

#[path = "common/bare.rs"]
mod bare;
#[path = "common/prefetch.rs"]
mod prefetch;

use std::{
    thread,
    time::{Duration, Instant},
};

use bare::Bare;
use delayline_amqp::{Next, Session};
use delayline_core::{
    codec::Level,
    topology::{Argument, Binding, Endpoint, Names, Object, Queue, Topology, Unit},
};
use delayline_node::{NodeOptions, PrivateNode};
use delayline_settings::Settings;
use prefetch::Prefetch;

const BODY: usize = 256;
const MESSAGES: u64 = 8_000;
const LEVELS: u32 = 28;
const APP: &str = "bench";

/// Odd, so that there is one in the middle.
const ROUNDS: usize = 3;

/// One, three and six hops. The unit is such that all are published before any is due.
const DELAYS: [u32; 3] = [0b1000_0000, 0b1100_0001, 0b1111_1100];
const UNIT_MS: u16 = 25;

/// A way to write the bits and to bind the levels.
#[derive(Clone, Copy)]
struct Layout {
    name: &'static str,
    /// Bits in a word.
    width: u32,
    /// Whether the exchange of a level decides only about its own word, and hands over.
    hands_over: bool,
    /// Whether a pattern asks for every word of the delay, or ends behind what it looks at.
    exact: bool,
}

const LAYOUTS: [Layout; 7] = [
    Layout { name: "1 bit", width: 1, hands_over: true, exact: true },
    Layout { name: "2 bits", width: 2, hands_over: true, exact: true },
    Layout { name: "2 bits, no handing over", width: 2, hands_over: false, exact: true },
    Layout { name: "4 bits", width: 4, hands_over: true, exact: true },
    Layout { name: "4 bits, no handing over", width: 4, hands_over: false, exact: true },
    Layout { name: "4 bits, short patterns", width: 4, hands_over: true, exact: false },
    Layout { name: "7 bits", width: 7, hands_over: true, exact: true },
];

impl Layout {
    fn words(self) -> u32 {
        LEVELS / self.width
    }

    fn word(self, value: u32) -> String {
        format!("{value:0width$b}.", width = self.width as usize)
    }

    fn key(self, delay: u32) -> String {
        let mask = (1 << self.width) - 1;
        let words = (0..self.words()).rev().map(|word| self.word(delay >> (word * self.width) & mask));
        format!("delay.{}{APP}", words.collect::<String>())
    }

    /// The bindings of a level's exchange.
    fn bindings(self, names: &Names, level: u32) -> Vec<Binding> {
        let (word, bit) = (level / self.width, level % self.width);
        let queue = |word: u32, value: u32| {
            Endpoint::Queue(names.level_queue(numbered(word * self.width + value.ilog2())))
        };
        let above = "*.".repeat((self.words() - 1 - word) as usize);
        let bind = |words: String, below: u32, destination: Endpoint| {
            let rest = if self.exact { "*.".repeat(below as usize) + "*.#" } else { "#".into() };
            let source = names.level_exchange(numbered(level));
            Binding { source, destination, key: format!("delay.{above}{words}{rest}") }
        };
        let mut bindings = Vec::new();
        // Whatever comes behind `begin`: the next set bit in the words below `end`.
        let skip_zeros = |begin: &str, end: u32, bindings: &mut Vec<Binding>| {
            for set in (0..end).rev() {
                let zeros = self.word(0).repeat((end - 1 - set) as usize);
                for value in 1..1 << self.width {
                    let words = format!("{begin}{zeros}{}", self.word(value));
                    bindings.push(bind(words, set, queue(set, value)));
                }
            }
            let words = format!("{begin}{}", self.word(0).repeat(end as usize));
            bindings.push(bind(words, 0, Endpoint::Exchange(names.dispatch())));
        };
        if bit + 1 == self.width {
            skip_zeros("", word + 1, &mut bindings);
            return bindings;
        }
        let passed = 1 << (bit + 1);
        for value in (0..1 << self.width).filter(|value| value & passed != 0) {
            match value & (passed - 1) {
                0 if self.hands_over && word > 0 => {
                    let next = names.level_exchange(numbered(word * self.width - 1));
                    bindings.push(bind(self.word(value), word, Endpoint::Exchange(next)));
                }
                0 => skip_zeros(&self.word(value), word, &mut bindings),
                rest => bindings.push(bind(self.word(value), word, queue(word, rest))),
            }
        }
        bindings
    }
}

/// A level by its number.
fn numbered(level: u32) -> Level {
    u8::try_from(level).ok().and_then(|level| level.try_into().ok()).expect("a level from 0 to 27")
}

/// A layout on its node, and what was measured.
struct Candidate {
    layout: Layout,
    node: PrivateNode,
    settings: Settings,
    session: Session,
    bindings: usize,
    installed: Duration,
    /// For each delay: CPU in µs per message, published and drained per second.
    figures: [Vec<[f64; 3]>; DELAYS.len()],
}

impl Candidate {
    fn start(layout: Layout, prefetch: Prefetch) -> Self {
        let node = PrivateNode::start(NodeOptions { rabbit: prefetch.settings(), ..NodeOptions::default() })
            .expect("a private node");
        let settings = node.settings().set("unit_ms", UNIT_MS.to_string()).build().unwrap();
        let mut session = Session::open(&settings.broker).unwrap();
        let mut wanted = settings.topology.clone();
        wanted.unit = Unit::from_millis(UNIT_MS.into()).unwrap();
        let topology = Topology::new(wanted);
        let names = topology.names();
        let bindings: Vec<_> = (0..LEVELS).flat_map(|level| layout.bindings(names, level)).collect();
        let of_a_level =
            |binding: &Binding| Level::all().any(|level| names.level_exchange(level) == binding.source);
        if layout.name == "4 bits" {
            let product: Vec<_> = topology.bindings().filter(|it| of_a_level(it)).cloned().collect();
            assert_eq!(product, bindings, "the layout that is measured is the one that is installed");
        }
        let started = Instant::now();
        for object in topology.objects() {
            match object {
                Object::Exchange(exchange) => session.declare_exchange(exchange).unwrap(),
                Object::Queue(queue) => session.declare_queue(queue).unwrap(),
                Object::Binding(binding) if of_a_level(binding) => {}
                Object::Binding(binding) => session.bind(binding).unwrap(),
            }
        }
        bindings.iter().for_each(|binding| session.bind(binding).unwrap());
        let installed = started.elapsed();
        let arguments = [("x-queue-type".to_owned(), Argument::from("quorum"))];
        session.declare_queue(&Queue::new("sink").with_arguments(arguments)).unwrap();
        let key = format!("delay.{}{APP}", "*.".repeat(layout.words() as usize));
        let (source, destination) = (names.dispatch(), Endpoint::Queue("sink".into()));
        session.bind(&Binding { source, destination, key }).unwrap();
        let figures = [const { Vec::new() }; DELAYS.len()];
        Self { layout, node, settings, session, bindings: bindings.len(), installed, figures }
    }

    /// CPU seconds that the broker has used.
    fn cpu(&self) -> f64 {
        self.node.cpu_seconds().expect("the broker runs")
    }

    /// All messages on their whole way.
    fn measure(&mut self, index: usize) {
        let consumer = self.session.consume("sink", 1_000).unwrap();
        let key = self.layout.key(DELAYS[index]);
        let (cpu, started) = (self.cpu(), Instant::now());
        let publisher = Bare::open(&self.settings);
        publisher.publish(MESSAGES, 1_000, "delay", &key, BODY);
        let published = MESSAGES as f64 / started.elapsed().as_secs_f64();
        publisher.close();
        let (mut first, mut count) = (None, 0);
        while count < MESSAGES {
            match consumer.next(Duration::from_secs(60)) {
                Next::Delivery(delivery) => {
                    first.get_or_insert_with(Instant::now);
                    consumer.ack(delivery).unwrap();
                    count += 1;
                }
                other => panic!("{count} of {MESSAGES} arrived: {other:?}"),
            }
        }
        let drained = MESSAGES as f64 / first.unwrap().elapsed().as_secs_f64();
        // Acknowledgements that have not reached the queue are forgotten with the channel.
        thread::sleep(Duration::from_secs(1));
        let cpu = (self.cpu() - cpu) * 1e6 / MESSAGES as f64;
        self.figures[index].push([cpu, published, drained]);
    }
}

fn main() {
    // `cargo test` passes this.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let prefetch = Prefetch::asked();
    let mut candidates: Vec<_> = LAYOUTS.map(|layout| Candidate::start(layout, prefetch)).into();
    for _ in 0..ROUNDS {
        for index in 0..DELAYS.len() {
            candidates.iter_mut().for_each(|candidate| candidate.measure(index));
        }
    }
    println!(
        "RabbitMQ {}, {prefetch}: {MESSAGES} messages of {BODY} bytes, the middle of {ROUNDS} rounds. For delays \
         of 1, 3 and 6 hops:\nthe broker's CPU in us per message; published/s; drained/s",
        candidates[0].session.server_version().unwrap_or_default()
    );
    for candidate in &mut candidates {
        let middle = |figures: &mut Vec<[f64; 3]>, what: usize| {
            figures.sort_by(|a, b| a[what].total_cmp(&b[what]));
            figures[ROUNDS / 2][what]
        };
        let [cpu, published, drained] = [0, 1, 2].map(|what| {
            let figures: Vec<_> =
                candidate.figures.iter_mut().map(|it| format!("{:>6.0}", middle(it, what))).collect();
            figures.join("")
        });
        println!(
            "  {:24} {:>5} bindings in {:>4.1} s |{cpu} |{published} |{drained}",
            candidate.layout.name,
            candidate.bindings,
            candidate.installed.as_secs_f64()
        );
    }
}
