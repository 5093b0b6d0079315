//! A checkpoint engine behind a stream of bytes in this process, with faults on the way. Stands for a computer.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use holdfast_protocol::message::{Answer, Call, Refusal, Request, Response};
use holdfast_protocol::object::{ObjectId, ObjectKind};
use holdfast_protocol::{Fence, Frame, FrameDecoder};
use holdfast_runtime::checkpoint::{Checkpointer, NoMappings, Nobody, Roots};
use holdfast_worker::channel::Channel;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Fault {
    None,
    /// One bit of an object.
    AlterRead,
    /// The stream ends inside the answer to a read.
    CutRead,
    /// No answer to a read.
    Silent,
    /// A chunk is missing from the list of new objects.
    HideOne,
    /// And cannot be read either.
    WithholdOne,
}

pub struct Computer {
    dir: tempfile::TempDir,
    engine: Arc<Mutex<Checkpointer>>,
    fault: Fault,
}

impl Computer {
    pub fn new(fault: Fault) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let roots = Roots { workspace: dir.path().join("workspace"), native: dir.path().join("native") };
        std::fs::create_dir(&roots.workspace).expect("a workspace");
        std::fs::create_dir(&roots.native).expect("a native root");
        Self {
            dir,
            engine: Arc::new(Mutex::new(Checkpointer::new(roots, Box::new(Nobody), Box::new(NoMappings)))),
            fault,
        }
    }

    pub fn workspace(&self) -> PathBuf {
        self.dir.path().join("workspace")
    }

    /// Small files and a few large ones: five entries more than asked for.
    pub fn fill(&self, files: u64) {
        let dir = self.workspace().join("d");
        std::fs::create_dir(&dir).expect("a directory");
        for n in 0..files {
            std::fs::write(dir.join(format!("f{n}")), n.to_string().repeat(200 + n as usize)).expect("a file");
        }
        for n in 0..3u32 {
            let mut state = n + 1;
            let bytes: Vec<u8> = (0..4 << 20)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 24) as u8
                })
                .collect();
            std::fs::write(self.workspace().join(format!("large{n}")), bytes).expect("a file");
        }
        std::os::unix::fs::symlink("../d", self.workspace().join("link")).expect("a link");
    }

    pub fn contents(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let (mut found, mut dirs) = (BTreeMap::new(), vec![self.workspace()]);
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry")) {
                let path = entry.path();
                let name = path.strip_prefix(self.workspace()).expect("below").to_path_buf();
                let kind = entry.file_type().expect("a kind");
                if kind.is_dir() {
                    dirs.push(path);
                } else if kind.is_file() {
                    found.insert(name, std::fs::read(path).expect("a file"));
                }
            }
        }
        found
    }

    pub fn touched(&self) {
        self.engine.lock().expect("no panic").touched();
    }

    pub fn connect(&self) -> Channel {
        let (here, there) = tokio::io::duplex(1 << 20);
        let (reader, writer) = tokio::io::split(here);
        tokio::spawn(serve(Arc::clone(&self.engine), self.fault, there));
        Channel::new((Box::new(reader), Box::new(writer)), Fence::granted(1))
    }
}

async fn serve(engine: Arc<Mutex<Checkpointer>>, fault: Fault, mut stream: DuplexStream) {
    let (mut decoder, mut buffer, mut hidden) = (FrameDecoder::default(), vec![0; 64 << 10], None);
    while let Ok(n @ 1..) = stream.read(&mut buffer).await {
        decoder.push(&buffer[..n]);
        while let Some(frame) = decoder.next_frame().expect("frames") {
            let request: Request = frame.message().expect("a request");
            let is_read = matches!(request.call, Call::CaptureRead { .. });
            if is_read && fault == Fault::Silent {
                continue;
            }
            let mut answer =
                tokio::task::block_in_place(|| act(&mut engine.lock().expect("no panic"), &request.call, hidden));
            spoil(fault, &mut answer, &mut hidden);
            let bytes =
                Frame::encode_message(Fence::granted(1), &Response { id: request.id, answer }).expect("a frame");
            let whole = if is_read && fault == Fault::CutRead { bytes.len() / 2 } else { bytes.len() };
            if stream.write_all(&bytes[..whole]).await.is_err() || whole < bytes.len() {
                return;
            }
        }
    }
}

fn act(engine: &mut Checkpointer, call: &Call, withheld: Option<(ObjectId, bool)>) -> Result<Answer, Refusal> {
    match call {
        Call::RestoreBegin { checkpoint, manifest } => engine.restore_begin(*checkpoint, *manifest),
        Call::RestoreObjects { objects } => engine.restore_objects(objects.clone()),
        Call::Capture { checkpoint, limits, exclude, .. } => {
            let captured = engine.capture(*checkpoint, &["home"], limits, exclude);
            captured.map(|captured| Answer::Captured(Box::new(captured)))
        }
        Call::CaptureList { from } => engine.capture_list(*from).map(|objects| Answer::CaptureList { objects }),
        Call::CaptureRead { ids } if withheld.is_some_and(|(id, refused)| refused && ids.contains(&id)) => {
            Err(Refusal::Internal("no such object".to_owned()))
        }
        Call::CaptureRead { ids } => engine.capture_read(ids).map(|objects| Answer::Objects { objects }),
        Call::CaptureEnd => {
            engine.capture_end();
            Ok(Answer::Done)
        }
        other => panic!("{other:?} is no call of a transfer"),
    }
}

fn spoil(fault: Fault, answer: &mut Result<Answer, Refusal>, hidden: &mut Option<(ObjectId, bool)>) {
    match (fault, answer) {
        (Fault::AlterRead, Ok(Answer::Objects { objects })) => {
            let object = objects.iter_mut().find(|object| !object.bytes.is_empty()).expect("an object");
            object.bytes[0] ^= 1;
        }
        (Fault::HideOne | Fault::WithholdOne, Ok(Answer::Captured(captured))) => {
            let at = captured.new_objects.iter().position(|object| object.kind == ObjectKind::Chunk).expect("a chunk");
            *hidden = Some((captured.new_objects.remove(at).id, fault == Fault::WithholdOne));
            captured.new_total -= 1;
        }
        _ => {}
    }
}
