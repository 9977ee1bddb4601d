//! The frameworks, and how to run their programs.

use delayline_core::codec::AppKey;

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
    /// Whether each start takes seconds of processor time.
    pub(super) is_dear: bool,
}

impl Framework {
    /// The app key of its programs. Each framework has its own, because all of them share a set.
    pub(super) fn app(&self) -> AppKey {
        app(self.page.trim_end_matches(".md"))
    }
}

pub(super) const CELERY: Framework = Framework {
    page: "celery.md",
    needs: "python/ready",
    build: "",
    receive: "python -m celery --quiet -A tasks worker --loglevel warning --pool solo --without-gossip --without-mingle",
    send: "python send.py",
    is_dear: false,
};

pub(super) const DRAMATIQ: Framework =
    Framework { page: "dramatiq.md", receive: "dramatiq tasks --processes 1 --threads 1", ..CELERY };

pub(super) const FASTSTREAM: Framework =
    Framework { page: "faststream.md", receive: "faststream run app:app", ..CELERY };

pub(super) const TASKIQ: Framework =
    Framework { page: "taskiq.md", receive: "taskiq worker app:broker --workers 1", ..CELERY };

pub(super) const NESTJS: Framework = Framework {
    page: "nestjs.md",
    needs: "node/ready",
    build: "ln -s $KEPT/node/node_modules . && node_modules/.bin/tsc",
    receive: "node receive.js",
    send: "node send.js",
    is_dear: false,
};

pub(super) const RASCAL: Framework = Framework {
    page: "rascal.md",
    build: "ln -s $KEPT/node/node_modules .",
    receive: "node receive.mjs",
    send: "node send.mjs",
    ..NESTJS
};

pub(super) const MOLECULER: Framework = Framework {
    page: "moleculer.md",
    needs: "moleculer/ready",
    build: "ln -s $KEPT/moleculer/node_modules .",
    ..RASCAL
};

pub(super) const SPRING: Framework = Framework {
    page: "spring-amqp.md",
    needs: "java/ready",
    build: "javac -J-XX:TieredStopAtLevel=1 -J-XX:+UseSerialGC -parameters -cp @$KEPT/java/classpath billing/*.java",
    receive: "java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC \
              -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote -cp @$KEPT/java/classpath billing.Billing",
    send: "java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC \
              -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote -cp @$KEPT/java/classpath billing.Billing",
    is_dear: true,
};

pub(super) const SPRING_CLOUD_STREAM: Framework = Framework { page: "spring-cloud-stream.md", ..SPRING };

pub(super) const WATERMILL: Framework = Framework {
    page: "watermill.md",
    needs: "go/ready",
    build: "cp $ADAPTERS/watermill/go.mod $ADAPTERS/watermill/go.sum . && go mod edit -module billing \
            -require github.com/delayline/delayline-watermill@v0.0.0 \
            -replace github.com/delayline/delayline-watermill=$ADAPTERS/watermill && \
            go build -o receive receive.go && go build -o send send.go",
    receive: "./receive",
    send: "./send",
    is_dear: false,
};

pub(super) const SYMFONY: Framework = Framework {
    page: "symfony.md",
    needs: "php/ready",
    build: "ln -s $ADAPTERS/symfony/src adapter",
    receive: "php console.php messenger:consume billing",
    send: "php console.php send",
    is_dear: false,
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
