//! A connection to the runtime: many calls in flight over one byte stream, answers by id.
//!
//! The channel belongs to one lease. When the stream ends, every waiting call fails; a repeated call on a new channel is
//! safe (see `protocol::message`). A channel whose fence is no longer the highest is closed by the runtime.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdfast_protocol::message::{Answer, Call, Refusal, Request, Response};
use holdfast_protocol::{Fence, Frame, FrameDecoder};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::sandbox::ByteStream;

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    #[error("the runtime refused")]
    Refused(#[from] Refusal),
    #[error("the connection to the runtime is closed")]
    Closed,
    #[error("the runtime did not answer {call} within {after:?}")]
    Deadline { call: &'static str, after: Duration },
    #[error("the runtime sent something unexpected: {0}")]
    Protocol(String),
}

type Waiting = Arc<Mutex<Option<HashMap<u64, oneshot::Sender<Result<Answer, Refusal>>>>>>;

/// One connection; dropping it closes the stream.
pub struct Channel {
    fence: AtomicU64,
    next: AtomicU64,
    waiting: Waiting,
    frames: mpsc::Sender<Vec<u8>>,
    tasks: [JoinHandle<()>; 2],
}

impl Channel {
    /// Takes the stream over. Say `Hello` first.
    pub fn new((reader, writer): ByteStream, fence: Fence) -> Self {
        let waiting: Waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        let (frames, queue) = mpsc::channel(4);
        let tasks = [
            tokio::spawn(read_answers(reader, Arc::clone(&waiting))),
            tokio::spawn(write_frames(writer, queue, Arc::clone(&waiting))),
        ];
        Self { fence: AtomicU64::new(fence.get()), next: AtomicU64::new(1), waiting, frames, tasks }
    }

    /// The same worker holds the session again: from here on the channel speaks with the new lease's fence. Say `Hello`.
    pub fn set_fence(&self, fence: Fence) {
        self.fence.store(fence.get(), Ordering::Relaxed);
    }

    /// One call, one answer. Cancelling it leaves the call running in the runtime; its answer is dropped.
    pub async fn call(&self, call: Call, deadline: Duration) -> Result<Answer, ChannelError> {
        let name = name_of(&call);
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let fence = Fence::granted(self.fence.load(Ordering::Relaxed));
        let frame = Frame::encode_message(fence, &Request { id, call })
            .map_err(|error| ChannelError::Protocol(error.to_string()))?;
        let (sender, receiver) = oneshot::channel();
        self.waiting.lock().expect("never poisoned").as_mut().ok_or(ChannelError::Closed)?.insert(id, sender);
        let exchange = async {
            self.frames.send(frame).await.map_err(|_| ChannelError::Closed)?;
            receiver.await.map_err(|_| ChannelError::Closed)
        };
        let answered = tokio::time::timeout(deadline, exchange).await;
        if !matches!(answered, Ok(Ok(_)))
            && let Some(waiting) = self.waiting.lock().expect("never poisoned").as_mut()
        {
            waiting.remove(&id);
        }
        Ok(answered.map_err(|_| ChannelError::Deadline { call: name, after: deadline })???)
    }

    /// True until the stream ended.
    pub fn is_open(&self) -> bool {
        self.waiting.lock().expect("never poisoned").is_some()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn read_answers(mut reader: Box<dyn tokio::io::AsyncRead + Send + Unpin>, waiting: Waiting) {
    let mut decoder = FrameDecoder::default();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match reader.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(n) => decoder.push(&buffer[..n]),
        }
        if let Err(error) = deliver(&mut decoder, &waiting) {
            tracing::warn!(%error, "the runtime's stream cannot be read on");
            break;
        }
    }
    waiting.lock().expect("never poisoned").take();
}

/// Writes whole frames; a call that is given up while its frame is on the way does not cut the frame.
async fn write_frames(
    mut writer: Box<dyn tokio::io::AsyncWrite + Send + Unpin>,
    mut frames: mpsc::Receiver<Vec<u8>>,
    waiting: Waiting,
) {
    while let Some(frame) = frames.recv().await {
        if writer.write_all(&frame).await.is_err() || writer.flush().await.is_err() {
            break;
        }
    }
    waiting.lock().expect("never poisoned").take();
}

fn deliver(decoder: &mut FrameDecoder, waiting: &Waiting) -> Result<(), holdfast_protocol::FrameError> {
    while let Some(frame) = decoder.next_frame()? {
        let response: Response = frame.message()?;
        let sender = waiting.lock().expect("never poisoned").as_mut().and_then(|waiting| waiting.remove(&response.id));
        if let Some(sender) = sender {
            let _ = sender.send(response.answer);
        }
    }
    Ok(())
}

fn name_of(call: &Call) -> &'static str {
    match call {
        Call::Hello { .. } => "hello",
        Call::Renew { .. } => "renew",
        Call::RestoreBegin { .. } => "restore_begin",
        Call::RestoreObjects { .. } => "restore_objects",
        Call::Stage(_) => "stage",
        Call::Command { .. } => "command",
        Call::Settle { .. } => "settle",
        Call::Survey { .. } => "survey",
        Call::Changes { .. } => "changes",
        Call::Start(_) => "start",
        Call::Poll { .. } => "poll",
        Call::End { .. } => "end",
        Call::Capture { .. } => "capture",
        Call::CaptureList { .. } => "capture_list",
        Call::CaptureRead { .. } => "capture_read",
        Call::CaptureEnd => "capture_end",
    }
}
