//! The engine of computers in memory: names, lives, and faults on command. Also counts how often each run's harness was
//! started, which is how often its prompt reached "the model".

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use holdfast_protocol::RunId;
use holdfast_worker::sandbox::{AnySandbox, ByteStream, Computer, ComputerEnd, ComputerSpec, Sandbox, SandboxError};

use super::computer::{Life, MemoryComputer};
use super::{PROVIDER, wire};

/// Harness starts, by run and by prompt.
#[derive(Default)]
pub(super) struct Starts(Mutex<(HashMap<RunId, u32>, HashMap<String, u32>)>);

impl Starts {
    /// A harness begins; gives how many began with this prompt before.
    pub(super) fn begin(&self, run: RunId, prompt: &str) -> u32 {
        let mut counts = self.0.lock().expect("never poisoned");
        *counts.0.entry(run).or_default() += 1;
        let of_prompt = counts.1.entry(prompt.to_owned()).or_default();
        *of_prompt += 1;
        *of_prompt - 1
    }
}

/// What the engine does wrong, until told otherwise.
#[derive(Default)]
pub struct Faults {
    delay_ms: AtomicU64,
    creates: AtomicU32,
    opens: AtomicU32,
    captures: AtomicU32,
}

impl Faults {
    /// Every call takes this much longer.
    pub fn slow(&self, delay: Duration) {
        self.delay_ms.store(delay.as_millis() as u64, Ordering::SeqCst);
    }

    /// The next creates are refused as unavailable.
    pub fn refuse_creates(&self, count: u32) {
        self.creates.store(count, Ordering::SeqCst);
    }

    /// The next connections are refused.
    pub fn refuse_opens(&self, count: u32) {
        self.opens.store(count, Ordering::SeqCst);
    }

    /// The next captures find files that do not stand still.
    pub fn unsettle_captures(&self, count: u32) {
        self.captures.store(count, Ordering::SeqCst);
    }

    pub(super) fn unsettles(&self) -> bool {
        Self::strikes(&self.captures)
    }

    async fn delayed(&self) {
        match self.delay_ms.load(Ordering::SeqCst) {
            0 => {}
            ms => tokio::time::sleep(Duration::from_millis(ms)).await,
        }
    }

    fn strikes(which: &AtomicU32) -> bool {
        which.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
    }
}

struct Inner {
    id: String,
    computers: Mutex<HashMap<String, Arc<MemoryComputer>>>,
    connections: AtomicU64,
    starts: Arc<Starts>,
    faults: Arc<Faults>,
}

/// Cheap to clone; the computers go when the last clone is dropped.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

impl Engine {
    pub fn new(id: &str) -> Self {
        Self(Arc::new(Inner {
            id: id.to_owned(),
            computers: Mutex::default(),
            connections: AtomicU64::new(1),
            starts: Arc::default(),
            faults: Arc::default(),
        }))
    }

    pub fn id(&self) -> &str {
        &self.0.id
    }

    pub fn faults(&self) -> &Faults {
        &self.0.faults
    }

    /// For a worker of this process.
    pub fn sandbox(&self) -> AnySandbox {
        AnySandbox::new(PROVIDER, self.id(), self.clone())
    }

    /// How often the harness of each run was started.
    pub fn starts(&self) -> HashMap<RunId, u32> {
        self.0.starts.0.lock().expect("never poisoned").0.clone()
    }

    /// Stops a computer behind everybody's back.
    pub fn kill(&self, name: &str) {
        if let Some(computer) = self.computers().get(name) {
            computer.stop("it was killed");
        }
    }

    /// Names of the computers that have not stopped.
    pub fn running(&self) -> Vec<String> {
        let alive = |computer: &&Arc<MemoryComputer>| !matches!(*computer.life.borrow(), Life::Stopped(_));
        self.computers().values().filter(alive).map(|computer| computer.spec.name.clone()).collect()
    }

