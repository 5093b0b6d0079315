# shellcheck shell=bash
# One line a step; the rest goes to log files.

say() { printf '[%4ds] %s\n' "$SECONDS" "$*"; }

# die WHAT [HINT]
die() {
    printf '[%4ds] failed: %s\n' "$SECONDS" "$1" >&2
    [ -z "${2:-}" ] || printf '        what to do: %s\n' "$2" >&2
    exit 1
}

# step NAME WHAT HINT COMMAND...: runs it with its output in the log NAME; a failure shows the end of the log.
step() {
    local log=$LOGS/$1.log what=$2 hint=$3 started=$SECONDS
    shift 3
    mkdir -p "$LOGS"
    say "$what (log: ${log#"$ROOT"/})"
    "$@" >"$log" 2>&1 9>&- </dev/null && { [ $((SECONDS - started)) -lt 20 ] || say "… done after $((SECONDS - started)) s"; } && return
    printf '        ── the end of %s\n' "$log" >&2
    tail -n 15 "$log" | indented >&2
    die "$what" "$hint"
}

# until_true SECONDS COMMAND...: waits for a condition, not for a time.
until_true() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.2
    done
}

indented() { awk '{print "        │ " $0}'; }
