# shellcheck shell=bash
# The demo's worker and stand-in endpoint: background processes with a pid file and a log each.

METRICS=${HOLDFAST_METRICS_ADDR:-127.0.0.1:9464}

answers() { (: <"/dev/tcp/${1%:*}/${1##*:}") 2>/dev/null; }

# The network of computers that may talk is made by the worker's own code; its gateway is where this machine answers.
stub_up() {
    local gateway
    gateway=$("$BIN/holdfast-worker" network ensure 2>"$LOGS/network.log") ||
        die "the network of the computers cannot be made: $(tail -n 1 "$LOGS/network.log")" "look at $LOGS/network.log"
    STUB=$gateway:${HOLDFAST_STUB_PORT:-8089}
    STUB_URL=http://$STUB
    if runs "$STATE/stub.pid" "$BIN/holdfast-stub-model" >/dev/null && answers "$STUB"; then
        say "stand-in model endpoint: runs at $STUB_URL"
        return
    fi
    stop "a stand-in endpoint that does not answer" "$STATE/stub.pid" "$BIN/holdfast-stub-model" 5
    daemon "$(id -un)" "$LOGS/stub.log" "$BIN/holdfast-stub-model" --listen "$STUB" >"$STATE/stub.pid"
    until_true 20 answers "$STUB" || die "the stand-in endpoint does not start: $(tail -n 1 "$LOGS/stub.log")" "look at $LOGS/stub.log"
    say "stand-in model endpoint: started at $STUB_URL. It is NO model: it plays the steps that a task spells out"
}

# Computers on an engine are labelled with the first digits of the database's own id; deploy/down --purge needs it when
# the database is gone.
remember_installation() {
    local bin id
    bin=$(postgres_bin) || return 0
    id=$("$bin/psql" -X -tAc "select left(replace(id::text, '-', ''), 12) from installation" "$DATABASE_URL" 2>/dev/null) || return 0
    [ -z "$id" ] || echo "$id" >"$STATE/installation"
}

# worker_up SLOTS
worker_up() {
    if runs "$STATE/worker.pid" "$BIN/holdfast-worker" >/dev/null; then
        say "worker: restarting it, so that it is the one just built"
        worker_down
    fi
    daemon "$(id -un)" "$LOGS/worker.log" "$BIN/holdfast-worker" --queue default --slots "$1" >"$STATE/worker.pid"
    until_true 60 worker_ready || true
    runs "$STATE/worker.pid" "$BIN/holdfast-worker" >/dev/null || {
        tail -n 15 "$LOGS/worker.log" | indented >&2
        die "the worker ended at once" "look at $LOGS/worker.log"
    }
    say "worker: runs with $1 slots (log: ${LOGS#"$ROOT"/}/worker.log, metrics: http://$METRICS/metrics)"
}

worker_ready() {
    answers "$METRICS" || ! runs "$STATE/worker.pid" "$BIN/holdfast-worker" >/dev/null
}

worker_down() { stop "the worker" "$STATE/worker.pid" holdfast-worker 90; }

fleet_down() {
    worker_down
    stop "the stand-in endpoint" "$STATE/stub.pid" holdfast-stub-model 10
}
