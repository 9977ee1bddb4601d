# Several generations of RabbitMQ on one Debian machine. Sourced, after setup.sh.

# The versions, and the Debian release that has each.
BROKERS=(3.10 4.0 4.3)
declare -A BROKER_RELEASE=([3.10]=bookworm [4.0]=trixie [4.3]=forky)

root_of() { echo "${RABBITMQ_ROOTS:-${XDG_CACHE_HOME:-$HOME/.cache}/delayline/brokers}/$1"; }

# The version of the RabbitMQ package under a root directory, as 3.10.8. Nothing if
# there is none.
rabbitmq_version() {
    local status="$1/var/lib/dpkg/status"
    [ -r "$status" ] && [ -x "$1/usr/lib/rabbitmq/bin/rabbitmq-server" ] || return 0
    awk '/^Package: / { ours = $2 == "rabbitmq-server" }
         ours && /^Version: / { sub(/-.*/, "", $2); print $2 }' "$status"
}

# "version <tab> root" of each that can be started. The root is empty for the one
# that is installed on the machine itself.
brokers_at_hand() {
    local version root found
    for version in "${BROKERS[@]}"; do
        for root in "" "$(root_of "$version")"; do
            found=$(rabbitmq_version "$root")
            case "$found" in
            "$version".*) printf '%s\t%s\n' "$found" "$root"; break ;;
            esac
        done
    done
}

# Takes --versions out of what a script was given: `versions` is its list, `arguments` the rest.
take_versions() {
    versions= arguments=()
    while [ $# -gt 0 ]; do
        case "$1" in
        --versions)
            [ -n "${2-}" ] || { echo "--versions wants a list, such as 4.0,4.3" >&2; exit 2; }
            versions=$2
            shift
            ;;
        --versions=*) versions=${1#*=} ;;
        *) arguments+=("$1") ;;
        esac
        shift
    done
}

# The output of brokers_at_hand for a list such as "4.0,4.3.6"; for all brokers if the list is empty.
# Fails with 2, wrong usage, if any of them is not available.
brokers_chosen() {
    local all wanted chosen=
    all=$(brokers_at_hand)
    [ -n "$1" ] || chosen=$all
    for wanted in ${1//,/ }; do
        chosen+=$(awk -F '\t' -v wanted="$wanted" 'index($1 ".", wanted ".") == 1' <<<"$all" | grep .) || {
            echo "RabbitMQ $wanted is not available; there are: $(cut -f 1 <<<"$all" | paste -sd ' ')." \
                "scripts/brokers makes others" >&2
            return 2
        }
        chosen+=$'\n'
    done
    [ -n "$chosen" ] || { echo "none of RabbitMQ ${BROKERS[*]} is at hand; scripts/brokers makes them" >&2; return 2; }
    sort -uV <<<"$chosen" | grep .
}

# Makes a broker's directory, unless it exists.
make_broker() {
    local version=$1 release=${BROKER_RELEASE[$1]-} root partial
    [ -n "$release" ] || { echo "there is no RabbitMQ $version here; there are ${BROKERS[*]}" >&2; return 1; }
    # Not through a pipe: grep ends at the first match, and who writes on would fail.
    if grep -q "^$version\." <<<"$(brokers_at_hand)"; then return 0; fi
    root=$(root_of "$version")
    partial="$root.partial"
    say "RabbitMQ $version, from Debian $release, into $root (about a minute)"
    if ! command -v debootstrap >/dev/null; then
        debian_packages debootstrap || { unavailable "$version" "debootstrap cannot be installed"; return 1; }
    fi
    local scripts=/usr/share/debootstrap/scripts script=$release
    # A release that is newer than debootstrap itself is built like unstable.
    [ -e "$scripts/$release" ] || script=sid
    as_root rm -rf --one-file-system -- "$partial"
    mkdir -p "$partial"
    local log="$root.log"
    if as_root debootstrap --variant=minbase --include=rabbitmq-server \
        "$release" "$partial" "$(debian_mirror)" "$scripts/$script" >"$log" 2>&1 &&
        rabbitmq_version "$partial" | grep -q "^$version\."; then
        as_root rm -rf -- "$partial"/var/cache/apt/archives "$partial"/usr/share/doc
        # It may have been started while the package was configured.
        as_root rm -rf -- "$partial"/var/lib/rabbitmq/mnesia "$partial"/var/lib/rabbitmq/.erlang.cookie
        as_root rm -rf --one-file-system -- "$root"
        as_root mv -- "$partial" "$root"
        rm -f "$log"
    else
        local found
        found=$(rabbitmq_version "$partial")
        tail -n 5 "$log" >&2
        unavailable "$version" "${found:+Debian $release has $found now; }see $log"
        return 1
    fi
}

unavailable() { printf '\nRabbitMQ %s CANNOT BE HAD HERE: %s\n' "$1" "$2" >&2; }

# The mirror this machine's own packages come from, if it says.
debian_mirror() {
    local mirror
    mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list 2>/dev/null |
        sed -nE 's/^deb (\[[^]]*\] )?(https?:[^ ]*debian\/?) .*/\2/p; s/^URIs: *(https?:[^ ]*debian\/?)( .*)?$/\1/p' |
        grep -v security | head -n 1)
    echo "${mirror:-http://deb.debian.org/debian}"
}
