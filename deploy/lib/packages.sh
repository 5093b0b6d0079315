# shellcheck shell=bash
# What is missing on a bare Debian 12 comes from its own package sources, and only then.

APT_UPDATED=
POLICY=/usr/sbin/policy-rc.d
POLICY_MARK='# holdfast: no service starts while its packages are installed'

has() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ]; }

packages_for_services() {
    PATH=$PATH:/usr/sbin:/sbin
    policy_restore
    local missing=()
    if [ -z "${DATABASE_URL:-}" ]; then postgres_bin >/dev/null || missing+=(postgresql); fi
    if [ -z "${AMQP_URL:-}" ]; then [ -x "$RABBIT_BIN/rabbitmq-server" ] || missing+=(rabbitmq-server); fi
    if engine_is_private; then
        if ! has dockerd || ! has containerd; then missing+=(docker.io); fi
        has iptables || missing+=(iptables)
        has mkfs.ext4 || missing+=(e2fsprogs)
    fi
    has debootstrap || missing+=(debootstrap)
    python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)
    has git || missing+=(git)
    install_packages "${missing[@]}"
}

packages_for_build() {
    has cc || install_packages build-essential
    has cargo || PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
    has cargo || die "there is no cargo on PATH" "install a Rust toolchain (1.88 or later), then run this again"
}

install_packages() {
    [ $# -gt 0 ] || return 0
    has apt-get || die "this is no Debian and these are missing: $*" \
        "install their like by hand, or give DATABASE_URL, AMQP_URL and DOCKER_HOST of running services"
    [ "$(id -u)" = 0 ] || die "these packages are missing and only root can install them: $*" \
        "as root: apt-get install $*"
    step apt "installing $*" "look at the log; then by hand: apt-get install $*" apt_install "$@"
}

apt_install() {
    export DEBIAN_FRONTEND=noninteractive
    local status=0 options=(-o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
    [ -n "$APT_UPDATED" ] || apt-get "${options[@]}" -q update || return
    APT_UPDATED=yes
    # The packages' own services must not start: the person may run theirs, and ours are started here.
    [ -e "$POLICY" ] || printf '#!/bin/sh\n%s\nexit 101\n' "$POLICY_MARK" >"$POLICY"
    chmod +x "$POLICY" 2>/dev/null || true
    apt-get "${options[@]}" -q -y --no-install-recommends install ca-certificates "$@" || status=$?
    policy_restore
    return "$status"
}

# Takes our policy away again, also one that a killed run left.
policy_restore() {
    if grep -qsF "$POLICY_MARK" "$POLICY"; then rm -f "$POLICY"; fi
}
