# shellcheck shell=bash
# A private PostgreSQL cluster on 127.0.0.1. The person's own cluster is neither used nor touched.

postgres_bin() {
    local bin
    bin=$(find /usr/lib/postgresql -mindepth 2 -maxdepth 2 -name bin 2>/dev/null | sort -V | tail -n 1)
    [ -n "$bin" ] && [ -x "$bin/postgres" ] && echo "$bin"
}

postgres_up() {
    if [ -n "${DATABASE_URL:-}" ]; then
        say "PostgreSQL: the one of DATABASE_URL"
        export DATABASE_URL
        return
    fi
    local bin user=postgres
    bin=$(postgres_bin) || die "PostgreSQL is not installed" "apt-get install postgresql"
    [ "$(id -u)" = 0 ] || user=$(id -un)
    PG_DIR=$(service_dir postgres "$user")
    if [ ! -s "$PG_DIR/data/PG_VERSION" ]; then
        rm -rf "$PG_DIR/data"
        step postgres-init "PostgreSQL: making a private cluster" "look at the log" postgres_init "$bin" "$user"
    fi
    if [ "$(cat "$PG_DIR/data/PG_VERSION")" != "$(basename "$(dirname "$bin")")" ]; then
        bin=/usr/lib/postgresql/$(cat "$PG_DIR/data/PG_VERSION")/bin
        [ -x "$bin/postgres" ] || die "the private cluster was made by another PostgreSQL" "deploy/down --purge makes room for a new one"
    fi
    PG_PORT=$(kept "$PG_DIR/port" free_port $((PORTS + 432)))
    if ! postgres_answers "$bin"; then
        [ -n "$(runs "$PG_DIR/data/postmaster.pid" "$PG_DIR/data")" ] || rm -f "$PG_DIR/data/postmaster.pid"
        until_true 1 postgres_port_is_free || PG_PORT=$(free_port "$PG_PORT")
        echo "$PG_PORT" >"$PG_DIR/port"
        STARTED+=(postgres)
        step postgres-start "PostgreSQL: starting on 127.0.0.1:$PG_PORT" "look at the log and at $PG_DIR/log" \
            postgres_start "$bin" "$user"
    else
        say "PostgreSQL: runs on 127.0.0.1:$PG_PORT"
    fi
    local database=holdfast
    postgres_sql "$bin" "select 1 from pg_database where datname = '$database'" | grep -q 1 ||
        postgres_sql "$bin" "create database $database" >/dev/null
    OURS+=(DATABASE_URL)
    DATABASE_URL=postgres://postgres:$(cat "$PG_DIR/password")@127.0.0.1:$PG_PORT/$database
    export DATABASE_URL
}

postgres_init() {
    kept "$PG_DIR/password" random_word >/dev/null
    chown "$2" "$PG_DIR/password"
    as_user "$2" "$1/initdb" -D "$PG_DIR/data" -U postgres -E UTF8 --locale=C.UTF-8 --auth=scram-sha-256 \
        "--pwfile=$PG_DIR/password"
}

# A cluster that was killed hard may hold its shared memory for some seconds yet, so this tries more than once.
postgres_start() {
    local settings="-p $PG_PORT -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c max_connections=300"
    settings+=" -c client_connection_check_interval=500ms"
    [ "$HF_NAME" != test ] || settings+=" -c fsync=off"
    local try
    for try in 1 2 3 4 5 6; do
        echo "try $try"
        as_user "$2" "$1/pg_ctl" -D "$PG_DIR/data" -w -t 60 -l "$PG_DIR/log" -o "$settings" start
        postgres_answers "$1" && return
        sleep 2
    done
    tail -n 10 "$PG_DIR/log"
    return 1
}

postgres_sql() {
    PGPASSWORD=$(cat "$PG_DIR/password") PGCONNECT_TIMEOUT=5 "$1/psql" -X -h 127.0.0.1 -p "$PG_PORT" -U postgres \
        -d postgres -tAc "$2"
}

# Not any server on that port: the one of our data directory.
postgres_answers() {
    [ "$(postgres_sql "$1" 'show data_directory' 2>/dev/null)" = "$PG_DIR/data" ]
}

postgres_port_is_free() { [ "$(free_port "$PG_PORT")" = "$PG_PORT" ]; }

postgres_down() {
    local dir pid
    for dir in "$STATE/postgres" "/var/lib/$PLACE/$HF_NAME-postgres"; do
        pid=$(runs "$dir/data/postmaster.pid" "$dir/data") || continue
        # SIGINT is its fast shutdown: open connections are closed.
        kill -INT "$pid" 2>/dev/null || true
        until_true 30 gone "$pid" || kill -QUIT "$pid" 2>/dev/null || true
        until_true 10 gone "$pid" || true
        say "stopped PostgreSQL (pid $pid)"
    done
}
