//! Commands that look at this host's engine: the worker's binary speaks to it, so they are handed over to it whole.
//! Writes nothing itself; from the exec on the worker's binary is the process.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;

use crate::cli::Global;
use crate::stop::Stop;

const WORKER: &str = "holdfast-worker";

/// Everything after the command's name.
#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct HandedArgs {
    /// Passed on to `holdfast-worker`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    args: Vec<String>,
}

/// Becomes `holdfast-worker COMMAND ARGS`, with the settings given as flags in its environment.
pub fn run(global: &Global, command: &[&str], args: HandedArgs) -> Result<(), Stop> {
    let program = beside().unwrap_or_else(|| PathBuf::from(WORKER));
    let mut worker = Command::new(&program);
    worker.args(command).args(args.args).envs(global.environment());
    if global.json {
        worker.arg("--json");
    }
    let error = worker.exec();
    Err(Stop::failed(format!("cannot run {}: {error}", program.display()))
        .hint(format!("install {WORKER} beside holdfast or in PATH")))
}

/// The worker that was installed together with this command.
fn beside() -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?.canonicalize().ok()?.with_file_name(WORKER);
    path.is_file().then_some(path)
}
