# What the scripts need on the machine, installed if it is missing. Sourced.

# Says what is being done, apart from what the tools print.
say() { printf '\n== %s\n' "$*"; }

# Runs a command as root.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -- "$@"; fi
}

# Installs Debian packages without starting any service they bring. What is set up beside
# this waits for its turn: apt-get would fail.
debian_packages() {
    command -v apt-get >/dev/null || { echo "please install: $*" >&2; return 1; }
    local policy=/usr/sbin/policy-rc.d made= status=0
    mkdir -p .cache
    {
        flock 8
        if [ ! -e "$policy" ]; then
            printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
            as_root chmod +x "$policy"
            made=yes
        fi
        as_root apt-get update -qq || status=$?
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" || status=$?
        [ -z "$made" ] || as_root rm -f "$policy"
    } 8>.cache/packages.lock
    return "$status"
}

need_cargo() {
    command -v cargo >/dev/null || { echo "cargo is missing: see https://rustup.rs" >&2; return 1; }
    command -v cc >/dev/null || debian_packages gcc libc6-dev
}

need_rabbitmq() {
    [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || [ -n "${RABBITMQ_HOME:-}" ] || {
        say "installing RabbitMQ from Debian's packages (its service is not started)"
        debian_packages rabbitmq-server
    }
}

# A Python of our own with pika, for the test of a client in another language.
need_pika() {
    local venv=.cache/python
    export TEST_PYTHON="$PWD/$venv/bin/python"
    "$TEST_PYTHON" -c 'import pika' 2>/dev/null && return
    say "installing pika into $venv"
    mkdir -p .cache
    python3 -m venv "$venv" || { debian_packages python3 python3-venv && python3 -m venv "$venv"; }
    "$venv/bin/pip" install --quiet --disable-pip-version-check 'pika==1.3.2'
}

# Celery's messaging library, which declares its layout of delays for scripts/compare.
need_kombu() {
    need_pika
    "$TEST_PYTHON" -c 'import kombu' 2>/dev/null && return
    say "installing kombu into .cache/python"
    "$TEST_PYTHON" -m pip install --quiet --disable-pip-version-check 'kombu==5.7.0'
}

# Node's client library, for the example in that language.
need_amqplib() {
    export TEST_NODE_PATH="$PWD/.cache/node/node_modules"
    [ -e "$TEST_NODE_PATH/amqplib/package.json" ] && command -v node >/dev/null && return
    if ! { command -v node && command -v npm; } >/dev/null; then debian_packages nodejs npm; fi
    say "installing amqplib into .cache/node"
    npm install --silent --no-fund --no-audit --prefix .cache/node 'amqplib@2.3.1'
}

# The clients of docs/for-teams in other languages: Python's from PyPI, the rest from Debian,
# which Maven, Go modules, Packagist and RubyGems are no part of. Where one cannot be had,
# its variable is empty, and its tests say so.
need_clients() {
    need_kombu
    need_amqplib
    "$TEST_PYTHON" -c 'import aio_pika, celery' 2>/dev/null || {
        say "installing aio-pika and Celery into .cache/python"
        "$TEST_PYTHON" -m pip install --quiet --disable-pip-version-check 'aio-pika==10.0.1' 'celery==5.6.0'
    }
    local jars=/usr/share/java php=/usr/share/php/PhpAmqpLib/autoload.php gopath=/usr/share/gocode packages=()
    [ -e "$jars/amqp-client.jar" ] || packages+=(librabbitmq-client-java)
    command -v javac >/dev/null || packages+=(default-jdk-headless)
    [ -e "$php" ] && command -v php >/dev/null || packages+=(php-cli php-amqplib)
    /usr/bin/ruby -e 'require "bunny"' 2>/dev/null || packages+=(ruby-bunny)
    command -v go >/dev/null || packages+=(golang-go)
    [ -e "$gopath/src/github.com/rabbitmq/amqp091-go" ] || packages+=(golang-github-rabbitmq-amqp091-go-dev)
    [ ${#packages[@]} -eq 0 ] || {
        say "installing clients in other languages from Debian's packages"
        debian_packages "${packages[@]}" || true
    }
    export TEST_JAVA_CLASSPATH= TEST_PHP_AUTOLOAD= TEST_RUBY= TEST_GOPATH=
    if [ -e "$jars/amqp-client.jar" ] && command -v javac >/dev/null; then
        TEST_JAVA_CLASSPATH="$jars/amqp-client.jar:$jars/slf4j-api.jar:$jars/slf4j-nop.jar"
    fi
    if [ -e "$php" ] && command -v php >/dev/null; then TEST_PHP_AUTOLOAD=$php; fi
    if /usr/bin/ruby -e 'require "bunny"' 2>/dev/null; then TEST_RUBY=/usr/bin/ruby; fi
    if command -v go >/dev/null && [ -e "$gopath/src/github.com/rabbitmq/amqp091-go" ]; then TEST_GOPATH=$gopath; fi
}

# A client of AMQP 1.0, for messages that AMQP 0-9-1 cannot carry.
need_rhea() {
    need_amqplib
    [ -e "$TEST_NODE_PATH/rhea/package.json" ] && return
    say "installing rhea into .cache/node"
    npm install --silent --no-fund --no-audit --prefix .cache/node 'rhea@3.0.4'
}

# Libraries that set the header x-delay for the delayed-message plugin. Where one cannot be
# had, its test says so.
need_plugin_libraries() {
    need_clients
    "$TEST_PYTHON" -c 'import taskiq_aio_pika' 2>/dev/null || {
        say "installing taskiq-aio-pika into .cache/python"
        "$TEST_PYTHON" -m pip install --quiet --disable-pip-version-check 'taskiq==0.13.0' 'taskiq-aio-pika==0.6.1' || true
    }
    [ -e "$TEST_NODE_PATH/rascal/package.json" ] || {
        say "installing Rascal into .cache/node"
        npm install --silent --no-fund --no-audit --prefix .cache/node 'rascal@21.0.1' || true
    }
}

# Debian's Prometheus, for the tests of metrics and alerts; its service is not started.
need_prometheus() {
    command -v prometheus >/dev/null && command -v promtool >/dev/null && return
    say "installing Prometheus from Debian's packages (its service is not started)"
    debian_packages prometheus
}

# What tests run beside the broker: ps; ip and unshare for networks and roots of their
# own; shells that complete what is typed; a library that moves a process's clock.
need_commands() {
    local packages=()
    command -v ps >/dev/null || packages+=(procps)
    command -v ip >/dev/null || packages+=(iproute2)
    command -v unshare >/dev/null || packages+=(util-linux)
    command -v zsh >/dev/null || packages+=(zsh)
    command -v fish >/dev/null || packages+=(fish)
    compgen -G '/usr/lib/*/faketime/libfaketimeMT.so.1' >/dev/null || packages+=(libfaketime)
    [ ${#packages[@]} -eq 0 ] || debian_packages "${packages[@]}"
}

# A browser for the tests of the page, and a font that looks the same everywhere.
need_chromium() {
    local packages=()
    [ -x "${TEST_CHROMIUM:-/usr/bin/chromium}" ] || packages+=(chromium)
    [ -n "$(fc-list Inter 2>/dev/null)" ] || packages+=(fontconfig fonts-inter)
    [ ${#packages[@]} -eq 0 ] || {
        say "installing a browser from Debian's packages"
        debian_packages "${packages[@]}"
    }
}

# A tool of our own that cargo runs; nobody's ~/.cargo is touched. It is kept where the brokers
# are, for the next clone. It runs for some seconds, which is not worth minutes of optimizing it.
need_cargo_tool() {
    local tools="${XDG_CACHE_HOME:-$HOME/.cache}/delayline/tools"
    export PATH="$PWD/.cache/tools/bin:$tools/bin:$PATH"
    command -v "$1" >/dev/null && return
    say "building $1 (a few minutes, once)"
    CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
        CARGO_PROFILE_RELEASE_DEBUG=none cargo install --quiet --locked --root "$tools" "$1"
}

need_cargo_deny() { need_cargo_tool cargo-deny; }

# Lists the public API.
need_cargo_public_api() { need_cargo_tool cargo-public-api; }

# cargo-fuzz of our own, and what it builds with.
need_cargo_fuzz() {
    cargo +nightly --version >/dev/null 2>&1 || {
        say "installing a nightly toolchain"
        rustup toolchain install nightly --profile minimal ||
            { echo "fuzzing needs a nightly toolchain: rustup toolchain install nightly" >&2; return 1; }
    }
    command -v c++ >/dev/null || debian_packages g++
    export PATH="$PWD/.cache/tools/bin:$PATH"
    command -v cargo-fuzz >/dev/null && return
    say "building cargo-fuzz (a minute, once)"
    cargo install --quiet --locked --root .cache/tools cargo-fuzz
}
