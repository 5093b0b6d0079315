//! One throw-away computer inside the locked-down profile: started, compared with what is promised, its runtime and its
//! harness programs asked for their versions, removed.

use std::time::{Duration, Instant};

use holdfast_protocol::{Generation, PROTOCOL_VERSION, RUNTIME_PATH, SessionId};
use holdfast_shared::domain::sandbox::{SandboxSpec, computer_name};
use uuid::Uuid;

use super::{Line, text};
use crate::sandbox::docker::Docker;
use crate::sandbox::docker::inspect::rows;
use crate::sandbox::{ComputerSpec, Sandbox};

const CHECK: &str = "computer";
const LOOK: Duration = Duration::from_secs(30);
/// The agent programs an image may hold.
const HARNESSES: [(&str, &str); 2] = [("claude", "claude"), ("codex", "codex")];

pub(super) async fn look(docker: &Docker, image: &str) -> Vec<Line> {
    let session = SessionId::generate();
    let sandbox = SandboxSpec { image: image.to_owned(), ..SandboxSpec::default() };
    let name = computer_name("doctor", "doctor", session, Generation(1));
    let spec = ComputerSpec { name, session, generation: Generation(1), nonce: Uuid::new_v4(), sandbox };
    let lines = examine(docker, &spec).await;
    if let Err(error) = docker.destroy(&spec.name).await {
        let mut lines = lines;
        let advice = "a worker's sweeper removes it; or `holdfast gc --apply` in a minute";
        lines.push(Line::warn(CHECK, format!("{} is not removed: {}", spec.name, text(error)), advice));
        return lines;
    }
    lines
}

async fn examine(docker: &Docker, spec: &ComputerSpec) -> Vec<Line> {
    let began = Instant::now();
    if let Err(error) = docker.ensure(spec).await {
        return vec![Line::fail(CHECK, text(error), "the line says which part of the profile this engine refuses")];
    }
    let mut lines = vec![Line::ok(CHECK, format!("started and read back in {} ms", began.elapsed().as_millis()))];
    lines.push(runtime(docker, &spec.name).await);
    lines.push(controls(docker, spec).await);
    for (harness, program) in HARNESSES {
        lines.extend(version(docker, &spec.name, harness, program).await);
    }
    lines
}

/// The runtime in the image must speak this worker's protocol.
async fn runtime(docker: &Docker, name: &str) -> Line {
    let rebuild = "run `holdfast image build`";
    match docker.run_inside(name, &[RUNTIME_PATH, "version"], LOOK).await {
        Ok((0, said)) if said.trim().ends_with(&format!("protocol {PROTOCOL_VERSION}")) => {
            Line::ok("runtime", said.trim())
        }
        Ok((_, said)) => {
            Line::fail("runtime", format!("{} (this worker speaks {PROTOCOL_VERSION})", said.trim()), rebuild)
        }
        Err(error) => Line::fail("runtime", text(error), rebuild),
    }
}

async fn controls(docker: &Docker, spec: &ComputerSpec) -> Line {
    let advice = "`holdfast computer inspect` shows them side by side; do not run agents here";
    let recorded = match docker.recorded(&spec.name).await {
        Ok(Some(recorded)) => recorded,
        Ok(None) => return Line::fail("controls", "the computer went away", "look into the engine's log"),
        Err(error) => return Line::fail("controls", text(error), "look into the engine's log"),
    };
    match crate::cli::look(docker, &spec.name).await {
        Ok(inside) => {
            let rows = rows(&spec.sandbox, &recorded, Some(&inside));
            let broken: Vec<&str> = rows.iter().filter(|row| !row.holds).map(|row| row.control.as_str()).collect();
            match broken.is_empty() {
                true => Line::ok("controls", format!("{} hold, as recorded and from inside", rows.len())),
                false => Line::fail("controls", format!("these do not hold: {}", broken.join(", ")), advice),
            }
        }
        Err(line) => Line::fail("controls", line, "run `holdfast image build`"),
    }
}

/// `None` where the image does not have the program.
async fn version(docker: &Docker, name: &str, harness: &'static str, program: &str) -> Option<Line> {
    match docker.run_inside(name, &[program, "--version"], LOOK).await {
        Ok((0, said)) => Some(Line::ok("harness", format!("{harness}: {}", said.trim()))),
        Ok((126 | 127, _)) => None,
        Ok((code, said)) => Some(Line::fail(
            "harness",
            format!("{harness} --version ended with {code}: {}", said.trim()),
            "run `holdfast image build --fresh`",
        )),
        Err(_) => None,
    }
}
