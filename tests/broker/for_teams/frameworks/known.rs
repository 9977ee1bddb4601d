//! The frameworks, and how to run their programs.

use std::collections::BTreeSet;

use delayline_core::codec::AppKey;

use super::promises::{self, Changes, Promise};
use crate::common::app;

/// A page, and how to run its programs. Commands run in a shell, in the directory of the page's
/// files. Frameworks are installed in `$KEPT`, and our adapters are in `$ADAPTERS`.
pub(super) struct Framework {
    pub(super) page: &'static str,
    /// A file in `$KEPT` that exists once everything is installed.
    pub(super) needs: &'static str,
    pub(super) build: &'static str,
    pub(super) receive: &'static str,
    /// The test appends the delay and the text, and an id if the message is to be recalled.
    pub(super) send: &'static str,
    /// Sends several messages with one start, if each start takes seconds of processor time. The
    /// test appends `ADDRESS DELAY` for each.
    pub(super) several: Option<&'static str>,
    pub(super) recall: Recall,
    pub(super) retries: Retries,
    /// Whether a message that no queue takes is reported.
    pub(super) tells_returned: bool,
    /// Files that the test writes beside those of the page, and their texts.
    pub(super) files: &'static [(&'static str, &'static str)],
    /// What the framework does automatically, so that no change of the page breaks it.
    pub(super) automatic: &'static [Promise],
    /// What breaks each other promise, in the page or in these files.
    pub(super) broken: Changes,
}

pub(super) enum Recall {
    /// The program that sends recalls the message if it gets an id.
    Sender,
    /// The page has two pieces of code in its line `- recall: `. They replace `{1}` and `{2}` in a
    /// program that sends a message with the id `invoice-17`, due in a day.
    Line { file: &'static str, program: &'static str, run: &'static str },
}

#[derive(PartialEq, Eq)]
pub(super) enum Retries {
    Service,
    Framework,
}

impl Framework {
    pub(super) fn promises(&self) -> BTreeSet<Promise> {
        Promise::ALL.into_iter().filter(|it| *it != Promise::Returned || self.tells_returned).collect()
    }

