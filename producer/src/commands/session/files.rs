//! `holdfast session files|cat|diff|export`: files of a session without a computer. Reads only, but for what an export
//! writes: under a name of its own until it is whole.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use clap::Args;
use holdfast_shared::store::tree_reader::EntryKind;
use owo_colors::OwoColorize;
use serde_json::json;

use crate::context::Context;
use crate::printer;
use crate::resolve::{self, Point};
use crate::stop::Stop;
use crate::text;
use crate::tree::changes::{Change, between};
use crate::tree::patch::{self, Binary};
use crate::tree::{Snapshot, dir, inner, list, tar};

const AT: &str = "A checkpoint (ckp_...), its tag, `@SEQ` for what a turn left, or a salvage (slv_...); left out: the recovery point";

#[derive(Args)]
#[command(after_help = "Examples:\n  holdfast session files s1\n  holdfast session files s1 --at @3 src\n  \
    holdfast session files s1 src/main.py > main.py")]
pub struct FilesArgs {
    session: String,
    /// A directory to list, or a file to print
    path: Option<String>,
    #[arg(long, value_name = "CHECKPOINT", help = AT)]
    at: Option<String>,
}

#[derive(Args)]
#[command(after_help = "Example: holdfast session cat s1 src/main.py --at before-refactoring")]
pub struct CatArgs {
    session: String,
    path: String,
    #[arg(long, value_name = "CHECKPOINT", help = AT)]
    at: Option<String>,
}

#[derive(Args)]
#[command(
    after_help = "Examples:\n  holdfast session diff s1                 what the last completed turn changed\n  \
    holdfast session diff s1 @2              from what turn 2 left to the recovery point\n  \
    holdfast session diff s1 @2 @5 --names   only the names\n  \
    holdfast session diff s1 --binary > changes.patch   to be applied by `git apply`"
)]
pub struct DiffArgs {
    session: String,
    /// The older side; left out: the parent of the newer one
    a: Option<String>,
    /// The newer side; left out: the recovery point
    b: Option<String>,
    /// Only say which files differ, and how
    #[arg(long)]
    names: bool,
    /// Write binary content out instead of noting that it differs
    #[arg(long, conflicts_with = "names")]
    binary: bool,
}

#[derive(Args)]
#[command(after_help = "Examples:\n  holdfast session export s1 --tar s1.tar\n  \
    holdfast session export s1 --at @3 --tar - | tar t\n  holdfast session export s1 --dir ./s1")]
pub struct ExportArgs {
    session: String,
    /// Write a tar file, `-` for stdout
    #[arg(short = 'o', long, visible_alias = "out", value_name = "FILE", required_unless_present = "dir")]
    tar: Option<String>,
    /// Write a directory that is not there yet
    #[arg(long, value_name = "DIR", conflicts_with = "tar")]
    dir: Option<PathBuf>,
    #[arg(long, value_name = "CHECKPOINT", help = AT)]
    at: Option<String>,
}

async fn snapshot(context: &Context, session: &str, at: Option<&str>) -> Result<Snapshot, Stop> {
    let session = resolve::session(context, session).await?;
    Snapshot::of(context, &resolve::point(context, &session, at).await?).await
}

pub async fn files(context: &Context, args: FilesArgs) -> Result<(), Stop> {
    let snapshot = snapshot(context, &args.session, args.at.as_deref()).await?;
    if let Some(path) = inner(args.path.as_deref())
        && snapshot.find(path)?.kind != EntryKind::Directory
    {
        return print(&snapshot, path).await;
    }
    list::print(context, &snapshot.below(args.path.as_deref())?, &snapshot.name)
}

pub async fn cat(context: &Context, args: CatArgs) -> Result<(), Stop> {
    print(&snapshot(context, &args.session, args.at.as_deref()).await?, &args.path).await
}

async fn print(snapshot: &Snapshot, path: &str) -> Result<(), Stop> {
    let entry = snapshot.find(path)?;
    match &entry.kind {
        EntryKind::Directory => {
            Err(Stop::bad(format!("`{path}` is a directory")).hint("`holdfast session files` lists it"))
        }
        EntryKind::File { .. } => snapshot.read(entry, &mut tokio::io::stdout()).await,
        EntryKind::Symlink { target } => {
            Err(Stop::bad(format!("`{path}` is a symbolic link to `{}`", list::shown(target))))
        }
    }
}

