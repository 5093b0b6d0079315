//! `holdfast-worker doctor`: prints what `crate::doctor` finds, line by line as it finds it.

use clap::Args;
use holdfast_shared::config::Config;
use holdfast_shared::domain::sandbox::DEFAULT_IMAGE;

use crate::doctor::{Level, Line, examine};

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  holdfast doctor                 what a turn needs on this host, each line ok, warn or FAIL with what to do
  holdfast doctor --json

One computer is made with the default limits and removed again. Exit status: 0 without a FAIL, 1 with one.")]
pub struct DoctorArgs {
    /// The image to look into
    #[arg(long, default_value = DEFAULT_IMAGE, value_name = "NAME")]
    image: String,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// Examines and prints; the exit code is for `main`.
pub async fn run(config: &Config, args: DoctorArgs) -> u8 {
    let mut worst = Level::Ok;
    let mut tell = |line: Line| {
        worst = worst.max(line.level);
        if args.json {
            println!("{}", serde_json::to_string(&line).expect("a line always encodes"));
            return;
        }
        let mark = match line.level {
            Level::Ok => "ok  ",
            Level::Warn => "warn",
            Level::Fail => "FAIL",
        };
        println!("{mark}  {:<11} {}", line.check, line.found);
        if let Some(advice) = &line.advice {
            println!("      {:<11} {advice}", "");
        }
    };
    examine(config, &args.image, &mut tell).await;
    u8::from(worst == Level::Fail)
}
