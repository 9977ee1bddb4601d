//! How the programs of each language are built and run on the test machine.

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A language, or one of its client libraries.
pub(super) struct Client {
    /// Its name in `delayline app show --for`.
    pub(super) name: &'static str,
    /// The program files, by purpose.
    pub(super) send: &'static str,
    pub(super) receive: &'static str,
    pub(super) declare: Option<&'static str>,
    /// The queue. With most libraries, any name works, even one that needs quoting.
    pub(super) queue: &'static str,
    /// Whether the names in its programs are fixed, because they are compiled with the tests.
    pub(super) compiled: bool,
    /// The exit code of its receiver after a request to end.
    pub(super) ended: i32,
    /// Whether its programs can run on this machine; if not, the reason.
    pub(super) at_hand: fn() -> Result<(), String>,
    /// Prepares the programs in a directory.
    pub(super) build: fn(&Path),
    /// A command that runs one of the programs in the directory.
    pub(super) command: fn(&Path, &str) -> Command,
}

pub(super) const PYTHON: Client = Client {
    name: "python",
    send: "send.py",
    receive: "receive.py",
    declare: Some("declare.py"),
    queue: "python \"in\" $x",
    compiled: false,
    ended: 0,
    at_hand: || Ok(()),
    build: |_| (),
    command: |_, file| python(&[file]),
};

pub(super) const AIO_PIKA: Client = Client {
    name: "aio-pika",
    send: "send_aio.py",
    receive: "receive_aio.py",
    declare: None,
    queue: "aio-pika.in",
    at_hand: || has_module("aio_pika"),
    ..PYTHON
};

pub(super) const CELERY: Client = Client {
    name: "celery",
    send: "send_task.py",
    receive: "tasks.py",
    declare: None,
    queue: "celery \"in\" $x",
    at_hand: || has_module("celery"),
    command: |_, file| match file {
        "tasks.py" => {
            let worker = ["-m", "celery", "--quiet", "-A", "tasks", "worker", "--loglevel", "error"];
            python(&[&worker[..], &["--concurrency", "1", "--without-gossip", "--without-mingle"]].concat())
        }
        _ => python(&[file]),
    },
    ..PYTHON
};

pub(super) const JAVASCRIPT: Client = Client {
    name: "javascript",
    send: "send.mjs",
    receive: "receive.mjs",
    declare: Some("declare.mjs"),
    queue: "javascript \"in\" ${x}",
    at_hand: || at_hand(Path::new(&variable("TEST_NODE_PATH")).join("amqplib").exists()),
    build: |directory| {
        let packages = directory.join("node_modules");
        if !packages.exists() {
            symlink(variable("TEST_NODE_PATH"), packages).unwrap();
        }
    },
    command: |_, file| with("node", [file]),
    ..PYTHON
};

pub(super) const RUST: Client = Client {
    name: "rust",
    send: "send.rs",
    receive: "receive.rs",
    declare: Some("declare.rs"),
    compiled: true,
    command: |_, file| Command::new(example(&format!("for_teams_{}", file.trim_end_matches(".rs")))),
    ..PYTHON
};

pub(super) const LAPIN: Client =
    Client { name: "lapin", send: "send_lapin.rs", receive: "receive_lapin.rs", declare: None, ..RUST };

pub(super) const JAVA: Client = Client {
    name: "java",
    send: "Send.java",
    receive: "Receive.java",
    declare: Some("Declare.java"),
    queue: "java \"in\" {}",
    // The Java runtime sets this code, whatever the program does.
    ended: 143,
    at_hand: || needs("TEST_JAVA_CLASSPATH"),
    // All files in a single run, because starting the compiler takes longest.
    build: |directory| {
        let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let sources = files.filter(|path| path.extension().is_some_and(|it| it == "java"));
        succeeds(java("javac").args(sources).current_dir(directory));
    },
    command: |_, file| {
        let mut command = java("java");
        command.args(["-XX:TieredStopAtLevel=1", "-Xshare:auto", file.trim_end_matches(".java")]);
        command
    },
    ..PYTHON
};

pub(super) const GO: Client = Client {
    name: "go",
    send: "send.go",
    receive: "receive.go",
    declare: Some("declare.go"),
    queue: "go \"in\" %s",
    at_hand: || needs("TEST_GOPATH"),
    build: |directory| {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|it| it == "go") {
                let mut build = with("go", ["build", "-o"]);
                build.arg(path.with_extension("")).arg(&path).current_dir(directory);
                succeeds(build.env("GO111MODULE", "off").env("GOPATH", variable("TEST_GOPATH")));
            }
        }
    },
    command: |directory, file| Command::new(directory.join(file.trim_end_matches(".go"))),
    ..PYTHON
};

pub(super) const PHP: Client = Client {
    name: "php",
    send: "send.php",
    receive: "receive.php",
    declare: Some("declare.php"),
    queue: "php \"in\" $x",
    at_hand: || needs("TEST_PHP_AUTOLOAD"),
    build: |directory| {
        fs::create_dir_all(directory.join("vendor")).unwrap();
        let autoload = variable("TEST_PHP_AUTOLOAD");
        fs::write(directory.join("vendor/autoload.php"), format!("<?php require {autoload:?};\n")).unwrap();
    },
    command: |_, file| with("php", [file]),
    ..PYTHON
};

pub(super) const RUBY: Client = Client {
    name: "ruby",
    send: "send.rb",
    receive: "receive.rb",
    declare: Some("declare.rb"),
    queue: "ruby \"in\" #{x}",
    at_hand: || needs("TEST_RUBY"),
    command: |_, file| with(&variable("TEST_RUBY"), [file]),
    ..PYTHON
};

/// All clients that are tested.
pub(super) const ALL: [&Client; 10] =
    [&PYTHON, &AIO_PIKA, &CELERY, &JAVASCRIPT, &RUST, &LAPIN, &JAVA, &GO, &PHP, &RUBY];

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is not set; scripts/test sets it"))
}

/// scripts/test sets the variable, and leaves it empty if the software is not available.
fn needs(name: &str) -> Result<(), String> {
    at_hand(!variable(name).is_empty())
}

/// A module is missing if it could not be installed without a network.
fn has_module(name: &str) -> Result<(), String> {
    at_hand(python(&["-c", &format!("import {name}")]).stderr(Stdio::null()).status().unwrap().success())
}

fn at_hand(is_there: bool) -> Result<(), String> {
    is_there.then_some(()).ok_or_else(|| "it is not available on this machine".into())
}

fn with<'a>(program: &str, arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

fn python(arguments: &[&str]) -> Command {
    with(&variable("TEST_PYTHON"), arguments.iter().copied())
}

fn java(program: &str) -> Command {
    with(program, ["-classpath", &format!(".:{}", variable("TEST_JAVA_CLASSPATH"))])
}

fn succeeds(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// An example, which is built with the tests.
pub(crate) fn example(name: &str) -> PathBuf {
    let tests = env::current_exe().expect("the path of this test");
    let built = tests.ancestors().nth(2).expect("a target directory").join("examples").join(name);
    assert!(built.exists(), "{} is missing: cargo build --examples", built.display());
    built
}
