//! Files of a checkpoint, read from the store without a computer. Writes only what an export is asked for, under another
//! name until it is whole.

use holdfast_shared::domain::problem::nearest;
use holdfast_shared::store::tree_reader::{EntryKind, ReadError, RootKind, TreeEntry};
use holdfast_shared::store::{PackStore, StoreError, TreeReader};
use tokio::io::AsyncWrite;

pub mod changes;
pub mod dir;
pub mod list;
pub mod patch;
pub mod tar;

use crate::context::Context;
use crate::resolve::Point;
use crate::stop::{Code, Stop, chain};

/// The workspace at a checkpoint or a salvage.
pub struct Snapshot {
    store: PackStore,
    namespace: String,
    /// The id of what it is.
    pub name: String,
    /// A directory before what is in it.
    pub entries: Vec<TreeEntry>,
}

impl Snapshot {
    pub async fn of(context: &Context, point: &Point) -> Result<Self, Stop> {
        let (store, namespace) = (context.store().await?, context.namespace().to_owned());
        let mut entries = TreeReader::new(&store, &namespace).walk(point.manifest()?).await?;
        entries.retain(|entry| entry.root == RootKind::Workspace);
        Ok(Self { store, namespace, name: point.name(), entries })
    }

    /// Nothing: what was before the first checkpoint.
    pub async fn empty(context: &Context) -> Result<Self, Stop> {
        let (store, namespace) = (context.store().await?, context.namespace().to_owned());
        Ok(Self { store, namespace, name: "nothing".to_owned(), entries: Vec::new() })
    }

    pub async fn read(&self, entry: &TreeEntry, out: &mut (impl AsyncWrite + Unpin)) -> Result<(), Stop> {
        Ok(TreeReader::new(&self.store, &self.namespace).read_file(entry, out).await?)
    }

    /// The whole content of a file, or the target of a link.
    pub async fn bytes(&self, entry: &TreeEntry) -> Result<Vec<u8>, Stop> {
        let mut bytes = Vec::new();
        match &entry.kind {
            EntryKind::Symlink { target } => bytes.clone_from(target),
            EntryKind::Directory | EntryKind::File { .. } => self.read(entry, &mut bytes).await?,
        }
        Ok(bytes)
    }

    /// What lies below a directory; all of it without one.
    pub fn below(&self, path: Option<&str>) -> Result<Vec<TreeEntry>, Stop> {
        let Some(path) = inner(path) else { return Ok(self.entries.clone()) };
        let entry = self.find(path)?;
        let below = [&entry.path[..], b"/"].concat();
        Ok(self.entries.iter().filter(|entry| entry.path.starts_with(&below)).cloned().collect())
    }

    /// The entry of this path, or what is wrong with it.
    pub fn find(&self, path: &str) -> Result<&TreeEntry, Stop> {
        let wanted = path.trim_start_matches("/workspace/").trim_matches('/');
        let found = self.entries.iter().find(|entry| entry.path == wanted.as_bytes());
        found.ok_or_else(|| {
            let known: Vec<String> = self.entries.iter().map(|entry| list::shown(&entry.path)).collect();
            let stop = Stop::bad(format!("the workspace of {} holds no `{path}`", self.name));
            match nearest(wanted, known.iter().map(String::as_str)) {
                Some(near) => stop.hint(format!("did you mean `{near}`?")),
                None => stop.hint("without a path all files are listed"),
            }
        })
    }
}

/// A path that is not the workspace itself.
pub fn inner(path: Option<&str>) -> Option<&str> {
    path.filter(|path| !matches!(*path, "" | "." | "/" | "/workspace" | "/workspace/"))
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        let text = chain(&error);
        match error {
            StoreError::Db(error) => error.into(),
            StoreError::Missing { .. } | StoreError::Damaged { .. } => {
                Stop::failed(format!("the store is damaged: {text}"))
                    .hint("`holdfast checkpoint verify` says which checkpoints that concerns, and which are whole")
            }
            StoreError::Locked { .. } => {
                Stop::failed(text).hint("give the key with HOLDFAST_STORE_KEYS or HOLDFAST_STORE_KEYS_FILE")
            }
            StoreError::Bucket(error) if error.transient => {
                Stop::new(Code::Unreachable, text).hint("check HOLDFAST_STORE, and that the bucket's service answers")
            }
            StoreError::Bucket(_) => Stop::failed(text).hint("check HOLDFAST_STORE and the bucket's credentials"),
            StoreError::Stopped => Stop::failed(text),
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
