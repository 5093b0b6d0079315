//! The same tree by other means, in the same minute on the same machine. A tool that is not there is said to be absent.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Instant;

use bollard::Docker;
use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
use bollard::query_parameters::{DownloadFromContainerOptionsBuilder, InspectContainerOptions};
use futures_util::StreamExt;

use crate::ms;
use crate::trees::Tree;

/// Milliseconds each; none where it could not be done.
#[derive(Default)]
pub struct Baselines {
    pub tar_inside: Option<f64>,
    pub tar_connection: Option<f64>,
    pub archive_call: Option<f64>,
    pub restic_first: Option<f64>,
    pub restic_warm: Option<f64>,
    pub restic_warm_bytes: Option<u64>,
    pub restic_restore: Option<f64>,
}

const TAR: &str = "tar -C /workspace --format=pax -cf - .";

pub async fn measure(name: &str, tree: &Tree) -> Baselines {
    let docker = Docker::connect_with_defaults().expect("the engine answers");
    let inside = format!("date +%s%N; {TAR} | cat > /dev/null; date +%s%N");
    let times: Vec<f64> =
        exec(&docker, name, &inside).await.split_whitespace().filter_map(|text| text.parse().ok()).collect();
    let tar_inside = (times.len() == 2).then(|| (times[1] - times[0]) / 1e6);
    let since = Instant::now();
    let streamed = count(&docker, name, TAR).await;
    let tar_connection = (streamed > 0).then(|| ms(since));
    let since = Instant::now();
    let options = DownloadFromContainerOptionsBuilder::default().path("/workspace").build();
    let mut archive = docker.download_from_container(name, Some(options));
    let mut whole = true;
    while let Some(part) = archive.next().await {
        whole &= part.is_ok();
    }
    let archive_call = whole.then(|| ms(since));
    let (restic_first, restic_warm, restic_warm_bytes, restic_restore) = restic(&docker, name, tree).await;
    Baselines { tar_inside, tar_connection, archive_call, restic_first, restic_warm, restic_warm_bytes, restic_restore }
}

/// Peak resident memory of the runtime, in MB.
pub async fn peak_of_pid_1(name: &str) -> f64 {
    let docker = Docker::connect_with_defaults().expect("the engine answers");
    let status = exec(&docker, name, "cat /proc/1/status").await;
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<f64>().ok()).map_or(f64::NAN, |kb| kb / 1024.0)
}

type Output = std::pin::Pin<
    Box<dyn futures_util::Stream<Item = Result<bollard::container::LogOutput, bollard::errors::Error>> + Send>,
>;

async fn start(docker: &Docker, name: &str, command: &str) -> Output {
    let options = CreateExecOptions {
        attach_stdout: Some(true),
        cmd: Some(vec!["sh", "-c", command]),
        ..CreateExecOptions::default()
    };
    let exec = docker.create_exec(name, options).await.expect("an exec");
    match docker.start_exec(&exec.id, None::<StartExecOptions>).await.expect("a start") {
        StartExecResults::Attached { output, .. } => output,
        StartExecResults::Detached => panic!("detached"),
    }
}

async fn exec(docker: &Docker, name: &str, command: &str) -> String {
    let (mut output, mut text) = (start(docker, name, command).await, String::new());
    while let Some(Ok(part)) = output.next().await {
        text.push_str(&part.to_string());
    }
    text
}

async fn count(docker: &Docker, name: &str, command: &str) -> usize {
    let (mut output, mut bytes) = (start(docker, name, command).await, 0);
    while let Some(Ok(part)) = output.next().await {
        bytes += part.into_bytes().len();
    }
    bytes
}

type Restic = (Option<f64>, Option<f64>, Option<u64>, Option<f64>);

/// restic reads the computer's workspace from the host: root only, and only where it is installed.
async fn restic(docker: &Docker, name: &str, tree: &Tree) -> Restic {
    let inspected = docker.inspect_container(name, None::<InspectContainerOptions>).await.expect("it is there");
    let Some(pid) = inspected.state.and_then(|state| state.pid) else { return (None, None, None, None) };
    let workspace = PathBuf::from(format!("/proc/{pid}/root/workspace"));
    let scratch = tempfile::tempdir().expect("a directory");
    let (repo, target) = (scratch.path().join("repo"), scratch.path().join("target"));
    let run = |args: &[&str]| {
        let mut command = std::process::Command::new("restic");
        command.args(args).env("RESTIC_PASSWORD", "bench").env("RESTIC_REPOSITORY", &repo);
        command.env("RESTIC_CACHE_DIR", scratch.path().join("cache")).current_dir(scratch.path());
        let since = Instant::now();
        let done = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        done.is_ok_and(|status| status.success()).then(|| ms(since))
    };
    if !workspace.exists() || run(&["init"]).is_none() {
        return (None, None, None, None);
    }
    let path = workspace.to_string_lossy().into_owned();
    let first = run(&["backup", &path]);
    let before = bytes_below(&repo);
    exec(docker, name, &tree.change(8)).await;
    let warm = run(&["backup", &path]);
    let grown = bytes_below(&repo).saturating_sub(before);
    let restored = run(&["restore", "latest", "--target", &target.to_string_lossy()]);
    (first, warm, Some(grown), restored)
}

fn bytes_below(dir: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| {
            let meta = entry.metadata();
            meta.map_or(0, |meta| if meta.is_dir() { bytes_below(&entry.path()) } else { meta.len() })
        })
        .sum()
}
