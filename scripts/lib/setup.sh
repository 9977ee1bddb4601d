# What the scripts need on the machine, installed if it is missing. Sourced.

# Kept outside of the repository, for the next clone.
cache="${XDG_CACHE_HOME:-$HOME/.cache}/delayline"
clients="$cache/clients"

# Announces a step, apart from the output of the tools.
say() { printf '\n== %s\n' "$*"; }

# Runs a command as root.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -- "$@"; fi
}

# Runs a command while no other script of ours runs one under the same name.
alone() {
    local name=$1
    shift
    mkdir -p "$cache"
    { flock 8 && "$@"; } 8>"$cache/$name.lock"
}

# Installs Debian packages without starting any service they bring.
debian_packages() {
    command -v apt-get >/dev/null || { echo "please install: $*" >&2; return 1; }
    say "installing Debian packages (no service is started): $*"
    alone packages apt_install "$@"
}
apt_install() {
    local policy=/usr/sbin/policy-rc.d made= status=0
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod +x "$policy"
        made=yes
    fi
    as_root apt-get update -qq || status=$?
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" || status=$?
    [ -z "$made" ] || as_root rm -f "$policy"
    return "$status"
}

# Each is `what=package`: a command or a path, and the Debian package that has it.
need() {
    local each packages=()
    for each; do
        case "${each%%=*}" in
        */*) compgen -G "${each%%=*}" >/dev/null ;;
        *) command -v "${each%%=*}" >/dev/null ;;
        esac || packages+=("${each#*=}")
    done
    [ ${#packages[@]} = 0 ] || debian_packages "${packages[@]}"
}

need_cargo() {
    command -v cargo >/dev/null || { echo "cargo is missing: see https://rustup.rs" >&2; return 1; }
    command -v cc >/dev/null || debian_packages gcc libc6-dev
}

need_rabbitmq() { [ -n "${RABBITMQ_HOME:-}" ] || need /usr/lib/rabbitmq/bin/rabbitmq-server=rabbitmq-server; }

# What tests run beside the broker: ps; ip and unshare for networks and roots of their own;
# shells that complete what is typed; a library that moves a process's clock; Prometheus.
need_commands() {
    need git=git ps=procps ip=iproute2 unshare=util-linux zsh=zsh fish=fish \
        '/usr/lib/*/faketime/libfaketimeMT.so.1=libfaketime' prometheus=prometheus promtool=prometheus
}

# A browser for the tests of the page, and a font that looks the same everywhere.
need_chromium() {
    need "${TEST_CHROMIUM:-/usr/bin/chromium}=chromium" fc-list=fontconfig &&
        { [ -n "$(fc-list Inter)" ] || debian_packages fonts-inter; }
}

PYTHON_CLIENTS=(pika==1.4.4 kombu==5.7.0 aio-pika==10.0.1 celery==5.7.0)
NODE_CLIENTS=(amqplib@2.3.1 rhea@3.0.4)
# Libraries for the delayed-message plugin. If a library cannot be installed, its tests report that.
PYTHON_PLUGIN_CLIENTS=(taskiq==0.13.0 taskiq-aio-pika==0.6.1)
NODE_PLUGIN_CLIENTS=(rascal@21.0.1)

# Has a command install packages into a folder of the clients, unless exactly these are there.
installed() {
    local folder=$1 how=$2
    shift 2
    [ "$(cat "$folder/$how" 2>/dev/null)" != "$*" ] || return 0
    say "installing into $folder: $*"
    "$how" "$folder" "$@" && echo "$*" >"$folder/$how"
}
python_packages() {
    local folder=$1
    shift
    "$folder/bin/pip" install --quiet --disable-pip-version-check "$@"
}
python_plugin_packages() { python_packages "$@"; }
node_packages() {
    local folder=$1
    shift
    npm install --silent --no-fund --no-audit --fetch-retries 1 --fetch-retry-mintimeout 1000 --prefix "$folder" "$@"
}
node_plugin_packages() { node_packages "$@"; }

need_python() {
    export TEST_PYTHON="$clients/python/bin/python"
    [ -x "$TEST_PYTHON" ] || python3 -m venv "$clients/python" ||
        { debian_packages python3 python3-venv && python3 -m venv "$clients/python"; }
    installed "$clients/python" python_packages "${PYTHON_CLIENTS[@]}"
}

need_node() {
    export TEST_NODE_PATH="$clients/node/node_modules"
    need node=nodejs npm=npm
    mkdir -p "$clients/node"
    installed "$clients/node" node_packages "${NODE_CLIENTS[@]}"
}

# The clients of docs/for-teams in other languages: Python's from PyPI, JavaScript's from npm, the
# rest from Debian. Where one cannot be had, its variable is empty or it is not in its folder, and its
# tests say so. Only pika and rhea must be there: most tests publish with them.
need_clients() {
    alone clients need_python || "$TEST_PYTHON" -c 'import pika' || tests_need pika
    alone clients need_node || [ -e "$TEST_NODE_PATH/rhea" ] || tests_need rhea
    local jars=/usr/share/java php=/usr/share/php/PhpAmqpLib/autoload.php gopath=/usr/share/gocode
    local go="$gopath/src/github.com/rabbitmq/amqp091-go" bunny='/usr/share/rubygems-integration/*/specifications/bunny-*.gemspec'
    need "$jars/amqp-client.jar=librabbitmq-client-java" javac=default-jdk-headless \
        "$php=php-amqplib" php=php-cli "$bunny=ruby-bunny" \
        "$go=golang-github-rabbitmq-amqp091-go-dev" go=golang-go || true
    export TEST_JAVA_CLASSPATH= TEST_PHP_AUTOLOAD= TEST_RUBY= TEST_GOPATH=
    if [ -e "$jars/amqp-client.jar" ] && command -v javac >/dev/null; then
        TEST_JAVA_CLASSPATH="$jars/amqp-client.jar:$jars/slf4j-api.jar:$jars/slf4j-nop.jar"
    fi
    if [ -e "$php" ] && command -v php >/dev/null; then TEST_PHP_AUTOLOAD=$php; fi
    if compgen -G "$bunny" >/dev/null && [ -x /usr/bin/ruby ]; then TEST_RUBY=/usr/bin/ruby; fi
    if [ -e "$go" ] && command -v go >/dev/null; then TEST_GOPATH=$gopath; fi
}

tests_need() {
    echo "$1 cannot be installed here, and most tests need it: connect this machine to the network once" >&2
    return 1
}

need_plugin_libraries() {
    installed "$clients/python" python_plugin_packages "${PYTHON_PLUGIN_CLIENTS[@]}" || true
    installed "$clients/node" node_plugin_packages "${NODE_PLUGIN_CLIENTS[@]}" || true
}

# A tool of our own that cargo runs; ~/.cargo is not touched. It runs for some seconds, which is not
# worth minutes of optimizing it.
need_cargo_tool() {
    export PATH="$cache/tools/bin:$PATH"
    command -v "$1" >/dev/null && return
    say "building $1 (a few minutes, once)"
    CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
        CARGO_PROFILE_RELEASE_DEBUG=none cargo install --quiet --locked --root "$cache/tools" "$1"
}

# cargo-fuzz, and what it builds with.
need_cargo_fuzz() {
    cargo +nightly --version >/dev/null 2>&1 || {
        say "installing a nightly toolchain"
        rustup toolchain install nightly --profile minimal ||
            { echo "fuzzing needs a nightly toolchain: rustup toolchain install nightly" >&2; return 1; }
    }
    command -v c++ >/dev/null || debian_packages g++
    need_cargo_tool cargo-fuzz
}
