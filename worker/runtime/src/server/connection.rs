//! One connection: reads frames, has each call done, writes answers as they come.
//!
//! A peer that does not read blocks only what belongs to its own connection, and that ends with it: by a deadline, or at
//! once when a higher fence is admitted.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdfast_protocol::message::{Answer, Refusal, Request, Response};
use holdfast_protocol::{Fence, Frame, FrameDecoder};

use super::Server;
use super::calls::{self, Pace};
use crate::sync::{self, lock};

const BUFFER: usize = 64 << 10;
/// A peer that takes nothing for this long is gone.
const WRITE_DEADLINE: Duration = Duration::from_secs(30);
/// Calls that wait or read at once; a worker has a handful.
const MOST_CALLS: usize = 16;

pub(super) struct Connection {
    pub(super) id: u64,
    pub(super) stream: UnixStream,
    writer: Mutex<UnixStream>,
    closed: AtomicBool,
    calls: AtomicUsize,
}

impl Connection {
    /// Until the peer ends, sends what is no frame, or is superseded.
    pub(super) fn serve(id: u64, stream: UnixStream, server: &Arc<Server>) {
        let made = stream.set_write_timeout(Some(WRITE_DEADLINE)).and_then(|()| stream.try_clone());
        let Ok(writer) = made else { return };
        let connection = Arc::new(Self {
            id,
            stream,
            writer: Mutex::new(writer),
            closed: AtomicBool::new(false),
            calls: AtomicUsize::new(0),
        });
        let _ = connection.read(server);
        connection.close();
        server.admission.leave(id);
    }

    pub(super) fn is_open(&self) -> bool {
        !self.closed.load(Ordering::Relaxed)
    }

    fn read(self: &Arc<Self>, server: &Arc<Server>) -> io::Result<()> {
        let (mut decoder, mut buffer) = (FrameDecoder::default(), vec![0; BUFFER]);
        loop {
            match (&self.stream).read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(n) => decoder.push(&buffer[..n]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            while let Some(frame) = decoder.next_frame().map_err(io::Error::other)? {
                let request = frame.message().map_err(io::Error::other)?;
                self.dispatch(server, frame.fence, request)?;
            }
        }
    }

    fn dispatch(self: &Arc<Self>, server: &Arc<Server>, fence: Fence, request: Request) -> io::Result<()> {
        let Request { id, call } = request;
        if calls::pace(&call) == Pace::Quick {
            return self.answer(fence, id, calls::quick(server, self, fence, call));
        }
        if self.calls.fetch_add(1, Ordering::Relaxed) >= MOST_CALLS {
            self.calls.fetch_sub(1, Ordering::Relaxed);
            return self.answer(fence, id, Err(Refusal::Internal("too many calls at once".to_owned())));
        }
        let (connection, for_call) = (Arc::clone(self), Arc::clone(server));
        let made = sync::spawn("call", move || {
            let answer = calls::slow(&for_call, &connection, fence, call);
            let _ = connection.answer(fence, id, answer);
            connection.calls.fetch_sub(1, Ordering::Relaxed);
        });
        made.or_else(|error| {
            self.calls.fetch_sub(1, Ordering::Relaxed);
            self.answer(fence, id, Err(Refusal::Internal(format!("no thread for the call: {error}"))))
        })
    }

    /// Writes a whole frame. After an error, and after telling a worker that it is stale, the connection is closed.
    fn answer(&self, fence: Fence, id: u64, answer: Result<Answer, Refusal>) -> io::Result<()> {
        let stale = matches!(answer, Err(Refusal::StaleFence { .. }));
        let bytes = Frame::encode_message(fence, &Response { id, answer }).or_else(|error| {
            let refusal = Refusal::Internal(format!("the answer does not fit a frame: {error}"));
            Frame::encode_message(fence, &Response { id, answer: Err(refusal) })
        });
        let mut writer = lock(&self.writer);
        let written = bytes.map_err(io::Error::other).and_then(|bytes| writer.write_all(&bytes));
        if written.is_err() || stale {
            self.close();
        }
        written
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
