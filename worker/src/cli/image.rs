//! `holdfast-worker image build`: options, progress lines, result. The image itself is made in `crate::image`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use holdfast_shared::config::Config;

use crate::image::{Base, Harness, Options, Progress, Reuse, build};

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  holdfast image build                              build, or find that nothing changed (about a second)
  holdfast image build --base debootstrap --fresh   make every layer again, for newer packages
  holdfast image build --harness codex              only that agent program: a smaller image
  holdfast image build --tag team/sandbox:2 --json")]
pub struct BuildArgs {
    /// Where the base comes from: auto (a registry if one answers, else debootstrap), registry, debootstrap, image:NAME
    #[arg(long, default_value = "auto", value_name = "SOURCE")]
    base: Base,
    /// The agent programs beside the runtime's own
    #[arg(long, value_enum, default_value_t = HarnessArg::All)]
    harness: HarnessArg,
    /// Name of the image
    #[arg(long, default_value = holdfast_shared::domain::sandbox::DEFAULT_IMAGE)]
    tag: String,
    /// Make every layer again
    #[arg(long)]
    fresh: bool,
    /// The static runtime binary [default: HOLDFAST_RUNTIME, or `holdfast-runtime` beside this binary]
    #[arg(long, value_name = "PATH")]
    runtime: Option<PathBuf>,
    /// Package archive for debootstrap instead of its own default
    #[arg(long, env = "HOLDFAST_DEBIAN_MIRROR", value_name = "URL")]
    mirror: Option<String>,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum HarnessArg {
    /// Claude Code and Codex
    All,
    Claude,
    Codex,
    /// Only the stand-in agent that the runtime brings itself
    Scripted,
}

/// Builds and prints; the exit code is for `main`.
pub async fn run(config: &Config, args: BuildArgs) -> u8 {
    let Some(runtime) = args.runtime.or_else(|| config.runtime.clone()).or_else(beside) else {
        return super::fail(
            2,
            "no runtime binary: give --runtime or HOLDFAST_RUNTIME, or put `holdfast-runtime` beside this binary",
        );
    };
    if !runtime.is_file() {
        return super::fail(2, &format!("the runtime binary {} is not there", runtime.display()));
    }
    let mut options = Options::new(runtime, cache(config));
    options.tag = args.tag;
    options.base = args.base;
    options.harness = match args.harness {
        HarnessArg::All => Harness::All,
        HarnessArg::Claude => Harness::Claude,
        HarnessArg::Codex => Harness::Codex,
        HarnessArg::Scripted => Harness::Scripted,
    };
    options.reuse = if args.fresh { Reuse::Nothing } else { Reuse::Layers };
    options.mirror = args.mirror;
    match build(&options, &show).await {
        Ok(built) if args.json => {
            let object = serde_json::json!({
                "tag": built.tag, "id": built.id, "size_bytes": built.size_bytes, "base": built.base,
                "harnesses": built.harnesses, "runtime_sha256": built.runtime_sha256, "seconds": built.took.as_secs_f64(),
            });
            println!("{object}");
            0
        }
        Ok(built) => {
            let harness: String = built.harnesses.iter().map(|harness| format!(", {harness}")).collect();
            println!(
                "{} is {} ({} MB on {}{harness}) after {:.1} s",
                built.tag,
                built.id.get(..19).unwrap_or(&built.id),
                built.size_bytes / 1_000_000,
                built.base,
                built.took.as_secs_f64()
            );
            0
        }
        Err(error) => super::fail(1, &format!("{:#}", anyhow::Error::new(error))),
    }
}

fn show(progress: Progress) {
    match progress {
        Progress::Note { step, line } => eprintln!("  {step}: {line}"),
        Progress::Done { step, took, reused: true } => eprintln!("{step}: up to date ({:.1} s)", took.as_secs_f64()),
        Progress::Done { step, took, reused: false } => eprintln!("{step}: made in {:.1} s", took.as_secs_f64()),
    }
}

fn beside() -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?.with_file_name("holdfast-runtime");
    path.is_file().then_some(path)
}

/// Where the worker keeps what it has fetched.
pub(super) fn cache(config: &Config) -> PathBuf {
    config.cache_dir.clone().unwrap_or_else(|| {
        let home = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        home("XDG_CACHE_HOME")
            .or_else(|| home("HOME").map(|home| home.join(".cache")))
            .unwrap_or_else(std::env::temp_dir)
            .join("holdfast")
    })
}
