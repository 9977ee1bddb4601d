# The frameworks of docs/for-teams/frameworks, in their current versions. Sourced, after
# setup.sh. They are kept where the brokers are, for the next clone. A folder with the file
# `ready` is complete. A framework that cannot be installed has none, and its tests report that.

need_frameworks() {
    export TEST_FRAMEWORKS="${XDG_CACHE_HOME:-$HOME/.cache}/delayline/clients/frameworks"
    mkdir -p "$TEST_FRAMEWORKS"
    PATH="$TEST_FRAMEWORKS/go/toolchain/bin:$PATH"
    local each
    for each in python node moleculer java go php; do
        framework_is_ready "$each" || alone clients install_frameworks "$each" || true
    done
    current_clients
}
install_frameworks() {
    framework_is_ready "$1" && return
    say "installing frameworks into $TEST_FRAMEWORKS/$1"
    rm -f "$TEST_FRAMEWORKS/$1/ready"
    "frameworks_of_$1" && framework_versions "$1" >"$TEST_FRAMEWORKS/$1/ready"
}

# Java's and Go's current clients, instead of Debian's, where they came with the frameworks.
current_clients() {
    local jar java="$TEST_FRAMEWORKS/java" go="$TEST_FRAMEWORKS/go"
    if [ -e "$java/ready" ] && [ -n "${TEST_JAVA_CLASSPATH-}" ]; then
        jar=$(tr ':' '\n' <"$java/jars" | grep '/com/rabbitmq/amqp-client/')
        TEST_JAVA_CLASSPATH="$jar:/usr/share/java/slf4j-api.jar:/usr/share/java/slf4j-nop.jar"
    fi
    if [ -e "$go/ready" ]; then TEST_GOPATH="$go/path"; fi
}

SYMFONY=(php-cli php-amqp phpunit php-symfony-framework-bundle php-symfony-amqp-messenger php-symfony-console
    php-symfony-serializer php-symfony-yaml)

# `ready` names the installed version: another version is installed anew.
framework_is_ready() {
    framework_versions "$1" | cmp -s - "$TEST_FRAMEWORKS/$1/ready" 2>/dev/null && case "$1" in
    # Of the system; the rest is in these folders.
    node | moleculer) command -v node >/dev/null ;;
    java) command -v javac >/dev/null ;;
    go) command -v go >/dev/null ;;
    php) dpkg -s "${SYMFONY[@]}" >/dev/null 2>&1 ;;
    esac
}

framework_versions() {
    case "$1" in
    python) printf '%s\n' 'celery==5.7.0' 'dramatiq==2.2.1' 'faststream[rabbit,cli]==0.7.8' 'taskiq==0.13.0' \
        'taskiq-aio-pika==0.6.1' 'pika==1.4.4' 'pytest==9.2.0' 'mypy==2.4.1' ;;
    node) printf '%s\n' '@golevelup/nestjs-rabbitmq@9.0.2' '@nestjs/core@11.2.10' '@nestjs/common@11.2.10' \
        'reflect-metadata@0.2.2' 'rxjs@7.8.2' 'rascal@21.0.1' 'amqplib@2.3.1' 'typescript@7.0.2' '@types/node@20' ;;
    moleculer) printf '%s\n' 'moleculer@0.15.2' 'amqplib@0.10.9' ;;
    java) cat scripts/lib/frameworks.pom.xml ;;
    go) cat adapters/watermill/go.sum ;;
    php) echo "Symfony of Debian" ;;
    esac
}

frameworks_of_python() {
    local venv="$TEST_FRAMEWORKS/python"
    python3 -m venv "$venv" || { debian_packages python3 python3-venv && python3 -m venv "$venv"; }
    framework_versions python | xargs "$venv/bin/pip" install --quiet --disable-pip-version-check
}

frameworks_of_node() { npm_packages node; }
frameworks_of_moleculer() { npm_packages moleculer; }
npm_packages() {
    if ! { command -v node && command -v npm; } >/dev/null; then debian_packages nodejs npm; fi
    framework_versions "$1" | xargs npm install --silent --no-fund --no-audit --fetch-retries 1 --fetch-retry-mintimeout 1000 --prefix "$TEST_FRAMEWORKS/$1"
}

# All of Maven's, for one list of classes.
frameworks_of_java() {
    command -v mvn >/dev/null || debian_packages maven default-jdk-headless || return 1
    mkdir -p "$TEST_FRAMEWORKS/java"
    mvn -q -B -Dmaven.repo.local="$TEST_FRAMEWORKS/java/repository" -f scripts/lib/frameworks.pom.xml dependency:build-classpath \
        -Dmdep.outputFile="$TEST_FRAMEWORKS/java/jars" || return 1
    # With the programs themselves, and for `-cp @file`.
    printf '".:%s"\n' "$(cat "$TEST_FRAMEWORKS/java/jars")" >"$TEST_FRAMEWORKS/java/classpath"
}

# The proxy has what go.sum names, and Go itself, which fetches it since 1.21. Debian's is older.
frameworks_of_go() {
    command -v go >/dev/null || debian_packages golang-go || return 1
    mkdir -p "$TEST_FRAMEWORKS/go"
    export GOMODCACHE="$TEST_FRAMEWORKS/go/mod"
    if ! printf 'go1.21\n%s\n' "$(go env GOVERSION)" | sort -VC; then
        local newer
        newer="golang.org/toolchain@v0.0.1-go$(awk '$1 == "go" { print $2 }' adapters/watermill/go.mod).0.linux-$(go env GOARCH)"
        go mod download "$newer" && chmod -R u+x "$GOMODCACHE/$newer/bin" "$GOMODCACHE/$newer/pkg/tool" || return 1
        ln -sfn "$GOMODCACHE/$newer" "$TEST_FRAMEWORKS/go/toolchain"
        hash -r
    fi
    (cd adapters/watermill && go mod download && go build ./...) || return 1
    # The client alone, for programs without a module.
    local client=github.com/rabbitmq/amqp091-go
    mkdir -p "$TEST_FRAMEWORKS/go/path/src/${client%/*}"
    ln -sfn "$(cd adapters/watermill && go list -m -f '{{.Dir}}' "$client")" "$TEST_FRAMEWORKS/go/path/src/$client"
}

frameworks_of_php() {
    debian_packages "${SYMFONY[@]}" || return 1
    mkdir -p "$TEST_FRAMEWORKS/php"
}
