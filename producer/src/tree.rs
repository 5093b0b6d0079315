//! Files of a session's recovery point, read from the store without a computer. Writes only the file that `export` is
//! asked for, under another name until it is whole.

use std::io::IsTerminal;
use std::path::Path;

use holdfast_protocol::{CheckpointId, SessionId};
use holdfast_shared::domain::problem::nearest;
use holdfast_shared::store::tree_reader::{EntryKind, ReadError, RootKind, TreeEntry};
use holdfast_shared::store::{PgStore, StoreError, TreeReader};
use tokio::io::{AsyncWrite, AsyncWriteExt, BufWriter};

mod list;
mod tar;

use crate::context::Context;
use crate::printer;
use crate::resolve;
use crate::stop::{Code, Stop, chain};
use crate::text;

/// The workspace of a recovery point.
struct Workspace {
    store: PgStore,
    checkpoint: CheckpointId,
    entries: Vec<TreeEntry>,
}

impl Workspace {
    async fn of(context: &Context, session: &str) -> Result<Self, Stop> {
        let session = resolve::session(context, session).await?;
        let db = context.db().await?;
        let point = db.recovery_point(SessionId(session.id)).await?.ok_or_else(|| {
            Stop::failed(format!(
                "session `{}` has no recovery point: no turn of it was completed yet",
                session.session
            ))
        })?;
        let store = PgStore::new(db.clone());
        let mut entries = TreeReader::new(&store, context.namespace()).walk(point.manifest).await?;
        entries.retain(|entry| entry.root == RootKind::Workspace);
        Ok(Self { store, checkpoint: CheckpointId(point.checkpoint), entries })
    }

    async fn read(
        &self,
        context: &Context,
        entry: &TreeEntry,
        out: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), Stop> {
        Ok(TreeReader::new(&self.store, context.namespace()).read_file(entry, out).await?)
    }

    /// The entry of this path, or what is wrong with it.
    fn find(&self, path: &str) -> Result<&TreeEntry, Stop> {
        let wanted = path.trim_start_matches("/workspace/").trim_matches('/');
        let found = self.entries.iter().find(|entry| entry.path == wanted.as_bytes());
        found.ok_or_else(|| {
            let known: Vec<String> = self.entries.iter().map(|entry| list::shown(&entry.path)).collect();
            let stop = Stop::bad(format!("the workspace of {} holds no `{path}`", self.checkpoint));
            match nearest(wanted, known.iter().map(String::as_str)) {
                Some(near) => stop.hint(format!("did you mean `{near}`?")),
                None => stop.hint("without a path all files are listed"),
            }
        })
    }
}

/// Lists the workspace or a directory of it, or prints a file.
pub async fn files(context: &Context, session: &str, path: Option<&str>) -> Result<(), Stop> {
    let workspace = Workspace::of(context, session).await?;
    let Some(path) = path.filter(|path| !matches!(*path, "" | "." | "/" | "/workspace")) else {
        return list::print(context, &workspace.entries, workspace.checkpoint);
    };
    let entry = workspace.find(path)?;
    match &entry.kind {
        EntryKind::Directory => {
            let below = [&entry.path[..], b"/"].concat();
            let inside: Vec<TreeEntry> =
                workspace.entries.iter().filter(|entry| entry.path.starts_with(&below)).cloned().collect();
            list::print(context, &inside, workspace.checkpoint)
        }
        EntryKind::File { .. } => workspace.read(context, entry, &mut tokio::io::stdout()).await,
        EntryKind::Symlink { target } => {
            Err(Stop::bad(format!("`{path}` is a symbolic link to `{}`", list::shown(target))))
        }
    }
}

/// Writes the workspace as a tar file.
pub async fn export(context: &Context, session: &str, out: &str) -> Result<(), Stop> {
    if out == "-" && std::io::stdout().is_terminal() {
        return Err(
            Stop::bad("a tar file is not for a terminal").hint("name a file, or send it on: `... --out - | tar t`")
        );
    }
    let workspace = Workspace::of(context, session).await?;
    let bytes = if out == "-" {
        pack(context, &workspace, tokio::io::stdout()).await?
    } else {
        let cannot = |error: std::io::Error| {
            // Some errors end with the name of the partial file, which nobody asked for.
            let error = error.to_string();
            Stop::bad(format!("cannot write `{out}`: {}", error.split(" at path ").next().unwrap_or_default()))
        };
        let folder = Path::new(out).parent().filter(|folder| !folder.as_os_str().is_empty());
        let partial = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new("."))).map_err(cannot)?;
        let file = tokio::fs::File::from_std(partial.reopen().map_err(cannot)?);
        let bytes = pack(context, &workspace, file).await?;
        partial.as_file().sync_all().map_err(cannot)?;
        partial.persist(out).map_err(|error| cannot(error.error))?;
        bytes
    };
    let entries = text::count(workspace.entries.len() as u64, "entry").replace("entrys", "entries");
    printer::say(format!("{entries}, {} of {}", text::bytes(bytes), workspace.checkpoint));
    Ok(())
}

async fn pack(context: &Context, workspace: &Workspace, out: impl AsyncWrite + Unpin) -> Result<u64, Stop> {
    let mut out = BufWriter::with_capacity(256 << 10, out);
    let (mut links, mut bytes) = (tar::Links::default(), 0);
    for entry in &workspace.entries {
        let (head, content) = links.head(entry)?;
        out.write_all(&head).await?;
        if content > 0 {
            workspace.read(context, entry, &mut out).await?;
            out.write_all(tar::padding(content)).await?;
            bytes += content;
        }
    }
    out.write_all(&tar::END).await?;
    out.flush().await?;
    Ok(bytes)
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Db(error) => error.into(),
            other => Stop::new(Code::Failed, chain(&other)),
        }
    }
}

impl From<ReadError> for Stop {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Store(error) => error.into(),
            ReadError::Write(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Stop::silent(Code::Failed),
            ReadError::Write(_) => Stop::failed(chain(&error)),
        }
    }
}
