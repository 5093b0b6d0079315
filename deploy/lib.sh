# shellcheck shell=bash
# What the entry scripts share: PostgreSQL, RabbitMQ and a Docker Engine for this checkout alone.
#
# The caller sets HF_NAME (demo or test) before it sources this file. Everything written lies under .holdfast of the
# checkout, in /run/holdfast-<hash> (sockets), and in /var/lib/holdfast-<hash> where another user cannot read the
# checkout. Every function may be called again at any time: it looks at what is there and does what is missing.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
HOME_STATE=$ROOT/.holdfast
# shellcheck disable=SC2034
case ${HF_NAME:?set HF_NAME before sourcing deploy/lib.sh} in
    demo) STATE=$HOME_STATE PORTS=27000 ;;
    test) STATE=$HOME_STATE/test PORTS=28000 ;;
    *) echo "HF_NAME must be demo or test" >&2 && exit 2 ;;
esac
# shellcheck disable=SC2034
PLACE=holdfast-$(printf %s "$ROOT" | cksum | cut -d' ' -f1)
LOGS=$STATE/log
STARTED=() OURS=()
# Downloads are shared by demo and tests.
export HOLDFAST_CACHE_DIR=${HOLDFAST_CACHE_DIR:-$HOME_STATE/cache}
export LC_ALL=C.UTF-8

# shellcheck source=deploy/lib/say.sh
. "$ROOT/deploy/lib/say.sh"
# shellcheck source=deploy/lib/packages.sh
. "$ROOT/deploy/lib/packages.sh"
# shellcheck source=deploy/lib/process.sh
. "$ROOT/deploy/lib/process.sh"
# shellcheck source=deploy/lib/postgres.sh
. "$ROOT/deploy/lib/postgres.sh"
# shellcheck source=deploy/lib/rabbitmq.sh
. "$ROOT/deploy/lib/rabbitmq.sh"
# shellcheck source=deploy/lib/engine.sh
. "$ROOT/deploy/lib/engine.sh"
# shellcheck source=deploy/lib/build.sh
. "$ROOT/deploy/lib/build.sh"
# shellcheck source=deploy/lib/bucket.sh
. "$ROOT/deploy/lib/bucket.sh"

# shellcheck source=deploy/lib/fleet.sh
. "$ROOT/deploy/lib/fleet.sh"

# Starts what is missing; afterwards DATABASE_URL, AMQP_URL and DOCKER_HOST are set and exported.
services_up() {
    mkdir -p "$LOGS"
    lock
    packages_for_services
    postgres_up
    rabbitmq_up
    engine_up
    unlock
    write_env
}

# For a person's shell. What is ours is marked, so that a script run from that shell does not take it for a service that
# somebody else looks after.
write_env() {
    local name
    (
        umask 077
        for name in DATABASE_URL AMQP_URL DOCKER_HOST HOLDFAST_CACHE_DIR; do
            printf 'export %s=%q\n' "$name" "${!name}"
        done
        for name in "${OURS[@]}"; do printf 'export HOLDFAST_OURS_%s=%q\n' "$name" "${!name}"; done
    ) >"$STATE/env"
    chmod 600 "$STATE/env"
}

forget_ours() {
    local name mark
    for name in DATABASE_URL AMQP_URL DOCKER_HOST; do
        mark=HOLDFAST_OURS_$name
        if [ -n "${!name:-}" ] && [ "${!name}" = "${!mark:-}" ]; then unset "$name"; fi
        unset "$mark"
    done
}
forget_ours

# Stops the services that this very run started.
started_down() {
    unlock
    local service
    for service in "${STARTED[@]}"; do "${service}_down"; done
}

# Stops what services_up started, now or earlier, and nothing else.
services_down() {
    lock
    rabbitmq_down
    postgres_down
    engine_down
    unlock
    rm -f "$STATE/env"
}

# One entry script at a time starts or stops services. The daemons must not inherit the lock: see `daemon`.
lock() {
    mkdir -p "$HOME_STATE"
    exec 9>"$HOME_STATE/lock"
    flock -n 9 || { say "waiting for another deploy script" && flock -w 900 9; } || die "the lock $HOME_STATE/lock is held" \
        "see who holds it: fuser $HOME_STATE/lock"
}

unlock() { exec 9>&-; }
