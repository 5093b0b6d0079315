//! Everything that the tasks of a batch left, in a directory: `0001-SESSION/{result.json, changes.patch, files/}`. Each task
//! is written beneath another name until it is whole, so the same command given again goes on where it stopped.

use std::path::{Path, PathBuf};

use holdfast_protocol::{BatchId, CheckpointId, SessionId};
use holdfast_shared::db::views::TaskView;
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::context::Context;
use crate::printer;
use crate::resolve::Point;
use crate::stop::Stop;
use crate::text;
use crate::tree::changes::between;
use crate::tree::patch::{self, Binary};
use crate::tree::{Snapshot, dir, list};

/// Whether the whole workspace of every task is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Files {
    Written,
    LeftOut,
}

/// What was written.
#[derive(Clone, Copy, Default)]
struct Done {
    written: u64,
    there: u64,
    open: u64,
}

pub async fn batch(context: &Context, batch: BatchId, out: &Path, files: Files) -> Result<(), Stop> {
    let db = context.db().await?;
    let tasks = db.batch_tasks(batch, None).await?;
    std::fs::create_dir_all(out).map_err(|error| Stop::bad(format!("cannot make `{}`: {error}", out.display())))?;
    let width = tasks.len().to_string().len().max(4);
    let bar = printer::bar(tasks.len() as u64, "tasks written");
    let mut done = Done::default();
    for task in &tasks {
        let place = out.join(format!("{:0width$}-{}", task.task, plain(&task.session)));
        if !["succeeded", "failed", "dead", "cancelled"].contains(&task.state.as_str()) {
            done.open += 1;
        } else if place.join("result.json").exists() {
            done.there += 1;
        } else {
            one(context, task, &place, files).await?;
            done.written += 1;
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    if context.json {
        let (written, there, open) = (done.written, done.there, done.open);
        printer::json(
            &json!({ "batch": batch, "out": out, "written": written, "there_already": there, "not_over": open }),
        );
        return Ok(());
    }
    let mut line = format!("{} written to {}", text::count(done.written, "task"), out.display());
    if done.there > 0 {
        line.push_str(&format!(", {} were there already", done.there));
    }
    if done.open > 0 {
        line.push_str(&format!(", {} not over yet: give the same command again later", done.open));
    }
    printer::say(line);
    Ok(())
}

/// A name of a directory; the task's number in front makes it the only one.
fn plain(session: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    session.chars().take(80).map(plain).collect()
}

async fn one(context: &Context, task: &TaskView, place: &Path, files: Files) -> Result<(), Stop> {
    let db = context.db().await?;
    let turn = holdfast_protocol::TurnId(task.id);
    let view = db.turn(turn).await?.ok_or_else(|| Stop::failed(format!("{turn} vanished")))?;
    let runs = db.runs_of(turn).await?;
    let answer = Answer::new(&view, &runs);
    let mut result = serde_json::to_value(&answer).unwrap_or_default();
    result["task"] = json!(task.task);
    result["prompt"] = json!(view.prompt);
    let cannot = |error: std::io::Error| Stop::failed(format!("cannot write `{}`: {error}", place.display()));
    let folder = place.parent().unwrap_or(Path::new("."));
    let partial = tempfile::Builder::new().prefix(".holdfast-").tempdir_in(folder).map_err(cannot)?;
    if let Some(checkpoint) = answer.checkpoint {
        left_out(&mut result, saved(context, checkpoint, partial.path(), files).await?);
    } else if let Some(session) = db.session(context.namespace(), &task.session).await? {
        let salvages = db.list_salvages(context.namespace(), Some(SessionId(session.id))).await?;
        if let Some(salvage) = salvages.iter().find(|salvage| salvage.turn_id == task.id) {
            result["salvage"] = json!(holdfast_protocol::SalvageId(salvage.id));
        }
    }
    let text = serde_json::to_vec_pretty(&result).unwrap_or_default();
    std::fs::write(partial.path().join("result.json"), text).map_err(cannot)?;
    std::fs::set_permissions(partial.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).map_err(cannot)?;
    std::fs::rename(partial.path(), place).map_err(cannot)?;
    let _ = partial.keep();
    Ok(())
}

fn left_out(result: &mut Value, names: Vec<String>) {
    if !names.is_empty() {
        result["left_out_of_patch"] = json!(names);
    }
}

/// The patch of the turn, and its files; gives what the patch leaves out.
async fn saved(context: &Context, checkpoint: CheckpointId, at: &Path, files: Files) -> Result<Vec<String>, Stop> {
    let db = context.db().await?;
    let Some(row) = db.checkpoint(checkpoint).await?.filter(|row| row.collected_at.is_none()) else {
        return Ok(vec![format!("{checkpoint}: its files are not kept any more")]);
    };
    let parent = match row.parent {
        Some(parent) => db.checkpoint(CheckpointId(parent)).await?,
        None => None,
    };
    let old = match parent {
        Some(parent) if parent.collected_at.is_some() => {
            return Ok(vec![format!("the files before the turn ({}) are not kept any more", parent.checkpoint())]);
        }
        Some(parent) => Snapshot::of(context, &Point::Checkpoint(Box::new(parent))).await?,
        None => Snapshot::empty(context).await?,
    };
    let new = Snapshot::of(context, &Point::Checkpoint(Box::new(row))).await?;
    let (mut patch, mut names) = (Vec::new(), Vec::new());
    for change in between(&old, &new).await? {
        // Git refuses paths that lead into a repository's own files.
        if change.path().split(|byte| *byte == b'/').any(|part| part.eq_ignore_ascii_case(b".git")) {
            continue;
        }
        match patch::of(&old, &new, &change, Binary::Whole).await? {
            Some(part) => patch.extend(part),
            None => names.push(list::shown(change.path())),
        }
    }
    let cannot = |error: std::io::Error| Stop::failed(format!("cannot write beneath `{}`: {error}", at.display()));
    std::fs::write(at.join("changes.patch"), patch).map_err(cannot)?;
    if files == Files::Written {
        let files: PathBuf = at.join("files");
        std::fs::create_dir(&files).map_err(cannot)?;
        dir::fill(&new, &files).await?;
    }
    Ok(names)
}
