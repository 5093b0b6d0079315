//! The top layer: the runtime, and how a computer starts. The only one that changes when the runtime does.
//!
//! Writes the image under the name that was asked for; the engine moves the name only when the image is whole.

use std::path::Path;

use holdfast_protocol::{AGENT_UID, RUNTIME_DIR, RUNTIME_PATH, WORKSPACE_DIR};
use holdfast_shared::domain::sandbox::hex;
use sha2::{Digest, Sha256};

use super::context::Entry;
use super::error::ImageError;
use super::{Build, Reuse, short_hash};
use crate::sandbox::docker::Image;

const STEP: &str = "runtime";
/// Hash of everything the image was made from: the runtime's own hash is part of the recipe.
const INPUTS_LABEL: &str = "holdfast.image.inputs";
const PT_INTERP: u32 = 3;

/// The finished image and the hash of the runtime in it.
pub(super) async fn runtime(build: &Build<'_>, below: &str) -> Result<(Image, String), ImageError> {
    let path = &build.options.runtime;
    let binary = std::fs::read(path).map_err(ImageError::io(STEP, format!("{} cannot be read", path.display())))?;
    check_static(path, &binary)?;
    let sha256 = hex(&Sha256::digest(&binary));
    let below_id = build.required(STEP, below).await?.id;
    // What never changes comes first: the engine has those steps from the last time.
    let recipe = format!(
        "FROM {below}\n\
         ENV HOME={RUNTIME_DIR}/home LANG=C.UTF-8\n\
         WORKDIR {WORKSPACE_DIR}\n\
         USER {AGENT_UID}:{AGENT_UID}\n\
         ENTRYPOINT [\"{RUNTIME_PATH}\"]\n\
         COPY holdfast-runtime {RUNTIME_PATH}\n\
         LABEL holdfast.image.version={} holdfast.image.runtime.sha256={sha256}",
        env!("CARGO_PKG_VERSION"),
    );
    let tag = &build.options.tag;
    let before = build.engine.image(tag).await.map_err(ImageError::engine(STEP))?;
    let inputs = short_hash(&[&below_id, &recipe]);
    if let Some(before) = &before
        && build.options.reuse == Reuse::Layers
        && before.labels.get(INPUTS_LABEL) == Some(&inputs)
    {
        return Ok((before.clone(), sha256));
    }
    let dockerfile = format!("{recipe} {INPUTS_LABEL}={inputs}\n");
    let context = vec![Entry::bytes("Dockerfile", 0o644, dockerfile), Entry::bytes("holdfast-runtime", 0o755, binary)];
    let id = build.dockerfile(STEP, tag, "none", context).await?;
    let image = build.required(STEP, tag).await?;
    if !same_id(&image.id, &id) {
        let problem = format!("the image {tag} is {} in the store and not {id} as built: build again", image.id);
        return Err(ImageError::Refused { step: STEP, problem });
    }
    if let Some(before) = before.filter(|before| before.id != image.id) {
        build.engine.forget_unnamed_image(&before.id).await;
    }
    Ok((image, sha256))
}

/// The builder may say the short form.
fn same_id(full: &str, said: &str) -> bool {
    let plain = |id: &'_ str| id.trim_start_matches("sha256:").to_owned();
    let said = plain(said);
    said.len() >= 12 && plain(full).starts_with(&said)
}

/// A dynamic runtime would start in one image and not in the next, and the agent could replace what it loads.
fn check_static(path: &Path, binary: &[u8]) -> Result<(), ImageError> {
    let problem = match interpreter(binary) {
        Some(false) => return Ok(()),
        Some(true) => "is not static: build it with `-C target-feature=+crt-static`",
        None => "is not a 64-bit ELF program",
    };
    Err(ImageError::Refused { step: STEP, problem: format!("{} {problem}", path.display()) })
}

/// Whether the program asks for a loader; `None` if it is no program.
fn interpreter(binary: &[u8]) -> Option<bool> {
    let bytes = |at: usize, count: usize| binary.get(at..at + count);
    let half = |at: usize| Some(u16::from_le_bytes(bytes(at, 2)?.try_into().ok()?));
    if bytes(0, 5)? != b"\x7fELF\x02" {
        return None;
    }
    let table = u64::from_le_bytes(bytes(32, 8)?.try_into().ok()?) as usize;
    let (size, count) = (half(54)?, half(56)?);
    let mut asks = false;
    for at in 0..count {
        let kind = bytes(table.checked_add(usize::from(at) * usize::from(size))?, 4)?;
        asks |= u32::from_le_bytes(kind.try_into().ok()?) == PT_INTERP;
    }
    Some(asks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_a_loader_is_told_from_one_without() {
        let own = std::fs::read(std::env::current_exe().expect("this test")).expect("readable");
        assert_eq!(interpreter(&own), Some(cfg!(not(target_feature = "crt-static"))));
        assert_eq!(interpreter(b"#!/bin/sh\n"), None);
        assert_eq!(interpreter(&own[..40]), None);
    }

    #[test]
    fn ids_are_compared_without_their_prefix() {
        assert!(same_id("sha256:0123456789abcdef", "sha256:0123456789abcdef"));
        assert!(same_id("sha256:0123456789abcdef", "0123456789ab"));
        assert!(!same_id("sha256:0123456789abcdef", "0123"));
        assert!(!same_id("sha256:0123456789abcdef", "sha256:0123456789abcdee"));
    }
}
