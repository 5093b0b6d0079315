# shellcheck shell=bash
# A Docker Engine: the one that is given or runs here, else one of our own for demo and tests of this checkout together
# (two engines on one host would fight over docker0 and the packet filter).
#
# HOLDFAST_ENGINE=private asks for our own in any case. That is safe only where no other engine runs in the same
# network namespace.

ENGINE_DIR=$HOME_STATE/docker
# shellcheck disable=SC2153
ENGINE_RUN=/run/$PLACE
ENGINE_SOCKET=$ENGINE_RUN/docker.sock
DEFAULT_SOCKET=/var/run/docker.sock

engine_answers() {
    if has docker; then timeout 20 docker -H "$1" version >/dev/null 2>&1; else
        # No client to ask with: a socket that takes connections must do.
        [ "${1#unix://}" = "$1" ] || timeout 5 python3 -c \
            'import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])' "${1#unix://}" 2>/dev/null
    fi
}

engine_is_private() {
    [ -z "${DOCKER_HOST:-}" ] || return 1
    [ "${HOLDFAST_ENGINE:-}" = private ] || ! engine_answers "unix://$DEFAULT_SOCKET"
}

engine_up() {
    if [ -n "${DOCKER_HOST:-}" ]; then
        engine_answers "$DOCKER_HOST" || die "the Docker Engine of DOCKER_HOST does not answer" "start it, or unset DOCKER_HOST"
        say "Docker Engine: the one of DOCKER_HOST"
        export DOCKER_HOST
        return
    fi
    if ! engine_is_private; then
        DOCKER_HOST=unix://$DEFAULT_SOCKET
        export DOCKER_HOST
        say "Docker Engine: the one that runs here ($DEFAULT_SOCKET)"
        return
    fi
    [ "$(id -u)" = 0 ] || die "no Docker Engine answers and only root can start one" \
        "start Docker, or set DOCKER_HOST, or run this as root"
    mkdir -p "$ENGINE_DIR/users" "$ENGINE_RUN"
    chmod 700 "$ENGINE_DIR" "$ENGINE_RUN"
    : >"$ENGINE_DIR/users/$HF_NAME"
    if runs "$ENGINE_RUN/dockerd.pid" "$ENGINE_DIR" >/dev/null && [ -z "$(runs "$ENGINE_RUN/containerd.pid" "$ENGINE_DIR")" ]; then
        step containerd "Docker Engine: its containerd died, starting it" "look at $ENGINE_DIR/containerd.log" engine_containerd
        until_true 20 engine_answers "unix://$ENGINE_SOCKET" || true
    fi
    if engine_answers "unix://$ENGINE_SOCKET"; then say "Docker Engine: our own runs"; else
        engine_cgroups
        engine_stop_remains
        STARTED+=(engine)
        step engine "Docker Engine: starting our own (data in ${ENGINE_DIR#"$ROOT"/})" \
            "look at the log and at $ENGINE_DIR/*.log; or start Docker yourself and set DOCKER_HOST" engine_start
    fi
    OURS+=(DOCKER_HOST)
    DOCKER_HOST=unix://$ENGINE_SOCKET
    export DOCKER_HOST
}

# containerd runs beside dockerd, not under it: each can be killed and started again alone.
engine_containerd() {
    mkdir -p "$ENGINE_RUN"
    rm -f "$ENGINE_RUN/containerd.sock"
    cat >"$ENGINE_DIR/containerd.toml" <<TOML
version = 2
root = "$ENGINE_DIR/data/containerd"
state = "$ENGINE_RUN/containerd"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "$ENGINE_RUN/containerd.sock"
TOML
    local pid
    pid=$(daemon root "$ENGINE_DIR/containerd.log" containerd --config "$ENGINE_DIR/containerd.toml" --log-level warn)
    echo "$pid" >"$ENGINE_RUN/containerd.pid"
    until_true 30 engine_containerd_ready "$pid" && ! gone "$pid" && return
    tail -n 12 "$ENGINE_DIR/containerd.log"
    return 1
}

engine_start() {
    engine_data || return
    engine_containerd || return
    printf '{}\n' >"$ENGINE_DIR/daemon.json"
    local pid options=(--storage-driver=overlay2)
    [ ! -e "$ENGINE_DIR/vfs" ] || options=(--storage-driver=vfs)
    engine_packet_filter || options+=(--iptables=false)
    pid=$(daemon root "$ENGINE_DIR/dockerd.log" env "PATH=$ENGINE_PATH" dockerd "--config-file=$ENGINE_DIR/daemon.json" \
        "--data-root=$ENGINE_DIR/data/docker" "--exec-root=$ENGINE_RUN/exec" "--pidfile=$ENGINE_RUN/dockerd.pid" \
        "--host=unix://$ENGINE_SOCKET" "--containerd=$ENGINE_RUN/containerd.sock" --log-level=warn "${options[@]}")
    until_true 90 engine_ready "$pid" && engine_answers "unix://$ENGINE_SOCKET" && return
    tail -n 12 "$ENGINE_DIR/dockerd.log"
    return 1
}

engine_ready() { engine_answers "unix://$ENGINE_SOCKET" || gone "$1"; }

engine_containerd_ready() { [ -S "$ENGINE_RUN/containerd.sock" ] || gone "$1"; }

