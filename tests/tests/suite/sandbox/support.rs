//! A world of one test: an installation on the engine, an image that holds the probe alone, and a way inside.
//!
//! Dropping a world destroys its computers. The image stays for the next run; its name is the hash of the probe's source.

use std::path::Path;
use std::process::Command;

use bollard::container::LogOutput;
use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
use futures_util::StreamExt;
use holdfast_protocol::{AGENT_UID, Generation, RUNTIME_PATH, SessionId};
use holdfast_shared::domain::sandbox::{Network, SandboxSpec, computer_name, hex};
use holdfast_worker::image::context::{Entry, tar};
use holdfast_worker::sandbox::docker::{Docker, Engine};
use holdfast_worker::sandbox::{ComputerSpec, Sandbox};
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;
use uuid::Uuid;

/// One test's installation.
pub struct World {
    pub docker: Docker,
    pub raw: bollard::Docker,
    installation: String,
    image: String,
}

impl World {
    pub async fn new() -> Self {
        let installation = format!("test-{}", Uuid::now_v7().simple());
        let docker = Docker::connect(&installation, None).await.expect("the engine answers");
        let raw = bollard::Docker::connect_with_defaults().expect("an address");
        let raw = raw.negotiate_version().await.expect("the engine answers");
        let image = probe_image(docker.engine()).await;
        Self { docker, raw, installation, image }
    }

    /// A small computer of a new session.
    pub fn spec(&self) -> ComputerSpec {
        let session = SessionId::generate();
        let sandbox = SandboxSpec {
            image: self.image.clone(),
            cpus: 0.5,
            memory_mb: 192,
            pids_limit: 32,
            workspace_mb: 24,
            runtime_mb: 16,
            tmp_mb: 8,
            network: Network::None,
            ..SandboxSpec::default()
        };
        let name = computer_name("default", "probe", session, Generation(1));
        ComputerSpec { name, session, generation: Generation(1), nonce: Uuid::new_v4(), sandbox }
    }

    pub fn image(&self) -> &str {
        &self.image
    }

    pub fn installation(&self) -> &str {
        &self.installation
    }

    /// What the probe says as the agent's user.
    pub async fn inside(&self, name: &str, arguments: &[&str]) -> String {
        self.inside_as(name, &format!("{AGENT_UID}:{AGENT_UID}"), arguments).await
    }

    pub async fn inside_as(&self, name: &str, user: &str, arguments: &[&str]) -> String {
        let command = [RUNTIME_PATH].iter().chain(arguments).map(|&text| text.to_owned()).collect();
        self.run_as(name, user, command).await
    }

    /// What any program says.
    pub async fn run_as(&self, name: &str, user: &str, command: Vec<String>) -> String {
        let exec = CreateExecOptions {
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            cmd: Some(command),
            user: Some(user.to_owned()),
            ..CreateExecOptions::default()
        };
        let exec = self.raw.create_exec(name, exec).await.expect("an exec");
        let started = self.raw.start_exec(&exec.id, None::<StartExecOptions>).await.expect("a start");
        let StartExecResults::Attached { mut output, .. } = started else { panic!("detached") };
        let mut said = String::new();
        while let Some(Ok(LogOutput::StdOut { message } | LogOutput::StdErr { message })) = output.next().await {
            said.push_str(&String::from_utf8_lossy(&message));
        }
        said.trim_end().to_owned()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let installation = self.installation.clone();
        let cleaner = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let Ok(docker) = Docker::connect(&installation, None).await else { return };
                for computer in docker.list().await.unwrap_or_default() {
                    let _ = docker.destroy(&computer.name).await;
                }
            });
        });
        let _ = cleaner.join();
    }
}

/// Name of the image that holds the probe and nothing else.
pub async fn probe_image(engine: &Engine) -> String {
    static IMAGE: OnceCell<String> = OnceCell::const_new();
    IMAGE.get_or_init(|| make_probe_image(engine)).await.clone()
}

async fn make_probe_image(engine: &Engine) -> String {
    let directory = tempfile::tempdir().expect("a directory");
    let name = format!("holdfast-test-probe:{}", &hex(&Sha256::digest(include_bytes!("probe.rs")))[..12]);
    if engine.image(&name).await.expect("the engine answers").is_none() {
        let binary = compile_probe(directory.path());
        let root = tar(vec![
            Entry::bytes(RUNTIME_PATH.trim_start_matches('/'), 0o755, binary),
            Entry::directory("workspace", 0o1777),
            Entry::directory("runtime", 0o1777),
        ]);
        let deadline = std::time::Duration::from_secs(60);
        engine.import_image(&name, &[], root, deadline).await.expect("an import");
    }
    name
}

/// The probe as a static program.
pub fn compile_probe(directory: &Path) -> Vec<u8> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sandbox/probe.rs");
    let binary = directory.join("probe");
    let status = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()))
        .args(["--edition", "2024", "-O", "-C", "strip=symbols", "-C", "target-feature=+crt-static", "-o"])
        .arg(&binary)
        .arg(source)
        .status()
        .expect("rustc runs");
    assert!(status.success(), "the probe compiles");
    std::fs::read(binary).expect("the probe")
}
