//! A command run beside PID 1 of a computer, and what the engine recorded of the computer: for people who look, and for
//! tests. Never part of a turn.
//!
//! Writes nothing. Dying in the middle leaves a short-lived process in the computer, which ends by itself or with it.

use std::time::Duration;

use bollard::container::LogOutput;
use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
use bollard::models::{ContainerInspectResponse, SystemInfo, SystemInfoCgroupVersionEnum};
use futures_util::StreamExt;

use super::Docker;
use super::ending::gone;
use super::engine::{Fault, QUICK, call};
use super::ensure::inspect;
use crate::sandbox::SandboxError;

const INSIDE: &str = "exec";
/// Output beyond this is dropped.
const MOST_OUTPUT: usize = 1 << 20;

/// An engine, as it describes itself.
#[derive(Clone, Debug)]
pub struct EngineFacts {
    pub version: String,
    /// `v1`, `v2` or `unknown`.
    pub cgroup: &'static str,
    pub storage: String,
    /// Container runtimes it offers, in the order of their names.
    pub runtimes: Vec<String>,
    /// Limits that it says it cannot hold.
    pub missing_limits: Vec<&'static str>,
    pub filters_calls: bool,
    /// Whether uid 0 in a container is another user on the host.
    pub user_namespace: bool,
    pub memory_bytes: Option<i64>,
    /// Where it keeps images and containers, on its host.
    pub directory: String,
}

impl From<SystemInfo> for EngineFacts {
    fn from(info: SystemInfo) -> Self {
        let unknown = || "unknown".to_owned();
        let option = |name: &str| info.security_options.iter().flatten().any(|option| option.contains(name));
        let (filters_calls, user_namespace) = (option("seccomp"), option("userns") || option("rootless"));
        let limits = [
            ("memory", info.memory_limit),
            ("swap", info.swap_limit),
            ("processes", info.pids_limit),
            ("cpu quota", info.cpu_cfs_quota),
        ];
        let mut runtimes: Vec<String> = info.runtimes.into_iter().flatten().map(|(name, _)| name).collect();
        runtimes.sort();
        Self {
            version: info.server_version.unwrap_or_else(unknown),
            cgroup: match info.cgroup_version {
                Some(SystemInfoCgroupVersionEnum::_2) => "v2",
                Some(SystemInfoCgroupVersionEnum::_1) => "v1",
                _ => "unknown",
            },
            storage: info.driver.unwrap_or_else(unknown),
            runtimes,
            missing_limits: limits.into_iter().filter(|(_, held)| *held == Some(false)).map(|(name, _)| name).collect(),
            filters_calls,
            user_namespace,
            memory_bytes: info.mem_total,
            directory: info.docker_root_dir.unwrap_or_default(),
        }
    }
}

impl Docker {
    /// Runs a command as the agent's user and returns its exit code and its stdout and stderr together.
    pub async fn run_inside(
        &self,
        name: &str,
        command: &[&str],
        deadline: Duration,
    ) -> Result<(i64, String), SandboxError> {
        let options = CreateExecOptions {
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            cmd: Some(command.iter().map(|&word| word.to_owned()).collect()),
            ..CreateExecOptions::default()
        };
        let client = &self.engine.client;
        let exec = match call(QUICK, client.create_exec(name, options)).await {
            Ok(exec) => exec,
            Err(fault) if fault.code() == Some(404) => return Err(gone(INSIDE, name)),
            Err(fault) => return Err(fault.during(INSIDE)),
        };
        let output = tokio::time::timeout(deadline, self.output_of(&exec.id)).await;
        let output = output.unwrap_or(Err(Fault::Late(deadline))).map_err(|fault| fault.during(INSIDE))?;
        let done = call(QUICK, client.inspect_exec(&exec.id)).await.map_err(|fault| fault.during(INSIDE))?;
        Ok((done.exit_code.unwrap_or(-1), output))
    }

    async fn output_of(&self, exec: &str) -> Result<String, Fault> {
        let options = StartExecOptions { detach: false, tty: false, output_capacity: None };
        let started = call(QUICK, self.engine.client.start_exec(exec, Some(options))).await?;
        let StartExecResults::Attached { mut output, .. } = started else { return Ok(String::new()) };
        let mut bytes = Vec::new();
        while let Some(item) = output.next().await {
            let (LogOutput::StdOut { message } | LogOutput::StdErr { message } | LogOutput::Console { message }) =
                item?
            else {
                continue;
            };
            bytes.extend_from_slice(&message[..message.len().min(MOST_OUTPUT - bytes.len())]);
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Everything the engine recorded of a computer.
    pub async fn recorded(&self, name: &str) -> Result<Option<ContainerInspectResponse>, SandboxError> {
        inspect(self, name).await
    }

    /// What the engine says of itself.
    pub async fn engine_facts(&self) -> Result<EngineFacts, SandboxError> {
        call(QUICK, self.engine.client.info()).await.map(EngineFacts::from).map_err(|fault| fault.during("info"))
    }
}
