//! Trees of every odd kind go through capture and restore and are compared by a walker that shares no code with either.
//! Everything happens in temporary directories that vanish with the test.

use std::collections::HashMap;
use std::path::Path;

use holdfast_protocol::message::{Answer, BATCH_BYTES, CaptureLimits, Captured, Refusal};
use holdfast_protocol::object::{Object, ObjectId};
use holdfast_protocol::{AGENT_UID, CheckpointId};

use super::{Checkpointer, NoMappings, Nobody, Roots, list};

mod generate;
mod hostile;
mod index;
mod kept;
mod stops;
mod walker;

/// A computer without processes.
struct Computer {
    dir: tempfile::TempDir,
    checkpointer: Checkpointer,
    exclude: Vec<String>,
}

impl Computer {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("workspace")).expect("a workspace");
        std::fs::create_dir_all(dir.path().join("native/home/log")).expect("a native root");
        for path in [".", "workspace", "native", "native/home", "native/home/log"] {
            if std::os::unix::fs::chown(dir.path().join(path), Some(AGENT_UID), None).is_err() {
                assert_ne!(rustix::process::geteuid().as_raw(), 0, "root gives its directories away");
            }
        }
        let checkpointer = Checkpointer::new(roots(dir.path()), Box::new(Nobody), Box::new(NoMappings));
        Self { dir, checkpointer, exclude: Vec::new() }
    }

    fn workspace(&self) -> std::path::PathBuf {
        self.dir.path().join("workspace")
    }

    fn native(&self) -> std::path::PathBuf {
        self.dir.path().join("native")
    }

    fn try_capture(&mut self, limits: &CaptureLimits) -> Result<Captured, Refusal> {
        self.checkpointer.capture(CheckpointId::generate(), &["home/projects"], limits, &self.exclude)
    }

    /// Captures into the store; gives what was captured and the bytes that were new.
    fn capture(&mut self, store: &mut Store) -> (Captured, usize) {
        self.capture_with(store, |_, _| {})
    }

    /// The same, and does something before the capture ends.
    fn capture_with(&mut self, store: &mut Store, act: impl FnOnce(&mut Self, &Store)) -> (Captured, usize) {
        let captured = self.try_capture(&CaptureLimits::default()).expect("a capture");
        let mut ids: Vec<ObjectId> = Vec::new();
        while (ids.len() as u64) < captured.new_total {
            ids.extend(self.checkpointer.capture_list(ids.len() as u64).expect("a page").iter().map(|new| new.id));
        }
        let mut sent = 0;
        while !ids.is_empty() {
            let objects = self.checkpointer.capture_read(&ids).expect("objects");
            ids.drain(..objects.len());
            for object in objects {
                assert!(object.verify());
                sent += object.bytes.len();
                store.insert(object.id, object);
            }
        }
        act(self, store);
        self.checkpointer.capture_end();
        (captured, sent)
    }

    /// Puts the file's stamp of now into the index.
    fn pretend_seen(&mut self, path: &Path) {
        let (dir, name) = (path.parent().expect("it has one"), path.file_name().expect("it has one"));
        let now = list::look(std::fs::File::open(dir).expect("a directory"), name.as_encoded_bytes()).expect("a file");
        let known = self.checkpointer.base.as_mut().and_then(|base| base.known.as_mut()).expect("there is an index");
        known.sealed = None;
        let mut entries = known.listings[0].entries.iter_mut().flatten();
        let entry = entries.find(|entry| entry.name == now.name && entry.stamp.inode == now.stamp.inode);
        entry.expect("it is in the index").stamp = now.stamp;
    }

    fn restore(&mut self, store: &Store, manifest: ObjectId) -> Result<(), Refusal> {
        let mut answer = self.checkpointer.restore_begin(CheckpointId::generate(), manifest)?;
        loop {
            let Answer::RestoreNeed { ids, .. } = answer else { panic!("{answer:?}") };
            if ids.is_empty() {
                return Ok(());
            }
            // The last that was asked for comes first, in small batches: order must not matter.
            let (mut batch, mut bytes) = (Vec::new(), 0);
            for object in ids.iter().rev().filter_map(|(id, _)| store.get(id)) {
                bytes += object.bytes.len();
                batch.push(object.clone());
                if bytes > BATCH_BYTES {
                    break;
                }
            }
            assert!(!batch.is_empty(), "nothing of {} needed objects is there", ids.len());
            answer = self.checkpointer.restore_objects(batch)?;
        }
    }
}

/// Runs as somebody for whom mode 000 means something, where the test itself is root.
fn as_agent<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let agent = scope.spawn(|| {
            // SAFETY: changes how this one thread is seen by file systems, and the thread ends here.
            unsafe { libc::setfsuid(AGENT_UID) };
            work()
        });
        agent.join().expect("the agent's thread does not panic")
    })
}

type Store = HashMap<ObjectId, Object>;

fn roots(dir: &Path) -> Roots {
    Roots { workspace: dir.join("workspace"), native: dir.join("native") }
}
