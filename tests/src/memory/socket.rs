//! The engine on a unix socket, for workers that are processes of their own. One connection a call: a line of JSON asks,
//! a line answers; after the answer to `open` the same connection carries the computer's frames.
//!
//! A worker that is killed takes its connections with it and nothing else.

use std::path::Path;

use holdfast_protocol::{Generation, SessionId};
use holdfast_shared::domain::sandbox::SandboxSpec;
use holdfast_worker::sandbox::{Computer, ComputerEnd, ComputerSpec, ComputerState, Sandbox, SandboxError};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::Engine;

#[derive(Serialize, Deserialize)]
pub(super) enum Ask {
    Id,
    Ensure { name: String, session: SessionId, generation: Generation, nonce: Uuid, sandbox: SandboxSpec },
    Find(String),
    Open(String),
    Pause(String),
    Resume(String),
    List,
    Destroy(String),
    Wait(String),
}

#[derive(Serialize, Deserialize)]
pub(super) enum Told {
    Id(String),
    Computers(Vec<Shown>),
    Done,
    End { exit_code: Option<i64>, detail: String },
    Gone,
    Foreign(String),
    Unavailable(String),
}

#[derive(Serialize, Deserialize)]
pub(super) struct Shown {
    name: String,
    state: u8,
    session: SessionId,
    generation: Generation,
    nonce: Uuid,
    spec_digest: String,
    age_s: u64,
}

impl Shown {
    fn of(computer: &Computer) -> Option<Self> {
        Some(Self {
            name: computer.name.clone(),
            state: match computer.state {
                ComputerState::Running => 0,
                ComputerState::Paused => 1,
                ComputerState::Stopped => 2,
            },
            session: computer.session?,
            generation: computer.generation?,
            nonce: computer.nonce?,
            spec_digest: computer.spec_digest.clone()?,
            age_s: computer.age_s,
        })
    }

    pub(super) fn computer(self) -> Computer {
        Computer {
            id: self.nonce.simple().to_string(),
            name: self.name,
            state: [ComputerState::Running, ComputerState::Paused, ComputerState::Stopped]
                [usize::from(self.state.min(2))],
            session: Some(self.session),
            generation: Some(self.generation),
            nonce: Some(self.nonce),
            spec_digest: Some(self.spec_digest),
            age_s: self.age_s,
        }
    }
}

/// Serves the engine at `path` for as long as what it returns is kept.
pub async fn serve(engine: Engine, path: &Path) -> AbortOnDropHandle<()> {
    let listener = UnixListener::bind(path).expect("the socket's directory is there and its name is free");
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            while connections.try_join_next().is_some() {}
            connections.spawn(serve_one(engine.clone(), stream));
        }
    }))
}

async fn serve_one(engine: Engine, stream: UnixStream) {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    let mut line = String::new();
    if reader.read_line(&mut line).await.is_err() {
        return;
    }
    let Ok(ask) = serde_json::from_str::<Ask>(&line) else { return };
    if let Ask::Open(name) = &ask {
        match engine.admitted(name).await {
            Err(error) => tell(&mut writer, &told(Err(error))).await,
            Ok((computer, id)) => {
                tell(&mut writer, &Told::Done).await;
                super::wire::connection(computer, id, reader, writer).await;
            }
        }
        return;
    }
    let answer = tokio::select! {
        answer = answer(&engine, ask) => answer,
        // Nobody waits any more.
        _ = reader.read_line(&mut line) => return,
    };
    tell(&mut writer, &told(answer)).await;
}

async fn tell(writer: &mut (impl tokio::io::AsyncWrite + Unpin), told: &Told) {
    let mut line = serde_json::to_vec(told).expect("an answer always encodes");
    line.push(b'\n');
    let _ = writer.write_all(&line).await;
}

async fn answer(engine: &Engine, ask: Ask) -> Result<Told, SandboxError> {
    let done = |()| Told::Done;
    let shown = |computers: &[Computer]| Told::Computers(computers.iter().filter_map(Shown::of).collect());
    Ok(match ask {
        Ask::Id => Told::Id(engine.id().to_owned()),
        Ask::Ensure { name, session, generation, nonce, sandbox } => {
            shown(&[engine.ensure(&ComputerSpec { name, session, generation, nonce, sandbox }).await?])
        }
        Ask::Find(name) => shown(engine.find(&name).await?.as_slice()),
        Ask::Pause(name) => engine.pause(&name).await.map(done)?,
        Ask::Resume(name) => engine.resume(&name).await.map(done)?,
        Ask::List => shown(&engine.list().await?),
        Ask::Destroy(name) => engine.destroy(&name).await.map(done)?,
        Ask::Wait(name) => {
            let ComputerEnd { exit_code, detail, .. } = engine.wait(&name).await?;
            Told::End { exit_code, detail }
        }
        Ask::Open(_) => Told::Unavailable("an open is no plain question".to_owned()),
    })
}

fn told(answer: Result<Told, SandboxError>) -> Told {
    answer.unwrap_or_else(|error| match error {
        SandboxError::Gone { .. } => Told::Gone,
        SandboxError::Foreign { what, .. } => Told::Foreign(what),
        other => Told::Unavailable(format!("{:#}", anyhow::Error::new(other))),
    })
}