# Storage that overlay mounts work on: the directory itself, else a file system in a file, else plain copies.
engine_data() {
    local data=$ENGINE_DIR/data
    mkdir -p "$data"
    [ ! -e "$ENGINE_DIR/vfs" ] || return 0
    if ! mountpoint -q "$data" && [ -e "$ENGINE_DIR/data.ext4" ]; then mount -o loop,noatime "$ENGINE_DIR/data.ext4" "$data"; fi
    engine_overlay_works "$data" && return
    echo "overlay mounts do not work on $(stat -f -c %T "$data"): trying a file system in a file"
    if truncate -s 40G "$ENGINE_DIR/data.ext4" && mkfs.ext4 -q -F "$ENGINE_DIR/data.ext4" &&
        mount -o loop,noatime "$ENGINE_DIR/data.ext4" "$data" && engine_overlay_works "$data"; then return; fi
    rm -f "$ENGINE_DIR/data.ext4"
    echo "no loop device either: layers are plain copies, which is slow and large"
    : >"$ENGINE_DIR/vfs"
}

engine_overlay_works() {
    local try=$1/.overlay status=0
    rm -rf "$try"
    mkdir -p "$try/lower" "$try/upper" "$try/work" "$try/merged"
    mount -t overlay overlay -o "lowerdir=$try/lower,upperdir=$try/upper,workdir=$try/work" "$try/merged" 2>/dev/null || status=$?
    [ "$status" -ne 0 ] || umount "$try/merged"
    rm -rf "$try"
    return "$status"
}

# A kernel may know only the old packet filter. The engine then gets a PATH on which `iptables` is the legacy one.
engine_packet_filter() {
    ENGINE_PATH=$PATH
    iptables -w 10 -t nat -S >/dev/null 2>&1 && return
    if iptables-legacy -w 10 -t nat -S >/dev/null 2>&1; then
        mkdir -p "$ENGINE_DIR/bin"
        ln -sf "$(command -v iptables-legacy)" "$ENGINE_DIR/bin/iptables"
        ln -sf "$(command -v ip6tables-legacy || command -v ip6tables)" "$ENGINE_DIR/bin/ip6tables"
        ENGINE_PATH=$ENGINE_DIR/bin:$PATH
        return
    fi
    echo "the packet filter cannot be used: computers with a network will not reach the internet"
    return 1
}

# A container or a bare machine may come without control groups, or with all processes in the root group (version 2).
engine_cgroups() {
    local groups=/sys/fs/cgroup controller
    if [ -e $groups/cgroup.controllers ]; then
        if [ ! -d /run/systemd/system ] && ! grep -qw memory $groups/cgroup.subtree_control; then
            mkdir -p $groups/init
            while read -r controller; do echo "$controller" >$groups/init/cgroup.procs 2>/dev/null || true; done <$groups/cgroup.procs
            sed 's/ / +/g; s/^/+/' $groups/cgroup.controllers >$groups/cgroup.subtree_control 2>/dev/null || true
        fi
        return
    fi
    if [ -n "$(find $groups -mindepth 1 -maxdepth 1 2>/dev/null | head -n 1)" ]; then return; fi
    say "control groups: mounting them"
    mount -t tmpfs -o mode=755 cgroup $groups || die "control groups cannot be mounted" "run this on a machine, or in a privileged container"
    awk '!/^#/ && $4 == 1 {print $1}' /proc/cgroups | while read -r controller; do
        mkdir -p "$groups/$controller"
        mount -n -t cgroup -o "$controller" cgroup "$groups/$controller" 2>/dev/null || rmdir "$groups/$controller"
    done
}

# Ends what a killed engine left.
engine_stop_remains() {
    stop "a Docker Engine that does not answer" "$ENGINE_RUN/dockerd.pid" "$ENGINE_DIR" 20
    stop "its containerd" "$ENGINE_RUN/containerd.pid" "$ENGINE_DIR" 20
    rm -f "$ENGINE_RUN"/*.sock
}

# The last of its users stops it.
engine_down() {
    [ -d "$ENGINE_DIR/users" ] || return 0
    rm -f "$ENGINE_DIR/users/$HF_NAME"
    if [ -n "$(ls -A "$ENGINE_DIR/users")" ]; then
        say "our Docker Engine stays up for: $(ls "$ENGINE_DIR/users")"
        return
    fi
    # An engine that was killed leaves its containers running; the next one to start ends them.
    if [ -z "$(runs "$ENGINE_RUN/dockerd.pid" "$ENGINE_DIR")" ] && engine_left_containers; then
        engine_stop_remains
        engine_start >"$ENGINE_DIR/start.log" 2>&1 || true
    fi
    stop "our Docker Engine" "$ENGINE_RUN/dockerd.pid" "$ENGINE_DIR" 60
    stop "its containerd" "$ENGINE_RUN/containerd.pid" "$ENGINE_DIR" 20
    local place loops=''
    [ ! -e "$ENGINE_DIR/data.ext4" ] || loops=$(losetup -n -O NAME -j "$ENGINE_DIR/data.ext4")
    while read -r place; do umount "$place" 2>/dev/null || umount -l "$place" || true; done < <(engine_mounts)
    for place in $loops; do losetup -d "$place" 2>/dev/null || true; done
    rm -rf "$ENGINE_RUN"
}

# The pattern comes by a pipe, or grep would find itself.
engine_left_containers() { grep -lsF -f <(echo "$ENGINE_RUN/containerd.sock") /proc/[0-9]*/cmdline | grep -q .; }

# Innermost first. The two directories have no characters that the table of mounts would escape, or it is too late.
engine_mounts() {
    awk -v a="$ENGINE_DIR/" -v b="$ENGINE_RUN/" 'index($2, a) == 1 || index($2, b) == 1 {print $2}' /proc/mounts | tac
}