    fn computers(&self) -> MutexGuard<'_, HashMap<String, Arc<MemoryComputer>>> {
        self.0.computers.lock().expect("never poisoned")
    }

    async fn get(&self, operation: &'static str, name: &str) -> Result<Arc<MemoryComputer>, SandboxError> {
        self.0.faults.delayed().await;
        let found = self.computers().get(name).cloned();
        found.ok_or_else(|| SandboxError::Gone { operation, name: name.to_owned() })
    }

    /// Freezes or thaws; one that stopped is gone.
    async fn turn(&self, operation: &'static str, name: &str, to: Life) -> Result<(), SandboxError> {
        let computer = self.get(operation, name).await?;
        let mut stopped = false;
        computer.life.send_if_modified(|life| {
            stopped = matches!(life, Life::Stopped(_));
            let changes = !stopped && *life != to;
            if changes {
                *life = to;
            }
            changes
        });
        if stopped { Err(SandboxError::Gone { operation, name: name.to_owned() }) } else { Ok(()) }
    }

    pub(super) async fn admitted(&self, name: &str) -> Result<(Arc<MemoryComputer>, u64), SandboxError> {
        let computer = self.get("open", name).await?;
        let runs = *computer.life.borrow() == Life::Running;
        if !runs || Faults::strikes(&self.0.faults.opens) {
            let source = anyhow::anyhow!("the computer does not run, or was told not to answer");
            return Err(SandboxError::Unavailable { operation: "open", source });
        }
        Ok((computer, self.0.connections.fetch_add(1, Ordering::Relaxed)))
    }
}

impl Sandbox for Engine {
    async fn ensure(&self, spec: &ComputerSpec) -> Result<Computer, SandboxError> {
        self.0.faults.delayed().await;
        if Faults::strikes(&self.0.faults.creates) {
            let source = anyhow::anyhow!("the engine was told to refuse");
            return Err(SandboxError::Unavailable { operation: "ensure", source });
        }
        let computer = {
            let make = || Arc::new(MemoryComputer::new(spec, Arc::clone(&self.0.starts), Arc::clone(&self.0.faults)));
            Arc::clone(self.computers().entry(spec.name.clone()).or_insert_with(make))
        };
        if computer.spec.nonce != spec.nonce {
            return Err(SandboxError::Foreign { name: spec.name.clone(), what: "another nonce".to_owned() });
        }
        self.turn("ensure", &spec.name, Life::Running).await?;
        Ok(computer.shown())
    }

    async fn find(&self, name: &str) -> Result<Option<Computer>, SandboxError> {
        self.0.faults.delayed().await;
        Ok(self.computers().get(name).map(|computer| computer.shown()))
    }

    async fn open(&self, name: &str) -> Result<ByteStream, SandboxError> {
        let (computer, id) = self.admitted(name).await?;
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let (reader, writer) = tokio::io::split(theirs);
        tokio::spawn(wire::connection(computer, id, reader, writer));
        let (reader, writer) = tokio::io::split(ours);
        Ok((Box::new(reader), Box::new(writer)))
    }

    async fn pause(&self, name: &str) -> Result<(), SandboxError> {
        self.turn("pause", name, Life::Paused).await
    }

    async fn resume(&self, name: &str) -> Result<(), SandboxError> {
        self.turn("resume", name, Life::Running).await
    }

    async fn list(&self) -> Result<Vec<Computer>, SandboxError> {
        self.0.faults.delayed().await;
        Ok(self.computers().values().map(|computer| computer.shown()).collect())
    }

    async fn destroy(&self, name: &str) -> Result<(), SandboxError> {
        self.0.faults.delayed().await;
        let gone = self.computers().remove(name);
        if let Some(computer) = gone {
            computer.stop("it was destroyed");
        }
        Ok(())
    }

    async fn wait(&self, name: &str) -> Result<ComputerEnd, SandboxError> {
        let computer = self.get("wait", name).await?;
        let mut life = computer.life.subscribe();
        let stopped = life.wait_for(|life| matches!(life, Life::Stopped(_))).await;
        match stopped.as_deref() {
            Ok(Life::Stopped(end)) => Ok(end.clone()),
            _ => Err(SandboxError::Gone { operation: "wait", name: name.to_owned() }),
        }
    }
}
