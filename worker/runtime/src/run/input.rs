//! The harness's stdin, where it is a dialogue: written by a thread of its own, so that a harness that does not read makes
//! nobody wait.
//!
//! Written by the reader of stdout (replies) and the supervisor (the request to stop). The thread ends with the last word
//! or with the harness; nothing is kept.

use std::io::Write;
use std::process::ChildStdin;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

use crate::sync::{self, lock};

/// Closed until `open`, and again after `end`.
#[derive(Default)]
pub(super) struct Line(Mutex<Option<Sender<Vec<u8>>>>);

impl Line {
    pub(super) fn open(&self, mut pipe: ChildStdin, first: Vec<u8>) -> std::io::Result<()> {
        let (sender, words) = channel::<Vec<u8>>();
        sync::spawn("stdin", move || {
            for bytes in std::iter::once(first).chain(words) {
                // A harness that is gone has heard enough.
                if pipe.write_all(&bytes).and_then(|()| pipe.flush()).is_err() {
                    return;
                }
            }
        })?;
        *lock(&self.0) = Some(sender);
        Ok(())
    }

    /// False if nobody listens any more.
    pub(super) fn say(&self, bytes: Vec<u8>) -> bool {
        lock(&self.0).as_ref().is_some_and(|sender| sender.send(bytes).is_ok())
    }

    /// End of input, after what was said.
    pub(super) fn end(&self) {
        *lock(&self.0) = None;
    }
}
