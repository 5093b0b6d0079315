//! A worker's side of an engine on a unix socket. Every call is one connection, so there is nothing to repair after a
//! loss: a call that gets no answer is `Unavailable`, and nothing is retried here.

use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_worker::sandbox::{AnySandbox, ByteStream, Computer, ComputerEnd, ComputerSpec, Sandbox, SandboxError};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use super::PROVIDER;
use super::socket::{Ask, Told};

const DEADLINE: Duration = Duration::from_secs(10);

/// The engine behind a socket; see `serve`.
#[derive(Clone)]
pub struct RemoteEngine(PathBuf);

impl RemoteEngine {
    /// The engine at `path`, as a worker's provider.
    pub async fn sandbox(path: &Path) -> Result<AnySandbox, String> {
        let engine = Self(path.to_owned());
        match engine.asked("id", &Ask::Id).await {
            Ok(Told::Id(id)) => Ok(AnySandbox::new(PROVIDER, &id, engine)),
            Ok(_) => Err(format!("{}: not an engine of computers in memory", path.display())),
            Err(error) => Err(format!("{:#}", anyhow::Error::new(error))),
        }
    }

    async fn connect(&self, operation: &'static str, ask: &Ask) -> Result<(Told, BufReader<UnixStream>), SandboxError> {
        let exchange = async {
            let mut stream = BufReader::new(UnixStream::connect(&self.0).await?);
            let mut line = serde_json::to_vec(ask)?;
            line.push(b'\n');
            stream.write_all(&line).await?;
            let mut answer = String::new();
            stream.read_line(&mut answer).await?;
            Ok::<_, anyhow::Error>((serde_json::from_str(&answer)?, stream))
        };
        exchange.await.map_err(|source| SandboxError::Unavailable { operation, source })
    }

    async fn asked(&self, operation: &'static str, ask: &Ask) -> Result<Told, SandboxError> {
        let answered = tokio::time::timeout(DEADLINE, self.connect(operation, ask)).await;
        let late = || SandboxError::Unavailable { operation, source: anyhow::anyhow!("no answer in {DEADLINE:?}") };
        good(operation, answered.unwrap_or_else(|_| Err(late()))?.0)
    }

    async fn done(&self, operation: &'static str, ask: &Ask) -> Result<(), SandboxError> {
        self.asked(operation, ask).await.map(|_| ())
    }

    async fn computers(&self, operation: &'static str, ask: &Ask) -> Result<Vec<Computer>, SandboxError> {
        match self.asked(operation, ask).await? {
            Told::Computers(shown) => Ok(shown.into_iter().map(|shown| shown.computer()).collect()),
            _ => Err(SandboxError::Unavailable { operation, source: anyhow::anyhow!("another answer") }),
        }
    }
}

fn good(operation: &'static str, told: Told) -> Result<Told, SandboxError> {
    match told {
        Told::Gone => Err(SandboxError::Gone { operation, name: "asked for".to_owned() }),
        Told::Foreign(what) => Err(SandboxError::Foreign { name: "asked for".to_owned(), what }),
        Told::Unavailable(text) => Err(SandboxError::Unavailable { operation, source: anyhow::anyhow!(text) }),
        other => Ok(other),
    }
}

impl Sandbox for RemoteEngine {
    async fn ensure(&self, spec: &ComputerSpec) -> Result<Computer, SandboxError> {
        let ask = Ask::Ensure {
            name: spec.name.clone(),
            session: spec.session,
            generation: spec.generation,
            nonce: spec.nonce,
            sandbox: spec.sandbox.clone(),
        };
        let found = self.computers("ensure", &ask).await?.pop();
        found.ok_or_else(|| SandboxError::Gone { operation: "ensure", name: spec.name.clone() })
    }

    async fn find(&self, name: &str) -> Result<Option<Computer>, SandboxError> {
        Ok(self.computers("find", &Ask::Find(name.to_owned())).await?.pop())
    }

    async fn open(&self, name: &str) -> Result<ByteStream, SandboxError> {
        let (told, stream) = self.connect("open", &Ask::Open(name.to_owned())).await?;
        good("open", told)?;
        let (reader, writer) = tokio::io::split(stream);
        Ok((Box::new(reader), Box::new(writer)))
    }

    async fn pause(&self, name: &str) -> Result<(), SandboxError> {
        self.done("pause", &Ask::Pause(name.to_owned())).await
    }

    async fn resume(&self, name: &str) -> Result<(), SandboxError> {
        self.done("resume", &Ask::Resume(name.to_owned())).await
    }

    async fn list(&self) -> Result<Vec<Computer>, SandboxError> {
        self.computers("list", &Ask::List).await
    }

    async fn destroy(&self, name: &str) -> Result<(), SandboxError> {
        self.done("destroy", &Ask::Destroy(name.to_owned())).await
    }

    async fn wait(&self, name: &str) -> Result<ComputerEnd, SandboxError> {
        let (told, _stream) = self.connect("wait", &Ask::Wait(name.to_owned())).await?;
        match good("wait", told)? {
            Told::End { exit_code, detail } => Ok(ComputerEnd { exit_code, out_of_memory: false, detail }),
            _ => Err(SandboxError::Unavailable { operation: "wait", source: anyhow::anyhow!("another answer") }),
        }
    }
}
