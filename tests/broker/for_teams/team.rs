//! A team: an application, its credentials, and the programs of a page.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{Arc, OnceLock, atomic::AtomicBool, mpsc},
    thread,
};

use delayline_amqp::Session;
use delayline_client::retry::Service;
use delayline_core::{
    Message,
    codec::Delay,
    message::Properties,
    percent,
    retry::SharedPolicies,
    topology::{Exchange, ExchangeKind},
};
use delayline_node::PrivateNode;
use delayline_settings::{Settings, parse_policies};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;
use tempfile::TempDir;

use super::{
    clients::Client,
    pages::{PAGES, Snippet},
};
use crate::common::{Counting, Counts};
use crate::common::{PATIENCE, app, eventually_seen, new_set, run_in_time, shared_node, url, vhost};

/// With this unit, a delay of 90 s takes less than a second.
const UNIT_MS: u64 = 10;

const PASSWORD: &str = "of a team/+%";

/// A set with a retry service, which runs until this process ends.
pub(super) fn served() -> Settings {
    static NEVER: AtomicBool = AtomicBool::new(false);
    let settings = new_set(UNIT_MS);
    let policies = parse_policies("[default]\nfixed = '5s'\n").unwrap();
    let service = Service::new(settings.router(), SharedPolicies::new(policies));
    thread::spawn(move || service.run(&NEVER));
    settings
}

/// The same for all tests that can choose the names of their applications.
pub(super) fn served_once() -> Settings {
    served_on().1.clone()
}

/// This set and its node.
pub(super) fn served_on() -> &'static (Arc<PrivateNode>, Settings) {
    static SERVED: OnceLock<(Arc<PrivateNode>, Settings)> = OnceLock::new();
    SERVED.get_or_init(|| (shared_node(), served()))
}

pub(super) struct Team {
    client: &'static Client,
    settings: Settings,
    app: String,
    queue: String,
    user: String,
    directory: TempDir,
}

impl Team {
    pub(super) fn new(client: &'static Client) -> Self {
        // Compiled programs have fixed names, so each of them needs its own set.
        match client.compiled {
            true => Self::of(client, served(), "billing".into(), "billing-in".into()),
            false => Self::of(client, served_once(), format!("eu.{}", client.name), client.queue.into()),
        }
    }

    /// Another team with the programs of the same client.
    pub(super) fn another(client: &'static Client, number: usize) -> Self {
        let queue = format!("{} {number}", client.queue);
        Self::of(client, served_once(), format!("eu.{}.{number}", client.name), queue)
    }

    fn of(client: &'static Client, settings: Settings, app: String, queue: String) -> Self {
        let user = format!("{app}-of-{}", settings.broker.vhost);
        Self { client, settings, app, queue, user, directory: tempfile::tempdir().unwrap() }
    }

    /// Changes the program that contains this text.
    pub(super) fn spoil(&self, from: &str, to: &str) {
        for file in [self.client.send, self.client.receive] {
            let path = self.directory().join(file);
            let text = fs::read_to_string(&path).unwrap();
            if text.contains(from) {
                return fs::write(path, text.replace(from, to)).unwrap();
            }
        }
        panic!("no program has {from:?}");
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(super) fn app(&self) -> &str {
        &self.app
    }

    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Runs the program that declares the queue, as a user with that permission.
    pub(super) fn run_as_owner(&self) {
        let Some(file) = self.client.declare else { return };
        if !self.client.compiled {
            let all = PAGES.iter().flat_map(|(_, page)| super::pages::snippets(page));
            let is_it = |snippet: &Snippet<'_>| snippet.words.get(1) == Some(&file);
            let text = all.into_iter().find(is_it).expect("the program is on a page").text;
            // In some languages, `$x` or `#{x}` in a string is a variable.
            let sign = if file.ends_with("rb") { "#" } else { "$" };
            let quotes = file.ends_with("rb") || file.ends_with("php");
            let queue = format!("{:?}", self.queue)
                .replace(sign, &if quotes { format!("\\{sign}") } else { sign.to_owned() });
            let text =
                text.replace("\"billing-in\"", &queue).replace("\"billing\"", &format!("{:?}", self.app));
            fs::write(self.directory().join(file), text).unwrap();
            (self.client.build)(self.directory());
        }
        let output = self.run(file, &url(&self.settings), &[]);
        assert!(output.status.success(), "{}", shown(&output));
    }

    /// Registers the application, and writes the printed programs to files.
    pub(super) fn add(&self) {
        // The worker of the Rust library publishes its retries itself.
        let more: &[&str] = if self.client.name == "rust" { &["--may-retry"] } else { &[] };
        let declared = self.client.declare.is_some();
        let added = add(
            &self.settings,
            &[&[&*self.app, "--user", &self.user, "--queue", &self.queue], more].concat(),
            self.client.name,
        );
        let mut steps = added["steps"].as_array().unwrap().iter();
        let queue = steps.find(|step| step["what"].as_str().unwrap().starts_with("queue"));
        assert_eq!(queue.unwrap()["stood"], declared, "{added}");
        let programs = added["handout"]["programs"].as_array().unwrap();
        // One sends and one receives; Python's page also has one that parks.
        let others = programs.iter().filter(|program| program["file"] != "park.py");
        assert_eq!(others.count(), 2, "{added}");
        for program in programs {
            let (file, text) = (program["file"].as_str().unwrap(), program["text"].as_str().unwrap());
            fs::write(self.directory().join(file), text).unwrap();
        }
        // `app show` later prints the same programs.
        let mut show = delayline(&self.settings);
        show.args(["app", "show", &self.app, "--for", self.client.name, "--json"]);
        let mut shown: Json = serde_json::from_slice(&show.output().unwrap().stdout).unwrap();
        shown.as_object_mut().unwrap().retain(|name, _| !name.starts_with("schema") && name != "retries");
        assert_eq!(shown, added["handout"]);
    }

    fn run(&self, file: &str, address: &str, arguments: &[&str]) -> Output {
        let mut command = (self.client.command)(self.directory(), file);
        command.args(arguments).current_dir(self.directory()).env("AMQP_URL", address);
        run_in_time(command)
    }

    /// The address of the team's user.
    fn address(&self) -> String {
        address(&self.settings, &self.user)
    }

    pub(super) fn send(&self, delay: &str, text: &str) -> Sent {
        self.send_to(&self.address(), delay, text)
    }

    pub(super) fn send_to(&self, address: &str, delay: &str, text: &str) -> Sent {
        Sent(self.run(self.client.send, address, &[delay, text]))
    }

    /// Starts the receiver.
    pub(super) fn receive(&self) -> Receiver {
        let mut command = (self.client.command)(self.directory(), self.client.receive);
        command.current_dir(self.directory()).env("AMQP_URL", self.address());
        Receiver::start(command, self.client.ended)
    }

    /// Publishes a message with this id, in the format of the sender.
    pub(super) fn publish_as_sent(&self, id: &str, text: &str) {
        let router = self.settings.router().connect().unwrap();
        let mut properties = Properties { message_id: Some(id.into()), ..Properties::default() };
        let mut body = text.to_owned();
        if self.client.name == "celery" {
            properties.content_type = Some("application/json".into());
            properties.content_encoding = Some("utf-8".into());
            body = format!("[[{text:?}], {{}}, {{}}]");
        }
        let mut message = Message::after(app(&self.app), Delay::ZERO, body).with_properties(properties);
        if self.client.name == "celery" {
            message =
                message.with_header("task", "tasks.charge").with_header("id", id).with_header("lang", "py");
        }
        router.publish(message).unwrap();
    }

    /// Waits until the queue holds this many messages and has no consumer.
    pub(super) fn holds_only(&self, messages: u32) {
        let mut session = Session::open(&self.settings.broker).unwrap();
        eventually_seen(
            "only the later messages wait",
            || session.counts(&self.queue).unwrap().unwrap(),
            |depth| *depth == Counts { ready: messages, consumers: 0 },
        );
    }
}

/// `delayline` with the settings of a vhost.
fn delayline(settings: &Settings) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_delayline"));
    command
        .env("DELAYLINE_URL", url(settings))
        .env("DELAYLINE_MANAGEMENT_URL", settings.management.as_ref().unwrap().url.as_str())
        .env("DELAYLINE_UNIT_MS", UNIT_MS.to_string())
        .env("DELAYLINE_APP_PASSWORD", PASSWORD);
    command
}

