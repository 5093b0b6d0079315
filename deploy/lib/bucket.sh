# shellcheck shell=bash
# An S3-compatible server for tests, from Python's public packages, kept inside the checkout. Each test starts its own.

S3_SERVER_VERSION=5.2.5

# Sets S3_SERVER.
s3_server() {
    local dir=$HOME_STATE/s3/$S3_SERVER_VERSION
    S3_SERVER=${HOLDFAST_TEST_S3_SERVER:-$dir/moto_server}
    if [ -x "$S3_SERVER" ]; then
        say "S3-compatible server: $S3_SERVER"
        return
    fi
    [ -z "${HOLDFAST_TEST_S3_SERVER:-}" ] || die "HOLDFAST_TEST_S3_SERVER is no program: $S3_SERVER" "unset it"
    step s3-server "S3-compatible server: fetching moto $S3_SERVER_VERSION (60 MB)" \
        "look at the log, or set HOLDFAST_TEST_S3_SERVER to a moto_server" s3_server_fetch "$dir"
}

s3_server_fetch() {
    local dir=$1 new=$HOME_STATE/s3/new
    rm -rf "$new"
    mkdir -p "$new"
    # moto's extra `server` names far more than the one service that is used here.
    python3 -m pip install -q --disable-pip-version-check --target "$new/lib" \
        "moto==$S3_SERVER_VERSION" flask flask-cors py-partiql-parser || return
    printf '#!/bin/sh\nPYTHONPATH=%s exec python3 -m moto.server "$@"\n' "'$dir/lib'" >"$new/moto_server"
    chmod 755 "$new/moto_server"
    rm -rf "$dir"
    mv "$new" "$dir"
    "$dir/moto_server" --help
}
