//! `holdfast image ...`: hands over to the worker's binary, which speaks to the engine. Writes nothing itself.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;

use crate::stop::Stop;

const WORKER: &str = "holdfast-worker";

#[derive(Args)]
#[command(disable_help_flag = true, after_help = "Example: holdfast image build")]
pub struct ImageArgs {
    /// Passed on to `holdfast-worker image`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    args: Vec<String>,
}

pub fn run(args: ImageArgs) -> Result<(), Stop> {
    let program = beside().unwrap_or_else(|| PathBuf::from(WORKER));
    let error = Command::new(&program).arg("image").args(args.args).exec();
    Err(Stop::failed(format!("cannot run {}: {error}", program.display()))
        .hint(format!("install {WORKER} beside holdfast or in PATH")))
}

/// The worker that was installed together with this command.
fn beside() -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?.canonicalize().ok()?.with_file_name(WORKER);
    path.is_file().then_some(path)
}
