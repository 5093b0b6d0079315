//! A runtime under test and the worker's side of its frames. Everything dies with the test.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use holdfast_protocol::event::{Event, JournalEvent};
use holdfast_protocol::harness::{Harness, ScriptedSettings};
use holdfast_protocol::message::{Answer, Call, Refusal, Request, Response, StartTurn, Status};
use holdfast_protocol::outcome::Outcome;
use holdfast_protocol::{Fence, Frame, FrameDecoder, PROTOCOL_VERSION, RunId};
use tempfile::TempDir;

/// Longer than anything here takes on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(60);
pub const TTL_MS: u64 = 120_000;
pub const CONVERSATION: &str = "0190c0de-0000-4000-8000-000000000001";

pub struct Computer {
    pub process: Child,
    pub socket: String,
    directory: TempDir,
}

impl Computer {
    pub fn new() -> Self {
        Self::with(&[])
    }

    /// On a tmpfs, as real ones are: there a write through a mapping leaves no trace in a file's times.
    pub fn in_memory() -> Self {
        Self::within(tempfile::tempdir_in("/dev/shm").unwrap(), &[])
    }

    pub fn with(options: &[&str]) -> Self {
        Self::within(tempfile::tempdir().unwrap(), options)
    }

    fn within(directory: TempDir, options: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let socket = format!("holdfast-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let (workspace, state) = (directory.path().join("workspace"), directory.path().join("runtime"));
        for path in [&workspace, &state] {
            std::fs::create_dir(path).unwrap();
        }
        let process = Command::new(env!("CARGO_BIN_EXE_holdfast-runtime"))
            .args(["--admit-own-uid", "--socket", &socket, "--grace-ms", "700", "--term-ms", "700"])
            .arg("--workspace")
            .arg(&workspace)
            .arg("--state")
            .arg(&state)
            .args(options)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self { process, socket, directory }
    }

    pub fn workspace(&self) -> PathBuf {
        self.directory.path().join("workspace")
    }

    pub fn state(&self) -> PathBuf {
        self.directory.path().join("runtime")
    }

    /// A connection that has not said hello.
    pub fn connect(&self) -> Client {
        let address = SocketAddr::from_abstract_name(&self.socket).unwrap();
        let stream = eventually(|| UnixStream::connect_addr(&address).ok());
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Client { stream, fence: Fence::NONE, decoder: FrameDecoder::default(), next: 1 }
    }

    /// A connection admitted under this fence.
    pub fn admitted(&self, fence: u64) -> Client {
        let mut client = self.connect();
        client.hello(fence).unwrap();
        client
    }

    pub fn children(&self) -> Vec<u32> {
        let parent = format!("\nPPid:\t{}\n", self.process.id());
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| status_of(*pid).contains(&parent)).collect()
    }
}

impl Drop for Computer {
    fn drop(&mut self) {
        let below = self.children();
        let _ = self.process.kill();
        let _ = self.process.wait();
        for pid in below {
            let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
        }
    }
}

pub fn status_of(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default()
}

pub struct Client {
    pub stream: UnixStream,
    pub fence: Fence,
    decoder: FrameDecoder,
    next: u64,
}

impl Client {
    pub fn hello(&mut self, fence: u64) -> Result<Status, Refusal> {
        self.hello_for(fence, TTL_MS)
    }

    pub fn hello_for(&mut self, fence: u64, ttl_ms: u64) -> Result<Status, Refusal> {
        self.fence = Fence::granted(fence);
        match self.call(Call::Hello { protocol: PROTOCOL_VERSION, ttl_ms })? {
            Answer::Hello(status) => Ok(status),
            other => panic!("{other:?}"),
        }
    }

    pub fn send(&mut self, call: Call) -> u64 {
        let id = self.next;
        self.next += 1;
        self.stream.write_all(&Frame::encode_message(self.fence, &Request { id, call }).unwrap()).unwrap();
        id
    }

    /// The next answer, whichever call it is for; `None` when the connection ended.
    pub fn receive(&mut self) -> Option<Response> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return Some(frame.message().unwrap());
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(n) => self.decoder.push(&buffer[..n]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no answer: {error}"),
            }
        }
    }

    pub fn call(&mut self, call: Call) -> Result<Answer, Refusal> {
        let id = self.send(call);
        let response = self.receive().expect("the connection is open");
        assert_eq!(response.id, id);
        response.answer
    }

    pub fn start(&mut self, turn: &StartTurn) -> Result<Answer, Refusal> {
        self.call(Call::Start(Box::new(turn.clone())))
    }

    pub fn poll(&mut self, run: RunId, from: u64) -> (Vec<JournalEvent>, u64, Option<Outcome>) {
        match self.call(Call::Poll { run, from, wait_ms: 5_000, linger_ms: 0 }).unwrap() {
            Answer::Events(events) => (events.events, events.next, events.outcome),
            other => panic!("{other:?}"),
        }
    }

    /// Everything of the run to its end.
    pub fn finish(&mut self, run: RunId) -> (Vec<Event>, Outcome) {
        let (mut all, mut from) = (Vec::new(), 0);
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < LIMIT, "the run does not end");
            let (events, next, outcome) = self.poll(run, from);
            for event in events {
                assert_eq!(event.cursor, all.len() as u64);
                all.push(event.event);
            }
            from = next;
            if let Some(outcome) = outcome {
                return (all, outcome);
            }
        }
    }

    /// Starts the turn and sees it to its end.
    pub fn run(&mut self, turn: &StartTurn) -> (Vec<Event>, Outcome) {
        assert_eq!(self.start(turn), Ok(Answer::Done));
        self.finish(turn.run)
    }
}

/// A first turn of the scripted agent.
pub fn scripted(script: &str) -> StartTurn {
    StartTurn {
        run: RunId::generate(),
        seq: 1,
        harness: Harness::Scripted(ScriptedSettings {}),
        prompt: script.to_owned(),
        expect_native: None,
        new_native: CONVERSATION.to_owned(),
        env: vec![],
        secrets: vec![],
        turn_timeout_ms: 600_000,
        stall_timeout_ms: 600_000,
        warm: false,
        inputs: vec![],
    }
}

/// A later turn of the same conversation.
pub fn next_turn(script: &str) -> StartTurn {
    StartTurn { seq: 2, expect_native: Some(CONVERSATION.to_owned()), ..scripted(script) }
}

/// What `look` finds, looked for until it is there.
pub fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < LIMIT, "it never came");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn exists(path: &Path) -> Option<()> {
    path.exists().then_some(())
}
