# shellcheck shell=bash
# A private RabbitMQ node on 127.0.0.1: own name, files, cookie and port mapper.

RABBIT_BIN=/usr/lib/rabbitmq/bin

rabbitmq_up() {
    if [ -n "${AMQP_URL:-}" ]; then
        say "RabbitMQ: the one of AMQP_URL"
        export AMQP_URL
        return
    fi
    [ -x "$RABBIT_BIN/rabbitmq-server" ] || die "RabbitMQ is not installed" "apt-get install rabbitmq-server"
    local user=rabbitmq pid
    [ "$(id -u)" = 0 ] || user=$(id -un)
    RABBIT_DIR=$(service_dir rabbitmq "$user")
    RABBIT_PORT=$(kept "$RABBIT_DIR/port" free_port $((PORTS + 672)))
    if pid=$(runs "$RABBIT_DIR/pid" "$RABBIT_DIR") && amqp_answers "$RABBIT_PORT"; then
        say "RabbitMQ: runs on 127.0.0.1:$RABBIT_PORT"
    else
        [ -z "$pid" ] || stop "a RabbitMQ that does not answer" "$RABBIT_DIR/pid" "$RABBIT_DIR" 20
        RABBIT_PORT=$(free_port "$RABBIT_PORT")
        echo "$RABBIT_PORT" >"$RABBIT_DIR/port"
        STARTED+=(rabbitmq)
        step rabbitmq-start "RabbitMQ: starting on 127.0.0.1:$RABBIT_PORT" "look at the logs in $RABBIT_DIR" \
            rabbitmq_start "$user"
    fi
    OURS+=(AMQP_URL)
    AMQP_URL=amqp://guest:guest@127.0.0.1:$RABBIT_PORT/%2f
    export AMQP_URL
}

rabbitmq_start() {
    local starter
    rm -f "$RABBIT_DIR/pid"
    # Name and ports of the node stay what they were: its files are kept under the name.
    kept "$RABBIT_DIR/node" echo "holdfast$RABBIT_PORT@localhost" >/dev/null
    free_port $((PORTS + 773)) >"$RABBIT_DIR/dist"
    rabbitmq_epmd_runs || free_port $((PORTS + 369)) >"$RABBIT_DIR/epmd"
    printf '[].\n' >"$RABBIT_DIR/enabled_plugins"
    printf 'listeners.tcp.1 = 127.0.0.1:%s\ndisk_free_limit.absolute = 200MB\n' "$RABBIT_PORT" >"$RABBIT_DIR/rabbitmq.conf"
    : >"$RABBIT_DIR/rabbitmq-env.conf"
    # The node's host is found even where the machine's own table does not name it.
    printf '{host, {127,0,0,1}, ["localhost"]}.\n{lookup, [file, native]}.\n' >"$RABBIT_DIR/inetrc"
    chown "$1" "$RABBIT_DIR"/*
    starter=$(daemon "$1" "$RABBIT_DIR/startup.log" env -i \
        "PATH=/usr/sbin:/usr/bin:/sbin:/bin" LANG=C.UTF-8 "HOME=$RABBIT_DIR" \
        "RABBITMQ_NODENAME=$(cat "$RABBIT_DIR/node")" "RABBITMQ_DIST_PORT=$(cat "$RABBIT_DIR/dist")" \
        "RABBITMQ_MNESIA_BASE=$RABBIT_DIR/mnesia" "RABBITMQ_LOG_BASE=$RABBIT_DIR/log" \
        "RABBITMQ_CONFIG_FILE=$RABBIT_DIR/rabbitmq.conf" "RABBITMQ_CONF_ENV_FILE=$RABBIT_DIR/rabbitmq-env.conf" \
        "RABBITMQ_ENABLED_PLUGINS_FILE=$RABBIT_DIR/enabled_plugins" "RABBITMQ_PID_FILE=$RABBIT_DIR/pid" \
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}" \
        "ERL_INETRC=$RABBIT_DIR/inetrc" "ERL_CRASH_DUMP=$RABBIT_DIR/erl_crash.dump" \
        ERL_EPMD_ADDRESS=127.0.0.1 "ERL_EPMD_PORT=$(cat "$RABBIT_DIR/epmd")" \
        "$RABBIT_BIN/rabbitmq-server")
    until_true 120 rabbitmq_started "$starter" && amqp_answers "$RABBIT_PORT" && return
    tail -n 12 "$RABBIT_DIR/startup.log"
    return 1
}

# It answers, or it died and nothing will come.
rabbitmq_started() { amqp_answers "$RABBIT_PORT" || gone "$1"; }

rabbitmq_epmd_runs() {
    [ -s "$RABBIT_DIR/epmd" ] && ERL_EPMD_PORT=$(cat "$RABBIT_DIR/epmd") epmd -names >/dev/null 2>&1
}

# A real check: the protocol header is answered by connection.start.
amqp_answers() {
    local first
    first=$( (
        exec 3<>"/dev/tcp/127.0.0.1/$1" || exit
        printf 'AMQP\0\0\011\001' >&3
        timeout 5 head -c 1 <&3 | od -An -tx1
    ) 2>/dev/null)
    [ "${first// /}" = 01 ]
}

rabbitmq_down() {
    local dir
    for dir in "$STATE/rabbitmq" "/var/lib/$PLACE/$HF_NAME-rabbitmq"; do
        [ -d "$dir" ] || continue
        stop RabbitMQ "$dir/pid" "$dir" 60
        # Its port mapper is ours as well; it refuses to go while a node is registered.
        RABBIT_DIR=$dir
        if rabbitmq_epmd_runs; then
            ERL_EPMD_PORT=$(cat "$dir/epmd") epmd -kill >/dev/null 2>&1 || true
        fi
    done
}
