//! A byte stream to PID 1: an exec of the runtime's own bridge, as a user the agent cannot become.
//!
//! Nothing here times out once the stream is open, however long it is silent; how a computer ends is told by `wait`. A
//! worker that dies closes its end, and the bridge ends with it.

use std::io;

use bollard::container::LogOutput;
use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
use bytes::Bytes;
use futures_util::{StreamExt, future};
use holdfast_protocol::RUNTIME_PATH;
use tokio_util::io::StreamReader;

use super::Docker;
use super::ending::gone;
use super::engine::{Fault, QUICK, call};
use super::ensure::inspect;
use crate::sandbox::{ByteStream, SandboxError};

const OPEN: &str = "open";
const BUFFER: usize = 64 << 10;

pub(super) async fn open(docker: &Docker, name: &str) -> Result<ByteStream, SandboxError> {
    match connect(docker, name).await {
        Ok(stream) => Ok(stream),
        Err(fault) => match inspect(docker, name).await? {
            Some(found) if found.state.as_ref().and_then(|state| state.running) == Some(true) => {
                Err(fault.during(OPEN))
            }
            _ => Err(gone(OPEN, name)),
        },
    }
}

async fn connect(docker: &Docker, name: &str) -> Result<ByteStream, Fault> {
    let bridge = CreateExecOptions {
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        tty: Some(false),
        cmd: Some(vec![RUNTIME_PATH.to_owned(), "connect".to_owned()]),
        // PID 1 takes uid 0 only; without capabilities that is all uid 0 is good for.
        user: Some("0:0".to_owned()),
        ..CreateExecOptions::default()
    };
    let client = &docker.engine.client;
    let exec = call(QUICK, client.create_exec(name, bridge)).await?;
    let options = StartExecOptions { detach: false, tty: false, output_capacity: Some(BUFFER) };
    let StartExecResults::Attached { output, input } = call(QUICK, client.start_exec(&exec.id, Some(options))).await?
    else {
        return Err(Fault::Answer { code: 500, message: "the engine detached the exec".to_owned() });
    };
    let name = name.to_owned();
    let payload = output.filter_map(move |item| future::ready(payload_of(&name, item)));
    Ok((Box::new(StreamReader::new(Box::pin(payload))), Box::new(input)))
}

/// Only what the bridge wrote to its stdout is payload.
fn payload_of(name: &str, item: Result<LogOutput, bollard::errors::Error>) -> Option<io::Result<Bytes>> {
    match item {
        Ok(LogOutput::StdOut { message }) => Some(Ok(message)),
        Ok(LogOutput::StdErr { message }) => {
            tracing::warn!(computer = name, "{}", String::from_utf8_lossy(&message).trim_end());
            None
        }
        Ok(LogOutput::StdIn { .. }) => None,
        // Without a header it is the engine itself that speaks: the bridge could not be run.
        Ok(LogOutput::Console { message }) => {
            Some(Err(io::Error::other(String::from_utf8_lossy(&message).trim_end().to_owned())))
        }
        Err(error) => Some(Err(io::Error::other(error))),
    }
}
