# Parts of a long run that go on side by side, and what is said of them. Sourced, after
# setup.sh. `work` is a directory for what they print.

# Runs a part: what it prints comes in one block when it is done, and if it failed, once
# more at the end of all. The version is that of the broker it ran on, `-` for none. With
# harmless=yes it may fail.
part() {
    local version=$1 name=$2 begin=$SECONDS status=0 counts log cpu
    shift 2
    log=$(mktemp "$work/log.XXXXXX")
    cpu=$(mktemp "$work/cpu.XXXXXX")
    # The only way to the processor time of what this shell has waited for.
    times >"$cpu"
    "$@" >"$log" 2>&1 </dev/null || status=$?
    times >>"$cpu"
    counts=$status
    [ -z "${harmless-}" ] || counts=0
    {
        flock 9
        printf '%s\t%s\t%s\t%s\t%s\t%s\n' \
            "$((SECONDS - begin))" "$counts" "$version" "$log" "$name" "$(processor_time "$cpu")" >>"$work/parts"
        if [ "$counts" = 0 ]; then
            say "$name: done in $((SECONDS - begin)) s"
            cat "$log"
        else
            say "$name: FAILED after $((SECONDS - begin)) s, see the end"
        fi
    } 9>"$work/lock"
    return "$status"
}

# Seconds between two answers of `times`: the second and the fourth line are of children.
processor_time() {
    awk -F '[ms ]+' 'NR % 2 == 0 { used = $1 * 60 + $2 + $3 * 60 + $4 - used } END { printf "%.0f", used }' "$1"
}

# Runs something beside the rest, in a process group of its own that ends with us.
beside() {
    set -m
    "$@" </dev/null &
    set +m
    groups+=($!)
}
groups=()

# Ends what is still running.
end_parts() {
    local group
    for group in "${groups[@]}"; do kill -s TERM -- "-$group" 2>/dev/null || true; done
}

# The logs of all parts.
part_logs() { cut -f 4 "$work/parts"; }

# What failed, complete. Fails if anything did.
show_failures() {
    local seconds status version log name cpu failed=0
    while IFS=$'\t' read -r seconds status version log name cpu; do
        [ "$status" != 0 ] || continue
        failed=1
        say "FAILED: $name"
        cat "$log"
    done <"$work/parts"
    return "$failed"
}

# How long each took, the longest first, and how much of the processors.
show_times() {
    printf 'in %d min %d s; of these, several at a time:\n' "$((SECONDS / 60))" "$((SECONDS % 60))"
    sort -rn "$work/parts" |
        awk -F '\t' '{ printf "%6d s  %6d s of CPU  %s%s\n", $1, $6, $5, $2 == 0 ? "" : ", FAILED" }'
}

# What tests say that they could not do, though they count as passed.
show_not_tested() {
    local seconds status version log name cpu line
    while IFS=$'\t' read -r seconds status version log name cpu; do
        while IFS= read -r line; do
            printf 'NOT TESTED on RabbitMQ %s:%s\n' "$version" "${line#NOT TESTED:}"
        done < <(grep '^NOT TESTED: ' "$log" | sort -u)
    done <"$work/parts"
}
