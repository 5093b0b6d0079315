//! `holdfast-worker gc`: what the sweeper would remove from this host's engine, said before it is done, or done now.
//!
//! Every removal is idempotent and decided anew from the engine's list and the database; dying in it leaves the rest for
//! the next look.

use clap::Args;
use holdfast_shared::config::Config;
use holdfast_shared::db::Db;

use super::fail;
use crate::sandbox::docker::Docker;
use crate::sandbox::{Sandbox, SandboxError};
use crate::sweep::plan::{Plan, Step, plan};

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  holdfast gc             say what would go, and why (the same as --dry-run)
  holdfast gc --apply     remove it

Only what carries the label of this installation is looked at. A computer younger than a minute is left alone: the
worker that makes it may be about to record it. Workers do the same by themselves every 30 seconds.")]
pub struct GcArgs {
    /// Say what would go, and why
    #[arg(long, conflicts_with = "apply")]
    dry_run: bool,
    /// Remove it
    #[arg(long)]
    apply: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Plans, prints, applies; the exit code is for `main`.
pub async fn run(config: &Config, args: GcArgs) -> u8 {
    match collect(config, args.apply).await {
        Ok(done) => {
            if args.json {
                println!("{}", done.json());
            } else {
                done.print();
            }
            u8::from(!done.failed.is_empty())
        }
        Err(line) => fail(3, &line),
    }
}

struct Done {
    plan: Plan,
    stray_volumes: Vec<String>,
    applied: bool,
    failed: Vec<String>,
}

async fn collect(config: &Config, apply: bool) -> Result<Done, String> {
    let text = |error: holdfast_shared::db::DbError| format!("{:#}", anyhow::Error::new(error));
    let sandbox_text = |error: SandboxError| format!("{:#}", anyhow::Error::new(error));
    let db = Db::reach(config.database_url.reveal(), 2).await.map_err(text)?;
    let installation = db.installation().await.map_err(text)?;
    let docker = super::docker(config, &installation).await?;
    let there = docker.list().await.map_err(sandbox_text)?;
    let known = db.known_computers(docker.engine_id()).await.map_err(text)?;
    let retired = db.retired(docker.engine_id(), i64::MAX).await.map_err(text)?;
    let stray_volumes = docker.stray_volumes().await.map_err(sandbox_text)?;
    let mut done = Done { plan: plan(&there, &known, &retired), stray_volumes, applied: apply, failed: Vec::new() };
    if apply {
        for step in &done.plan.steps {
            if let Err(line) = take(&db, &docker, step).await {
                done.failed.push(line);
            }
        }
        if let Err(error) = docker.remove_stray_volumes().await {
            done.failed.push(sandbox_text(error));
        }
    }
    Ok(done)
}

async fn take(db: &Db, docker: &Docker, step: &Step) -> Result<(), String> {
    let (name, missing) = match step {
        Step::Retired { computer, .. } | Step::Unknown { computer, .. } => (computer, false),
        Step::Missing { computer } => (computer, true),
    };
    let recorded = if missing {
        db.forget_warm(docker.engine_id(), name).await
    } else {
        match docker.destroy(name).await {
            Ok(()) | Err(SandboxError::Gone { .. }) => db.computer_gone(name).await,
            Err(error) => return Err(format!("{:#}", anyhow::Error::new(error))),
        }
    };
    recorded.map_err(|error| format!("{:#}", anyhow::Error::new(error)))
}

impl Done {
    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "applied": self.applied, "steps": self.plan.steps, "stray_volumes": self.stray_volumes,
            "too_young": self.plan.too_young, "kept": self.plan.kept, "failed": self.failed,
        })
    }

    fn print(&self) {
        let verb = if self.applied { "removed" } else { "would remove" };
        for step in &self.plan.steps {
            match step {
                Step::Retired { computer, why } => println!("{verb} computer {computer}: retired ({why})"),
                Step::Unknown { computer, age_s } => {
                    println!("{verb} computer {computer}: the database does not know it ({age_s} s old)");
                }
                Step::Missing { computer } => println!(
                    "{} computer {computer}: parked, but gone from the engine",
                    if self.applied { "forgot" } else { "would forget" }
                ),
            }
        }
        for volume in &self.stray_volumes {
            println!("{verb} volume {volume}: no container has it");
        }
        for name in &self.plan.too_young {
            println!("left computer {name}: younger than a minute");
        }
        for line in &self.failed {
            eprintln!("holdfast-worker: not removed: {line}");
        }
        let things = self.plan.steps.len() + self.stray_volumes.len();
        let kept = self.plan.kept;
        match (things, self.applied) {
            (0, _) => eprintln!("nothing to remove; {kept} in use"),
            (_, false) => eprintln!("{things} to remove, {kept} in use; `holdfast gc --apply` removes them"),
            (_, true) => eprintln!("{} removed, {kept} in use", things - self.failed.len().min(things)),
        }
    }
}
