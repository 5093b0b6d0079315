//! Programs of this machine that a build needs, each with a deadline and its last words kept for the error.
//!
//! A program is told to end when the build is dropped or when this process dies.

use std::collections::VecDeque;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, future, stream};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio_util::io::ReaderStream;

use super::error::ImageError;
use crate::sandbox::docker::TarStream;

const LAST_WORDS: usize = 6;

/// Runs a program to its end; each line it says goes to `line`.
pub(super) async fn run(
    step: &'static str,
    mut command: Command,
    deadline: Duration,
    line: &(dyn Fn(&str) + Send + Sync),
) -> Result<(), ImageError> {
    let program = command.as_std().get_program().to_string_lossy().into_owned();
    prepare(&mut command).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(ImageError::io(step, format!("{program} cannot be run")))?;
    let said = lines(child.stdout.take(), child.stderr.take());
    let talk = async {
        let mut last = VecDeque::new();
        let mut said = std::pin::pin!(said);
        while let Some(text) = said.next().await {
            line(&text);
            last.push_back(text);
            if last.len() > LAST_WORDS {
                last.pop_front();
            }
        }
        (child.wait().await, last)
    };
    let Ok((status, last)) = tokio::time::timeout(deadline, talk).await else {
        return Err(ImageError::Late { step, program, after: deadline });
    };
    let status = status.map_err(ImageError::io(step, format!("{program} cannot be waited for")))?;
    match status.success() {
        true => Ok(()),
        false => {
            let last = Vec::from(last).join(" | ");
            Err(ImageError::Failed { step, program, status: status.to_string(), last })
        }
    }
}

/// What a program writes to its stdout, which is an error unless the program succeeds.
pub(super) fn output(mut command: Command) -> io::Result<TarStream> {
    prepare(&mut command).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = command.spawn()?;
    let stdout = child.stdout.take().expect("its stdout is a pipe");
    let bytes = ReaderStream::with_capacity(stdout, 256 << 10);
    let verdict = stream::once(async move { success(child).await });
    Ok(bytes.chain(verdict.try_filter(|_| future::ready(false))).boxed())
}

/// True if a program of that name can be found.
pub(super) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // The place of administrators' programs is not on everybody's path.
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    places.map(|place| place.join(program)).any(|file| file.is_file())
}

async fn success(mut child: Child) -> io::Result<Bytes> {
    let status: ExitStatus = child.wait().await?;
    match status.success() {
        true => Ok(Bytes::new()),
        false => Err(io::Error::other(format!("the program ended with {status}"))),
    }
}

fn prepare(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).kill_on_drop(true);
    // SAFETY: prctl is async-signal-safe and touches only the child.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            Ok(())
        })
    }
}

fn lines<A, B>(a: Option<A>, b: Option<B>) -> impl futures_util::Stream<Item = String>
where
    A: AsyncRead + Unpin,
    B: AsyncRead + Unpin,
{
    stream::select(lines_of(a), lines_of(b))
}

fn lines_of<R: AsyncRead + Unpin>(reader: Option<R>) -> impl futures_util::Stream<Item = String> {
    let lines = reader.map(|reader| BufReader::new(reader).lines());
    stream::unfold(lines, async |lines| {
        let mut lines = lines?;
        let line = lines.next_line().await.ok().flatten()?;
        Some((line, Some(lines)))
    })
}
