//! The middle layer: Claude Code from its published wheel, whose hash is pinned.
//!
//! Writes the wheel into the cache (under its name only when its hash is right) and one image,
//! `holdfast-harness:<hash of its inputs>`, named only when it is whole.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_shared::domain::sandbox::hex;
use sha2::{Digest, Sha256};
use tokio::process::Command;

use super::context::Entry;
use super::error::ImageError;
use super::pins::{CLAUDE, CLAUDE_PATH, CLAUDE_RECIPE};
use super::scratch::Cache;
use super::{Build, command, short_hash};

const STEP: &str = "harness";
const DOWNLOAD: Duration = Duration::from_secs(20 * 60);
const UNPACK: Duration = Duration::from_secs(5 * 60);
/// Standard library only.
const UNPACK_SCRIPT: &str = "import shutil, sys, zipfile; \
    shutil.copyfileobj(zipfile.ZipFile(sys.argv[1]).open(sys.argv[2]), open(sys.argv[3], 'wb'), 1 << 20)";

/// Name of the image with Claude Code on the base, made if it is not there.
pub(super) async fn claude(build: &Build<'_>, cache: &Cache, base: &str) -> Result<String, ImageError> {
    // The base's id, not its name: a base that was made again is another base.
    let base_id = build.required(STEP, base).await?.id;
    let name = format!("holdfast-harness:{}", short_hash(&[&base_id, CLAUDE.sha256, &CLAUDE_RECIPE.to_string()]));
    if build.has(STEP, &name).await? {
        return Ok(name);
    }
    if !command::is_installed("python3") {
        let advice = "install the Debian packages `python3` and `python3-pip`";
        return Err(ImageError::Missing { step: STEP, program: "python3", advice });
    }
    let temporary = cache.temporary()?;
    let wheel = wheel(build, cache, temporary.path()).await?;
    let binary = temporary.path().join("claude");
    let mut unpack = Command::new("python3");
    unpack.args(["-c", UNPACK_SCRIPT]).arg(&wheel).arg(CLAUDE.member).arg(&binary);
    command::run(STEP, unpack, UNPACK, &|line| build.note(STEP, line)).await?;
    let dockerfile = format!(
        "FROM {base}\nCOPY claude {CLAUDE_PATH}\nLABEL holdfast.image.claude={}-{} holdfast.image.claude.sha256={}\n",
        CLAUDE.package, CLAUDE.version, CLAUDE.sha256
    );
    let context = vec![Entry::bytes("Dockerfile", 0o644, dockerfile), Entry::file("claude", 0o755, binary)];
    build.dockerfile(STEP, &name, "none", context).await?;
    Ok(name)
}

/// The wheel in the cache, downloaded if it is not there or not what it was.
async fn wheel(build: &Build<'_>, cache: &Cache, temporary: &Path) -> Result<PathBuf, ImageError> {
    let kept = cache.file(CLAUDE.file);
    if kept.is_file() && sha256(&kept)? == CLAUDE.sha256 {
        return Ok(kept);
    }
    build.note(STEP, &format!("downloading {} {}", CLAUDE.package, CLAUDE.version));
    let requirements = temporary.join("requirements.txt");
    let pinned = format!("{}=={} --hash=sha256:{}\n", CLAUDE.package, CLAUDE.version, CLAUDE.sha256);
    std::fs::write(&requirements, pinned).map_err(ImageError::io(STEP, "requirements cannot be written"))?;
    let mut download = Command::new("python3");
    download.args(["-m", "pip", "download", "--no-input", "--disable-pip-version-check", "--no-cache-dir"]);
    download.args(["--no-deps", "--only-binary=:all:", "--platform", CLAUDE.platform, "--require-hashes", "-r"]);
    download.arg(&requirements).arg("-d").arg(temporary);
    command::run(STEP, download, DOWNLOAD, &|line| build.note(STEP, line)).await?;
    let fresh = temporary.join(CLAUDE.file);
    if sha256(&fresh)? != CLAUDE.sha256 {
        let problem = format!("the wheel of {} {} is not the pinned one", CLAUDE.package, CLAUDE.version);
        return Err(ImageError::Refused { step: STEP, problem });
    }
    std::fs::rename(&fresh, &kept).map_err(ImageError::io(STEP, "the wheel cannot be kept"))?;
    Ok(kept)
}

fn sha256(path: &Path) -> Result<String, ImageError> {
    let digest = || -> io::Result<String> {
        let (mut file, mut hash, mut buffer) = (File::open(path)?, Sha256::new(), vec![0; 1 << 20]);
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(hex(&hash.finalize())),
                n => hash.update(&buffer[..n]),
            }
        }
    };
    digest().map_err(ImageError::io(STEP, format!("{} cannot be read", path.display())))
}
