//! Speaks the runtime's frames over a byte stream for one computer in memory. A stream that ends takes only its own
//! connection with it.

use std::sync::Arc;

use holdfast_protocol::message::{Request, Response};
use holdfast_protocol::{Fence, Frame, FrameDecoder};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use super::computer::{Life, MemoryComputer};

/// Serves one connection until it ends, is replaced by a later one, or the computer stops.
pub(super) async fn connection(
    computer: Arc<MemoryComputer>,
    id: u64,
    reader: impl AsyncRead + Send + Unpin + 'static,
    writer: impl AsyncWrite + Send + Unpin + 'static,
) {
    let (answers, queue) = mpsc::channel(16);
    let mut life = computer.life.subscribe();
    tokio::select! {
        biased;
        _ = life.wait_for(|life| matches!(life, Life::Stopped(_))) => {}
        () = computer.admission.replaced(id) => {}
        () = read(&computer, id, reader, answers) => {}
        () = write(writer, queue) => {}
    }
}

async fn read(
    computer: &Arc<MemoryComputer>,
    id: u64,
    mut reader: impl AsyncRead + Unpin,
    answers: mpsc::Sender<Vec<u8>>,
) {
    let (mut decoder, mut buffer) = (FrameDecoder::default(), vec![0; 16 << 10]);
    loop {
        match reader.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(count) => decoder.push(&buffer[..count]),
        }
        loop {
            let (fence, request) = match decoder.next_frame() {
                Ok(Some(frame)) => match frame.message::<Request>() {
                    Ok(request) => (frame.fence, request),
                    Err(_) => return,
                },
                Ok(None) => break,
                Err(_) => return,
            };
            // A frozen computer answers nothing.
            let mut life = computer.life.subscribe();
            let _ = life.wait_for(|life| *life != Life::Paused).await;
            tokio::spawn(answer(Arc::clone(computer), id, fence, request, answers.clone()));
        }
    }
}

async fn answer(
    computer: Arc<MemoryComputer>,
    connection: u64,
    fence: Fence,
    request: Request,
    answers: mpsc::Sender<Vec<u8>>,
) {
    let called = computer.call(connection, fence, request.call);
    tokio::select! {
        answer = called => {
            let response = Response { id: request.id, answer };
            if let Ok(frame) = Frame::encode_message(fence, &response) {
                let _ = answers.send(frame).await;
            }
        }
        // Nobody listens any more.
        () = answers.closed() => {}
    }
}

async fn write(mut writer: impl AsyncWrite + Unpin, mut queue: mpsc::Receiver<Vec<u8>>) {
    while let Some(frame) = queue.recv().await {
        if writer.write_all(&frame).await.is_err() || writer.flush().await.is_err() {
            return;
        }
    }
    std::future::pending::<()>().await;
}