    /// The app key of its programs. Each framework has its own, because all of them share a set.
    pub(super) fn app(&self) -> AppKey {
        app(self.page.trim_end_matches(".md"))
    }
}

/// A file of an adapter.
macro_rules! adapter {
    ($file:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../adapters/", $file))
    };
}

pub(super) const CELERY: Framework = Framework {
    page: "celery.md",
    needs: "python/ready",
    build: "",
    receive: "python -m celery --quiet -A tasks worker --loglevel warning --pool solo --without-gossip --without-mingle",
    send: "python send.py",
    several: None,
    recall: Recall::Line {
        file: "recall.py",
        program: "from tasks import app, charge\n{1}\n{2}\nprint('recalled')\n",
        run: "python recall.py",
    },
    retries: Retries::Service,
    tells_returned: true,
    files: &[("delayline_celery/__init__.py", adapter!("celery/src/delayline_celery/__init__.py"))],
    automatic: &[],
    broken: promises::CELERY,
};

pub(super) const DRAMATIQ: Framework = Framework {
    page: "dramatiq.md",
    receive: "dramatiq tasks --processes 1 --threads 1",
    recall: Recall::Line {
        file: "recall.py",
        program: "from tasks import broker, charge\n{1}\n{2}\nprint('recalled')\n",
        run: "python recall.py",
    },
    files: &[("delayline_dramatiq/__init__.py", adapter!("dramatiq/src/delayline_dramatiq/__init__.py"))],
    broken: promises::DRAMATIQ,
    ..CELERY
};

pub(super) const FASTSTREAM: Framework = Framework {
    page: "faststream.md",
    receive: "faststream run app:app",
    recall: Recall::Sender,
    files: &[],
    automatic: &[Promise::MessageId],
    broken: promises::FASTSTREAM,
    ..CELERY
};

pub(super) const TASKIQ: Framework = Framework {
    page: "taskiq.md",
    receive: "taskiq worker app:broker --workers 1",
    retries: Retries::Framework,
    broken: promises::TASKIQ,
    ..FASTSTREAM
};

pub(super) const NESTJS: Framework = Framework {
    page: "nestjs.md",
    needs: "node/ready",
    build: "ln -s $KEPT/node/node_modules . && node_modules/.bin/tsc",
    receive: "node receive.js",
    send: "node send.js",
    several: None,
    recall: Recall::Sender,
    retries: Retries::Service,
    tells_returned: true,
    files: &[],
    automatic: &[],
    broken: promises::NESTJS,
};

pub(super) const RASCAL: Framework = Framework {
    page: "rascal.md",
    build: "ln -s $KEPT/node/node_modules .",
    receive: "node receive.mjs",
    send: "node send.mjs",
    automatic: &[Promise::MessageId],
    broken: promises::RASCAL,
    ..NESTJS
};

pub(super) const MOLECULER: Framework = Framework {
    page: "moleculer.md",
    needs: "moleculer/ready",
    build: "ln -s $KEPT/moleculer/node_modules .",
    automatic: &[],
    broken: promises::MOLECULER,
    ..RASCAL
};

/// A Java that starts faster, with Spring.
macro_rules! java {
    ($program:literal) => {
        concat!(
            "java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions \
             -XX:-BytecodeVerificationRemote -cp @$KEPT/java/classpath ",
            $program
        )
    };
}

pub(super) const SPRING: Framework = Framework {
    page: "spring-amqp.md",
    needs: "java/ready",
    build: "javac -J-XX:TieredStopAtLevel=1 -J-XX:+UseSerialGC -parameters -cp @$KEPT/java/classpath billing/*.java",
    receive: java!("billing.Billing"),
    send: java!("billing.Billing"),
    several: Some(java!("--add-opens java.base/java.util=ALL-UNNAMED billing.Several")),
    recall: Recall::Sender,
    retries: Retries::Service,
    tells_returned: true,
    files: &[("billing/Several.java", include_str!("Several.java"))],
    automatic: &[],
    broken: promises::SPRING,
};

pub(super) const SPRING_CLOUD_STREAM: Framework = Framework {
    page: "spring-cloud-stream.md",
    automatic: &[Promise::MessageId],
    broken: promises::SPRING_CLOUD_STREAM,
    ..SPRING
};

pub(super) const WATERMILL: Framework = Framework {
    page: "watermill.md",
    needs: "go/ready",
    build: "cp adapter/go.* . && go mod edit -module billing \
            -require github.com/delayline/delayline-watermill@v0.0.0 \
            -replace github.com/delayline/delayline-watermill=./adapter && \
            for each in receive send recall; do go build -o $each $each.go || exit; done",
    receive: "./receive",
    send: "./send",
    several: None,
    recall: Recall::Line { file: "recall.go", program: include_str!("recall.go.txt"), run: "./recall" },
    retries: Retries::Service,
    tells_returned: false,
    files: &[
        ("adapter/delayline.go", adapter!("watermill/delayline.go")),
        ("adapter/go.mod", adapter!("watermill/go.mod")),
        ("adapter/go.sum", adapter!("watermill/go.sum")),
    ],
    automatic: &[],
    broken: promises::WATERMILL,
};

pub(super) const SYMFONY: Framework = Framework {
    page: "symfony.md",
    needs: "php/ready",
    build: "",
    receive: "php console.php messenger:consume billing",
    send: "php console.php send",
    several: None,
    recall: Recall::Line {
        file: "recall.php",
        program: include_str!("recall.php.txt"),
        run: "php recall.php",
    },
    retries: Retries::Service,
    tells_returned: true,
    files: &[("adapter/DelaylineTransport.php", adapter!("symfony/src/DelaylineTransport.php"))],
    automatic: &[],
    broken: promises::SYMFONY,
};

pub(super) const ALL: [&Framework; 11] = [
    &CELERY,
    &DRAMATIQ,
    &FASTSTREAM,
    &TASKIQ,
    &NESTJS,
    &RASCAL,
    &MOLECULER,
    &SPRING,
    &SPRING_CLOUD_STREAM,
    &WATERMILL,
    &SYMFONY,
];
