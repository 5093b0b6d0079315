# shellcheck shell=bash
# The demo's worker and stand-in endpoint: background processes with a pid file and a log each.

# The network of computers that may talk is made by the worker's own code; its gateway is where this machine answers.
stub_up() {
    local gateway
    gateway=$("$BIN/holdfast-worker" network ensure 2>"$LOGS/network.log") ||
        die "the network of the computers cannot be made: $(tail -n 1 "$LOGS/network.log")" "look at $LOGS/network.log"
    STUB_URL=http://$gateway:8089
    if runs "$STATE/stub.pid" "$BIN/holdfast-stub-model" >/dev/null && stub_answers; then
        say "stand-in model endpoint: runs at $STUB_URL"
        return
    fi
    stop "a stand-in endpoint that does not answer" "$STATE/stub.pid" "$BIN/holdfast-stub-model" 5
    daemon "$(id -un)" "$LOGS/stub.log" "$BIN/holdfast-stub-model" --listen "$gateway:8089" >"$STATE/stub.pid"
    until_true 20 stub_answers || die "the stand-in endpoint does not start: $(tail -n 1 "$LOGS/stub.log")" "look at $LOGS/stub.log"
    say "stand-in model endpoint: started at $STUB_URL. It is NO model: it plays the steps that a task spells out"
}

stub_answers() {
    local place=${STUB_URL#http://}
    (: <"/dev/tcp/${place%:*}/${place#*:}") 2>/dev/null
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
    say "worker: runs with $1 slots (log: ${LOGS#"$ROOT"/}/worker.log, metrics: http://127.0.0.1:9464/metrics)"
}

worker_ready() {
    (: </dev/tcp/127.0.0.1/9464) 2>/dev/null || ! runs "$STATE/worker.pid" "$BIN/holdfast-worker" >/dev/null
}

worker_down() { stop "the worker" "$STATE/worker.pid" holdfast-worker 90; }

fleet_down() {
    worker_down
    stop "the stand-in endpoint" "$STATE/stub.pid" holdfast-stub-model 10
}
