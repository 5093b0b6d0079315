//! The middle layers: the agent programs from their published wheels, whose hashes are pinned; one layer each.
//!
//! Writes a wheel into the cache (under its name only when its hash is right) and one image for each program,
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
use super::pins::{Program, Wheel};
use super::scratch::Cache;
use super::{Build, command, short_hash};

const STEP: &str = "harness";
const DOWNLOAD: Duration = Duration::from_secs(20 * 60);
const UNPACK: Duration = Duration::from_secs(5 * 60);
/// Standard library only: the wheel, a directory, and the members, each into a file named by its place in the list.
const UNPACK_SCRIPT: &str = "import shutil, sys, zipfile; \
    w = zipfile.ZipFile(sys.argv[1]); \
    [shutil.copyfileobj(w.open(m), open(f'{sys.argv[2]}/{i}', 'wb'), 1 << 20) for i, m in enumerate(sys.argv[3:])]";

/// Name of the image with the program on the layer below, made if it is not there.
pub(super) async fn layer(
    build: &Build<'_>,
    cache: &Cache,
    below: &str,
    program: &Program,
) -> Result<String, ImageError> {
    // The id of the layer below, not its name: one that was made again is another one.
    let below_id = build.required(STEP, below).await?.id;
    let wheel = &program.wheel;
    let name = format!("holdfast-harness:{}", short_hash(&[&below_id, wheel.sha256, &program.recipe.to_string()]));
    if build.has(STEP, &name).await? {
        return Ok(name);
    }
    if !command::is_installed("python3") {
        let advice = "install the Debian packages `python3` and `python3-pip`";
        return Err(ImageError::Missing { step: STEP, program: "python3", advice });
    }
    let temporary = cache.temporary()?;
    let file = fetch(build, cache, temporary.path(), wheel).await?;
    let mut unpack = Command::new("python3");
    unpack.args(["-c", UNPACK_SCRIPT]).arg(&file).arg(temporary.path());
    unpack.args(program.members.iter().map(|(member, _)| member));
    command::run(STEP, unpack, UNPACK, &|line| build.note(STEP, line)).await?;
    let Program { name: label, directory, .. } = program;
    let dockerfile = format!(
        "FROM {below}\nCOPY {label} {directory}\nLABEL holdfast.image.{label}={}-{} holdfast.image.{label}.sha256={}\n",
        wheel.package, wheel.version, wheel.sha256
    );
    let mut context = vec![Entry::bytes("Dockerfile", 0o644, dockerfile)];
    for (index, (_, path)) in program.members.iter().enumerate() {
        let mode = if path.ends_with(".json") { 0o644 } else { 0o755 };
        context.push(Entry::file(&format!("{label}/{path}"), mode, temporary.path().join(index.to_string())));
    }
    build.dockerfile(STEP, &name, "none", context).await?;
    Ok(name)
}

/// The wheel in the cache, downloaded if it is not there or not what it was.
async fn fetch(build: &Build<'_>, cache: &Cache, temporary: &Path, wheel: &Wheel) -> Result<PathBuf, ImageError> {
    let kept = cache.file(wheel.file);
    if kept.is_file() && sha256(&kept)? == wheel.sha256 {
        return Ok(kept);
    }
    build.note(STEP, &format!("downloading {} {}", wheel.package, wheel.version));
    let requirements = temporary.join("requirements.txt");
    let pinned = format!("{}=={} --hash=sha256:{}\n", wheel.package, wheel.version, wheel.sha256);
    std::fs::write(&requirements, pinned).map_err(ImageError::io(STEP, "requirements cannot be written"))?;
    let mut download = Command::new("python3");
    download.args(["-m", "pip", "download", "--no-input", "--disable-pip-version-check", "--no-cache-dir"]);
    download.args(["--no-deps", "--only-binary=:all:", "--platform", wheel.platform, "--require-hashes", "-r"]);
    download.arg(&requirements).arg("-d").arg(temporary);
    command::run(STEP, download, DOWNLOAD, &|line| build.note(STEP, line)).await?;
    let fresh = temporary.join(wheel.file);
    if sha256(&fresh)? != wheel.sha256 {
        let problem = format!("the wheel of {} {} is not the pinned one", wheel.package, wheel.version);
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
