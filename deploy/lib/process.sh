# shellcheck shell=bash
# Background processes: started in a session of their own, known by pid file and by their command line.

# daemon USER LOG COMMAND...: prints the pid. The process gets no terminal, no lock and no pipe of ours.
daemon() {
    local user=$1 log=$2
    shift 2
    if [ "$user" != "$(id -un)" ]; then set -- "${AS_USER[@]}" "--reuid=$user" "--regid=$user" "$@"; fi
    (cd / && exec setsid "$@" >>"$log" 2>&1 </dev/null 9>&-) &
    echo $!
}

AS_USER=(setpriv --init-groups)

as_user() {
    local user=$1
    shift
    if [ "$user" = "$(id -un)" ]; then (cd / && "$@"); else (cd / && "${AS_USER[@]}" "--reuid=$user" "--regid=$user" "$@"); fi
}

# runs PIDFILE MARK: prints the pid if that process lives and its command line or environment holds MARK (a directory of
# ours); a stale file, or one whose number was given to another process, does not count.
runs() {
    local pid
    pid=$(head -n 1 "$1" 2>/dev/null | tr -dc 0-9)
    [ -n "$pid" ] && ! gone "$pid" && cat "/proc/$pid/cmdline" "/proc/$pid/environ" 2>/dev/null | tr '\0' ' ' |
        grep -F -- "$2" >/dev/null && echo "$pid"
}

state_of() { sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null; }

gone() { [ ! -d "/proc/$1" ] || [ "$(state_of "$1")" = Z ]; }

# stop WHAT PIDFILE MARK SECONDS: asks, waits, then kills. Says nothing when there is nothing.
stop() {
    local pid
    pid=$(runs "$2" "$3") || { rm -f "$2" && return 0; }
    kill -TERM "$pid" 2>/dev/null || true
    if until_true "$4" gone "$pid"; then say "stopped $1 (pid $pid)"; else
        kill -KILL "$pid" 2>/dev/null || true
        until_true 10 gone "$pid" || true
        say "killed $1 (pid $pid): it did not end within $4 s"
    fi
    rm -f "$2"
}

# free_port FIRST: the first port from there on that nobody listens on.
free_port() {
    local port=$1
    while (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
    echo "$port"
}

# kept FILE COMMAND...: what the file holds, else what the command prints, then kept there.
kept() {
    local file=$1
    shift
    [ -s "$file" ] || (umask 077 && "$@" >"$file.new" && mv "$file.new" "$file")
    cat "$file"
}

random_word() { head -c 18 /dev/urandom | base64 | tr -dc a-zA-Z0-9; }

# service_dir NAME USER: a directory that belongs to USER and that USER can reach.
service_dir() {
    local dir=$STATE/$1
    mkdir -p "$dir"
    chown "$2" "$dir"
    if ! as_user "$2" test -w "$dir"; then
        dir=/var/lib/$PLACE/$HF_NAME-$1
        mkdir -p "$dir"
        chown "$2" "$dir"
    fi
    chmod 700 "$dir"
    echo "$dir"
}
