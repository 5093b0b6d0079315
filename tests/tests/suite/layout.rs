//! The architecture as a test: which crate may name what, which way the arrows go, what a file must open with.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a source directory").flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn all() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for part in ["shared", "producer", "worker", "tests"] {
        sources(&root().join(part), &mut found);
    }
    assert!(found.len() > 100, "the sources are not where this test looks");
    let read = |path: PathBuf| {
        let name = path.strip_prefix(root()).expect("below the root").display().to_string();
        let text = std::fs::read_to_string(&path).expect("a source is text");
        (name, text)
    };
    found.into_iter().map(read).collect()
}

/// True where the crate is named as a path (`name::`) or imported.
fn names(text: &str, krate: &str) -> bool {
    text.lines().filter(|line| !line.trim_start().starts_with("//")).any(|line| {
        line.match_indices(krate).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = &line[at + krate.len()..];
            !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
                && (after.starts_with("::") || after.starts_with(" as "))
        })
    })
}

#[test]
fn each_outside_system_has_one_door() {
    let doors: [(&str, &[&str]); 8] = [
        ("sqlx", &["shared/src/db", "shared/examples", "tests/"]),
        ("lapin", &["shared/src/queue", "tests/"]),
        ("bollard", &["worker/src/sandbox/docker", "tests/"]),
        ("object_store", &["shared/src/store/bucket.rs"]),
        ("chacha20poly1305", &["shared/src/store/keys.rs"]),
        ("backoff", &["shared/src/retry.rs"]),
        ("prometheus", &["shared/src/telemetry"]),
        ("figment", &["shared/src/config"]),
    ];
    for (name, text) in all() {
        for (krate, allowed) in doors {
            let inside = allowed.iter().any(|door| name.starts_with(door));
            assert!(inside || !names(&text, krate), "{name} names {krate}; only {allowed:?} may");
        }
    }
}

#[test]
fn arrows_go_one_way() {
    let allowed: [(&str, &[&str]); 5] = [
        ("shared/protocol/", &[]),
        ("shared/", &["holdfast_protocol"]),
        ("worker/runtime/", &["holdfast_protocol"]),
        ("worker/", &["holdfast_protocol", "holdfast_shared"]),
        ("producer/", &["holdfast_protocol", "holdfast_shared"]),
    ];
    let crates = ["holdfast_protocol", "holdfast_shared", "holdfast_worker", "holdfast_runtime", "holdfast_tests"];
    for (name, text) in all() {
        let Some((part, allowed)) =
            allowed.iter().filter(|(part, _)| name.starts_with(part)).max_by_key(|(part, _)| part.len())
        else {
            continue;
        };
        let own = match *part {
            "worker/" => "holdfast_worker",
            // Its examples use it as others do.
            "shared/" => "holdfast_shared",
            "worker/runtime/" => "holdfast_runtime",
            _ => "",
        };
        for krate in crates {
            assert!(krate == own || allowed.contains(&krate) || !names(&text, krate), "{name} of {part} names {krate}");
        }
    }
    for (name, text) in all() {
        let pure = name.starts_with("shared/protocol/") || name.starts_with("shared/src/domain");
        assert!(!(pure && (names(&text, "tokio") || text.contains(".await"))), "{name} is to be pure");
        assert!(!(name.starts_with("worker/runtime/src") && names(&text, "tokio")), "{name}: no tokio in the runtime");
    }
}

#[test]
fn files_say_why_they_exist_and_stay_readable() {
    let mut lengths = Vec::new();
    for (name, text) in all() {
        assert!(text.starts_with("//!"), "{name} does not open with `//!`");
        let lines = text.lines().count();
        assert!(lines <= 800, "{name} has {lines} lines");
        lengths.push(lines);
    }
    lengths.sort_unstable();
    let median = lengths[lengths.len() / 2];
    assert!(median <= 160, "the median file has {median} lines");
}

#[test]
fn the_top_level_is_what_the_design_says() {
    let known = [
        "Cargo.toml",
        "Cargo.lock",
        "README.md",
        "LICENSE",
        "worker",
        "producer",
        "shared",
        "migrations",
        "deploy",
        "tests",
        "target",
    ];
    for entry in std::fs::read_dir(root()).expect("the root").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        assert!(name.starts_with('.') || known.contains(&name.as_str()), "`{name}` is not in the fixed layout");
    }
}
