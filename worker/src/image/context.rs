//! What is sent to the engine: a tar written on the fly from a list of entries. Never a directory of anybody's.
//!
//! Writes nothing on this side. When the receiver goes away the writing thread ends at its next piece.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::sync::mpsc;

use crate::sandbox::docker::TarStream;

const PIECE: usize = 256 << 10;

/// One path in the tar.
#[derive(Clone, Debug)]
pub struct Entry {
    path: String,
    mode: u32,
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    Directory,
    Bytes(Bytes),
    File(PathBuf),
}

impl Entry {
    pub fn directory(path: &str, mode: u32) -> Self {
        Self { path: path.to_owned(), mode, content: Content::Directory }
    }

    pub fn bytes(path: &str, mode: u32, bytes: impl Into<Bytes>) -> Self {
        Self { path: path.to_owned(), mode, content: Content::Bytes(bytes.into()) }
    }

    /// Read when its turn comes.
    pub fn file(path: &str, mode: u32, source: PathBuf) -> Self {
        Self { path: path.to_owned(), mode, content: Content::File(source) }
    }
}

/// A tar of the entries, in their order, owned by root and without times: equal inputs are equal bytes.
pub fn tar(entries: Vec<Entry>) -> TarStream {
    let (sender, receiver) = mpsc::channel(4);
    tokio::task::spawn_blocking(move || {
        let mut pieces = Pieces { sender: sender.clone(), piece: Vec::with_capacity(PIECE) };
        let written = entries_to(&mut pieces, entries).and_then(|()| pieces.flush());
        if let Err(error) = written {
            let _ = sender.blocking_send(Err(error));
        }
    });
    stream::unfold(receiver, async |mut receiver| receiver.recv().await.map(|piece| (piece, receiver))).boxed()
}

fn entries_to(out: &mut Pieces, entries: Vec<Entry>) -> io::Result<()> {
    let mut archive = tar::Builder::new(out);
    for entry in entries {
        let mut header = tar::Header::new_gnu();
        header.set_mode(entry.mode);
        match entry.content {
            Content::Directory => {
                header.set_entry_type(tar::EntryType::Directory);
                header.set_size(0);
                archive.append_data(&mut header, entry.path, io::empty())?;
            }
            Content::Bytes(bytes) => {
                header.set_size(bytes.len() as u64);
                archive.append_data(&mut header, entry.path, bytes.as_ref())?;
            }
            Content::File(source) => {
                let file = File::open(source)?;
                header.set_size(file.metadata()?.len());
                archive.append_data(&mut header, entry.path, file)?;
            }
        }
    }
    archive.finish()
}

/// Hands on what is written in pieces, and waits when nobody takes them.
struct Pieces {
    sender: mpsc::Sender<io::Result<Bytes>>,
    piece: Vec<u8>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE));
        match piece.is_empty() {
            true => Ok(()),
            false => self.sender.blocking_send(Ok(piece.into())).map_err(|_| io::ErrorKind::BrokenPipe.into()),
        }
    }
}