fn add(settings: &Settings, arguments: &[&str], client: &str) -> Json {
    let mut command = delayline(settings);
    command.args(["app", "add"]).args(arguments).args(["--retry", "--json", "--for", client]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", shown(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The address of a user, with its credentials.
fn address(settings: &Settings, user: &str) -> String {
    url(settings).replace("guest:guest", &format!("{}:{}", percent::encode(user), percent::encode(PASSWORD)))
}

/// Registers an application, and returns the address for its user.
pub(super) fn user_of(settings: &Settings, app: &str, queue: &str) -> String {
    user_with(settings, app, &["--queue", queue])
}

/// The same, with other arguments.
pub(super) fn user_with(settings: &Settings, app: &str, arguments: &[&str]) -> String {
    let user = format!("{app}-of-{}", settings.broker.vhost);
    add(settings, &[&[app, "--user", &user], arguments].concat(), "python");
    address(settings, &user)
}

/// The address of a vhost that has only the entry exchange.
pub(super) fn without_queues() -> &'static Settings {
    static SETTINGS: OnceLock<(Arc<PrivateNode>, Settings)> = OnceLock::new();
    let (_, settings) = SETTINGS.get_or_init(|| {
        let settings = vhost().build().unwrap();
        let mut session = Session::open(&settings.broker).unwrap();
        let kind = ExchangeKind::Topic;
        session.declare_exchange(&Exchange::new("delay", kind)).unwrap();
        (shared_node(), settings)
    });
    settings
}

fn shown(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// The result of sending.
pub(super) struct Sent(Output);

impl Sent {
    pub(super) fn confirmed(&self) {
        let Self(output) = self;
        assert!(output.status.success() && output.stdout == b"confirmed\n", "{}", shown(output));
    }

    /// The program must report an error and fail.
    pub(super) fn refused(&self) {
        let Self(output) = self;
        let silent = output.stderr.is_empty() || output.stdout.windows(9).any(|it| it == b"confirmed");
        // It must not be killed, and must not be silent.
        assert!(output.status.code().is_some_and(|code| code > 0) && !silent, "{}", shown(output));
    }
}

/// A running receiver.
pub(crate) struct Receiver {
    child: Child,
    ended: i32,
    lines: mpsc::Receiver<String>,
}

impl Receiver {
    pub(crate) fn start(mut command: Command, ended: i32) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, ended, lines }
    }

    /// The next line of output.
    pub(crate) fn next(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("a line")
    }

    /// Asks it to end, and checks its exit code.
    pub(crate) fn stop(&mut self) {
        assert_eq!(self.terminate().code(), Some(self.ended));
    }

    /// The same, and returns the exit status.
    pub(crate) fn terminate(&mut self) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let ended = eventually_seen("the receiver ends", || self.child.try_wait().unwrap(), Option::is_some);
        let _ = std::io::stdout().flush();
        ended.expect("the receiver has ended")
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
