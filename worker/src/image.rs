//! Making the image of the computers: a Debian base, the harnesses, the runtime on top; from public package sources only.
//!
//! Each layer is an image of its own, named by a hash of what went into it, and used again while that hash holds: a new
//! runtime costs a fraction of a second. Dying anywhere leaves whole layers, or none, and temporary trees that the next
//! build clears.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use holdfast_shared::domain::sandbox::{DEFAULT_IMAGE, hex};
use sha2::{Digest, Sha256};

use self::context::Entry;
use self::scratch::Cache;
use crate::sandbox::docker::{Engine, Image, Recipe};

mod base;
mod command;
pub mod context;
mod error;
mod harness;
mod pins;
mod runtime;
mod scratch;

pub use self::error::ImageError;

const BUILD: Duration = Duration::from_secs(30 * 60);

/// Where the base comes from.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Base {
    /// The registry if it answers within seconds, else debootstrap.
    #[default]
    Auto,
    Registry,
    Debootstrap,
    /// An image that is on the engine already. It must know the user and the two directories (see `base`).
    Image(String),
}

impl std::str::FromStr for Base {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Base::Auto),
            "registry" => Ok(Base::Registry),
            "debootstrap" => Ok(Base::Debootstrap),
            _ => match text.strip_prefix("image:") {
                Some(name) if !name.is_empty() => Ok(Base::Image(name.to_owned())),
                _ => Err(format!("base `{text}` is not one of auto, registry, debootstrap, image:NAME")),
            },
        }
    }
}

/// Which agent programs the image carries beside the runtime's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Harness {
    #[default]
    All,
    Claude,
    Codex,
    /// Only what the runtime brings itself.
    Scripted,
}

impl Harness {
    /// The larger and the rarer changed comes first: it is the lower layer.
    fn programs(self) -> Vec<&'static pins::Program> {
        match self {
            Harness::All => vec![&pins::CLAUDE, &pins::CODEX],
            Harness::Claude => vec![&pins::CLAUDE],
            Harness::Codex => vec![&pins::CODEX],
            Harness::Scripted => vec![],
        }
    }
}

/// Whether layers that are there already are good enough.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reuse {
    #[default]
    Layers,
    /// Make everything again, for newer packages.
    Nothing,
}

/// What to build.
#[derive(Clone, Debug)]
pub struct Options {
    pub tag: String,
    pub base: Base,
    pub harness: Harness,
    pub reuse: Reuse,
    /// The static runtime binary.
    pub runtime: PathBuf,
    /// Downloads are kept here.
    pub cache: PathBuf,
    /// Package archive for debootstrap instead of its own default.
    pub mirror: Option<String>,
}

impl Options {
    /// The default image with a runtime.
    pub fn new(runtime: PathBuf, cache: PathBuf) -> Self {
        Self {
            tag: DEFAULT_IMAGE.to_owned(),
            base: Base::default(),
            harness: Harness::default(),
            reuse: Reuse::default(),
            runtime,
            cache,
            mirror: None,
        }
    }
}

/// What a person watching hears.
#[derive(Clone, PartialEq, Debug)]
pub enum Progress {
    /// Something a step said.
    Note { step: &'static str, line: String },
    /// A step is done; `reused` if there was nothing to do.
    Done { step: &'static str, took: Duration, reused: bool },
}

/// The image that is in the store now, under its name.
#[derive(Clone, PartialEq, Debug)]
pub struct BuiltImage {
    pub tag: String,
    pub id: String,
    pub size_bytes: u64,
    /// Name of the base layer.
    pub base: String,
    /// Package and version of each harness.
    pub harnesses: Vec<String>,
    pub runtime_sha256: String,
    pub took: Duration,
}

/// Builds the image, or finds that it is built.
pub async fn build(options: &Options, progress: &(dyn Fn(Progress) + Send + Sync)) -> Result<BuiltImage, ImageError> {
    let began = Instant::now();
    let engine = Engine::connect().await.map_err(ImageError::engine("engine"))?;
    let build = Build { options, progress, engine, made: Default::default() };
    let waiting = || build.note("cache", "another build is running: waiting for it");
    let cache = Cache::open(&options.cache, waiting).await?;
    let base = build.step("base", base::base(&build, &cache)).await?;
    let (mut below, mut harnesses) = (base.clone(), Vec::new());
    for program in options.harness.programs() {
        below = build.step(program.name, harness::layer(&build, &cache, &below, program)).await?;
        harnesses.push(format!("{} {}", program.wheel.package, program.wheel.version));
    }
    let (image, runtime_sha256) = build.step("runtime", runtime::runtime(&build, &below)).await?;
    let Image { id, size_bytes, .. } = image;
    Ok(BuiltImage { tag: options.tag.clone(), id, size_bytes, base, harnesses, runtime_sha256, took: began.elapsed() })
}

/// One build under way.
struct Build<'a> {
    options: &'a Options,
    progress: &'a (dyn Fn(Progress) + Send + Sync),
    engine: Engine,
    /// Layers this build made; with `Reuse::Nothing` only these count as there.
    made: std::sync::Mutex<Vec<String>>,
}

impl Build<'_> {
    async fn step<T>(
        &self,
        step: &'static str,
        work: impl Future<Output = Result<T, ImageError>>,
    ) -> Result<T, ImageError> {
        let (began, before) = (Instant::now(), self.made_count());
        let result = work.await?;
        let reused = self.made_count() == before;
        (self.progress)(Progress::Done { step, took: began.elapsed(), reused });
        Ok(result)
    }

    fn note(&self, step: &'static str, line: &str) {
        (self.progress)(Progress::Note { step, line: line.to_owned() });
    }

    /// Whether a layer needs no making.
    async fn has(&self, step: &'static str, name: &str) -> Result<bool, ImageError> {
        match self.options.reuse {
            Reuse::Layers => Ok(self.engine.image(name).await.map_err(ImageError::engine(step))?.is_some()),
            Reuse::Nothing => Ok(self.made.lock().expect("never poisoned").iter().any(|made| made == name)),
        }
    }

    async fn required(&self, step: &'static str, name: &str) -> Result<Image, ImageError> {
        let found = self.engine.image(name).await.map_err(ImageError::engine(step))?;
        found.ok_or_else(|| ImageError::Refused { step, problem: format!("the image {name} is not in the store") })
    }

    async fn dockerfile(
        &self,
        step: &'static str,
        name: &str,
        network: &str,
        context: Vec<Entry>,
    ) -> Result<String, ImageError> {
        // The builder's own bookkeeping tells a person nothing.
        let chatter = [" --->", "Removing intermediate", "Successfully"];
        let say = |line: &str| {
            if !chatter.iter().any(|start| line.starts_with(start)) {
                self.note(step, line);
            }
        };
        let recipe = Recipe { name, network, fresh: self.options.reuse == Reuse::Nothing };
        let built = self.engine.build_image(recipe, context::tar(context), BUILD, &say).await;
        let id = built.map_err(ImageError::engine(step))?;
        self.made(name);
        Ok(id)
    }

    fn made(&self, name: &str) {
        self.made.lock().expect("never poisoned").push(name.to_owned());
    }

    fn made_count(&self) -> usize {
        self.made.lock().expect("never poisoned").len()
    }
}

/// Of each part and its length, so that parts cannot flow into each other.
fn short_hash(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hex(&hash.finalize())[..16].to_owned()
}