pub async fn diff(context: &Context, args: DiffArgs) -> Result<(), Stop> {
    let session = resolve::session(context, &args.session).await?;
    let newer = resolve::point(context, &session, args.b.as_deref()).await?;
    let older = match (&args.a, &newer) {
        (Some(a), _) => Some(resolve::point(context, &session, Some(a)).await?),
        (None, Point::Salvage(_)) => Some(resolve::point(context, &session, None).await?),
        (None, Point::Checkpoint(row)) => match row.parent {
            Some(parent) => {
                let id = holdfast_protocol::CheckpointId(parent).to_string();
                Some(resolve::point(context, &session, Some(&id)).await?)
            }
            None => None,
        },
    };
    let old = match &older {
        Some(point) => Snapshot::of(context, point).await?,
        None => Snapshot::empty(context).await?,
    };
    let new = Snapshot::of(context, &newer).await?;
    let changes = between(&old, &new).await?;
    if context.json {
        let names: Vec<_> = changes.iter().map(as_json).collect();
        printer::json(&json!({ "old": old.name, "new": new.name, "changes": names }));
        return Ok(());
    }
    printer::say(format!("{} to {}: {}", old.name, new.name, text::count(changes.len() as u64, "file")));
    for change in &changes {
        if args.names {
            printer::line(name(change));
            continue;
        }
        let how = if args.binary { Binary::Whole } else { Binary::Noted };
        match patch::of(&old, &new, change, how).await? {
            Some(patch) if std::io::stdout().is_terminal() => coloured(&patch),
            Some(patch) => std::io::stdout().write_all(&patch)?,
            None => {
                printer::warning(&format!("`{}` is too large for a patch and left out", list::shown(change.path())))
            }
        }
    }
    Ok(())
}

fn name(change: &Change) -> String {
    match change {
        Change::Renamed { old, new, likeness } => {
            format!("R {} -> {} ({likeness}%)", list::shown(&old.path), list::shown(&new.path))
        }
        other => format!("{} {}", other.letter(), list::shown(other.path())),
    }
}

fn as_json(change: &Change) -> serde_json::Value {
    let mut value = json!({ "change": change.letter().to_string(), "path": String::from_utf8_lossy(change.path()) });
    if let Change::Renamed { old, likeness, .. } = change {
        value["from"] = json!(String::from_utf8_lossy(&old.path));
        value["likeness"] = json!(likeness);
    }
    value
}

/// For people: added lines green, removed ones red, nothing that moves the cursor.
fn coloured(patch: &[u8]) {
    for line in String::from_utf8_lossy(patch).lines() {
        let line = text::clean(line);
        printer::line(match line.as_bytes().first() {
            _ if ["+++", "---", "diff "].iter().any(|start| line.starts_with(start)) => line.bold().to_string(),
            Some(b'+') => line.green().to_string(),
            Some(b'-') => line.red().to_string(),
            Some(b'@') => line.cyan().to_string(),
            _ => line,
        });
    }
}

pub async fn export(context: &Context, args: ExportArgs) -> Result<(), Stop> {
    let snapshot = snapshot(context, &args.session, args.at.as_deref()).await?;
    write(&snapshot, args.tar.as_deref(), args.dir.as_deref()).await
}

/// Writes a workspace to where it was asked for, and says how much it was.
pub async fn write(snapshot: &Snapshot, tar: Option<&str>, dir: Option<&std::path::Path>) -> Result<(), Stop> {
    let bytes = match (tar, dir) {
        (_, Some(dir)) => dir::write(snapshot, dir).await?,
        (tar, None) => tar::write(snapshot, tar.unwrap_or("-")).await?,
    };
    let entries = text::count(snapshot.entries.len() as u64, "entry").replace("entrys", "entries");
    printer::say(format!("{entries}, {} of {}", text::bytes(bytes), snapshot.name));
    Ok(())
}
