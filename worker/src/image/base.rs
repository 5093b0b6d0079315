//! The bottom layer: a small Debian with what agents expect, from the public package archive and nothing else.
//!
//! Writes one image, `holdfast-base:<hash of its inputs>`, named only when it is whole. The tree it is made from lives in
//! a temporary directory.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use holdfast_protocol::{AGENT_UID, RUNTIME_DIR, WORKSPACE_DIR};
use tokio::process::Command;

use super::context::Entry;
use super::error::ImageError;
use super::pins::{BASE_RECIPE, PACKAGES, REGISTRY_BASE, SUITE};
use super::scratch::Cache;
use super::{Base, Build, command, short_hash};

const STEP: &str = "base";
/// Longer, and no registry is reachable from here.
const PULL: Duration = Duration::from_secs(15);
const BOOTSTRAP: Duration = Duration::from_secs(30 * 60);
const IMPORT: Duration = Duration::from_secs(10 * 60);
/// Trees that nothing in a computer reads.
const UNREAD: [&str; 7] = [
    "usr/share/man",
    "usr/share/info",
    "usr/share/locale",
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/log",
    "debootstrap",
];

/// Name of the base image, made if it is not there.
pub(super) async fn base(build: &Build<'_>, cache: &Cache) -> Result<String, ImageError> {
    match &build.options.base {
        Base::Registry => registry(build).await,
        Base::Debootstrap => debootstrap(build, cache).await,
        Base::Auto => {
            for name in [registry_name(), debootstrap_name(build)] {
                if build.has(STEP, &name).await? {
                    return Ok(name);
                }
            }
            match build.engine.pull_image(REGISTRY_BASE, PULL).await {
                Ok(()) => registry(build).await,
                Err(error) => {
                    tracing::debug!(%error, "no registry");
                    build.note(STEP, "no registry answers: bootstrapping from the package archive");
                    debootstrap(build, cache).await
                }
            }
        }
        Base::Image(name) => match build.engine.image(name).await.map_err(ImageError::engine(STEP))? {
            Some(_) => Ok(name.clone()),
            None => Err(refused(format!("the image {name} is not on the engine"))),
        },
    }
}

fn registry_name() -> String {
    let packages = PACKAGES.join(" ");
    format!("holdfast-base:{}", short_hash(&["registry", REGISTRY_BASE, &packages, &BASE_RECIPE.to_string()]))
}

fn debootstrap_name(build: &Build<'_>) -> String {
    let packages = PACKAGES.join(" ");
    let mirror = build.options.mirror.as_deref().unwrap_or_default();
    format!("holdfast-base:{}", short_hash(&["debootstrap", SUITE, mirror, &packages, &BASE_RECIPE.to_string()]))
}

async fn registry(build: &Build<'_>) -> Result<String, ImageError> {
    let name = registry_name();
    if build.has(STEP, &name).await? {
        return Ok(name);
    }
    let dockerfile = format!(
        "FROM {REGISTRY_BASE}\n\
         RUN apt-get update && apt-get install -y --no-install-recommends {} && rm -rf /var/lib/apt/lists/*\n\
         RUN echo '{}' >> /etc/passwd && echo '{}' >> /etc/group && echo '{}' >> /etc/shadow \
         && install -d -m 1777 {WORKSPACE_DIR} {RUNTIME_DIR}\n",
        PACKAGES.join(" "),
        passwd_line(),
        group_line(),
        shadow_line(),
    );
    build.dockerfile(STEP, &name, "default", vec![Entry::bytes("Dockerfile", 0o644, dockerfile)]).await?;
    Ok(name)
}

async fn debootstrap(build: &Build<'_>, cache: &Cache) -> Result<String, ImageError> {
    let name = debootstrap_name(build);
    if build.has(STEP, &name).await? {
        return Ok(name);
    }
    if !command::is_installed("debootstrap") {
        let advice = "install the Debian package `debootstrap`, or use `--base registry`";
        return Err(ImageError::Missing { step: STEP, program: "debootstrap", advice });
    }
    // SAFETY: geteuid cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return Err(refused("debootstrap needs root: run it as root, or use `--base registry`".to_owned()));
    }
    let temporary = cache.temporary()?;
    let root = temporary.path().join("root");
    let mut bootstrap = Command::new("debootstrap");
    bootstrap.args(["--variant=minbase", &format!("--include={}", PACKAGES.join(",")), SUITE]).arg(&root);
    bootstrap.args(&build.options.mirror).env("LC_ALL", "C");
    command::run(STEP, bootstrap, BOOTSTRAP, &|line| build.note(STEP, line)).await?;
    prepare(&root).map_err(ImageError::io(STEP, "the new tree cannot be prepared"))?;
    let mut pack = Command::new("tar");
    pack.args(["--numeric-owner", "--one-file-system", "--sort=name", "-c", "-C"]).arg(&root).arg(".");
    let packed = command::output(pack).map_err(ImageError::io(STEP, "tar cannot be run"))?;
    let labels = [("holdfast.image.base", SUITE)];
    build.engine.import_image(&name, &labels, packed, IMPORT).await.map_err(ImageError::engine(STEP))?;
    build.made(&name);
    Ok(name)
}

/// Makes the tree a computer's: its user, its two roots, and nothing of this machine (name and resolver are copied in).
fn prepare(root: &Path) -> io::Result<()> {
    for path in UNREAD {
        match fs::remove_dir_all(root.join(path)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    // apt and logging programs expect their directories.
    for path in ["var/cache/apt/archives/partial", "var/lib/apt/lists/partial", "var/log", "usr/share/locale"] {
        fs::create_dir_all(root.join(path))?;
    }
    for path in ["etc/hostname", "etc/resolv.conf", "etc/machine-id"] {
        fs::write(root.join(path), "")?;
    }
    for (path, line) in [("passwd", passwd_line()), ("group", group_line()), ("shadow", shadow_line())] {
        writeln!(fs::File::options().append(true).open(root.join("etc").join(path))?, "{line}")?;
    }
    for path in [WORKSPACE_DIR, RUNTIME_DIR] {
        let path = root.join(path.trim_start_matches('/'));
        fs::create_dir_all(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o1777))?;
    }
    Ok(())
}

fn passwd_line() -> String {
    format!("agent:x:{AGENT_UID}:{AGENT_UID}:agent:{RUNTIME_DIR}/home:/bin/bash")
}

fn group_line() -> String {
    format!("agent:x:{AGENT_UID}:")
}

fn shadow_line() -> String {
    "agent:!:19000:0:99999:7:::".to_owned()
}

fn refused(problem: String) -> ImageError {
    ImageError::Refused { step: STEP, problem }
}
