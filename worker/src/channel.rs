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
use tokio::sync::oneshot;
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
    fence: Fence,
    next: AtomicU64,
    waiting: Waiting,
    writer: tokio::sync::Mutex<Box<dyn tokio::io::AsyncWrite + Send + Unpin>>,
    reader: JoinHandle<()>,
}

impl Channel {
    /// Takes the stream over. Say `Hello` first.
    pub fn new((reader, writer): ByteStream, fence: Fence) -> Self {
        let waiting: Waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        let reader = tokio::spawn(read_answers(reader, Arc::clone(&waiting)));
        Self { fence, next: AtomicU64::new(1), waiting, writer: tokio::sync::Mutex::new(writer), reader }
    }

    /// One call, one answer. Cancelling it leaves the call running in the runtime; its answer is dropped.
    pub async fn call(&self, call: Call, deadline: Duration) -> Result<Answer, ChannelError> {
        let name = name_of(&call);
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let frame = Frame::encode_message(self.fence, &Request { id, call })
            .map_err(|error| ChannelError::Protocol(error.to_string()))?;
        let (sender, receiver) = oneshot::channel();
        self.waiting.lock().expect("never poisoned").as_mut().ok_or(ChannelError::Closed)?.insert(id, sender);
        let exchange = async {
            {
                let mut writer = self.writer.lock().await;
                let sent = async {
                    writer.write_all(&frame).await?;
                    writer.flush().await
                };
                sent.await.map_err(|_| ChannelError::Closed)?;
            }
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
        self.reader.abort();
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
        Call::Start(_) => "start",
        Call::Poll { .. } => "poll",
        Call::End { .. } => "end",
        Call::Capture { .. } => "capture",
        Call::CaptureList { .. } => "capture_list",
        Call::CaptureRead { .. } => "capture_read",
        Call::CaptureEnd => "capture_end",
    }
}
