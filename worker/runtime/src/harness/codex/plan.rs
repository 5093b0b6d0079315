//! How Codex is started for a turn.
//!
//! Pure. Everything goes by a file of mode 0600 and by stdin: arguments are seen by everybody. The conversation's
//! directory is the only part of Codex's home that is kept.

use holdfast_protocol::harness::CodexSettings;
use holdfast_protocol::message::StartTurn;

use super::{ask, config};
use crate::harness::{Input, PATH, Plan, environment};
use crate::settings::Place;

pub(super) fn plan(settings: &CodexSettings, turn: &StartTurn, place: &Place) -> Result<Plan, String> {
    let home = place.state.join("home");
    let codex = place.state.join("codex");
    let caches = place.state.join("codex-caches");
    let base = [
        ("PATH", PATH.to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
        ("TMPDIR", "/tmp".to_owned()),
        // Its log would only say that it found no sandbox of its own, which it does not need.
        ("RUST_LOG", "error,codex_app_server=off".to_owned()),
    ];
    let fixed = [
        ("HOME", home.display().to_string()),
        ("CODEX_HOME", codex.display().to_string()),
        ("CODEX_SQLITE_HOME", caches.display().to_string()),
    ];
    let configuration = config::toml(&config::tree(settings)?).into_bytes();
    // Checked here, where an error still has a voice.
    ask::output_schema(settings)?;
    Ok(Plan {
        program: place.codex.clone(),
        args: vec!["app-server".to_owned(), "--strict-config".to_owned()],
        env: environment(&base, turn, &fixed),
        stdin: ask::opening(settings, turn, place),
        input: Input::Dialogue,
        // What a killed process left in them is no reason to fail.
        remove: vec![caches.clone(), codex.join("thread-writer-locks")],
        files: vec![(codex.join("config.toml"), configuration)],
        directories: vec![home, codex, caches],
    })
}
