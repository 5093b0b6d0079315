//! `holdfast-runtime connect`: a worker's way in. Bridges its own stdin and stdout to PID 1's socket and ends when
//! either side ends.
//!
//! Run as uid 0 inside the computer, out of the agent's reach. It keeps no state: what is in flight when it dies dies
//! with the connection, and the worker repeats its call on the next one.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_peercred;

use crate::{harden, sync};

const BUFFER: usize = 64 << 10;
/// A container that was just started listens within this time.
const PATIENCE: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(10);

/// Bridges until either side ends. `args` is empty, or `--socket NAME` in tests.
pub fn run(args: &[String]) -> Result<(), String> {
    harden::not_dumpable().map_err(|error| format!("connect cannot hide from the agent: {error}"))?;
    let stream = match args {
        [] => {
            let stream = dial(holdfast_protocol::RUNTIME_SOCKET)?;
            let peer = socket_peercred(&stream).map_err(|error| format!("the socket names no peer: {error}"))?;
            if peer.pid.as_raw_nonzero().get() != 1 {
                return Err("the socket of the runtime does not belong to PID 1".to_owned());
            }
            stream
        }
        [option, name] if option == "--socket" => dial(name)?,
        _ => return Err("usage: holdfast-runtime connect [--socket NAME]".to_owned()),
    };
    bridge(stream).map_err(|error| format!("the connection to the runtime broke: {error}"))
}

fn dial(name: &str) -> Result<UnixStream, String> {
    let address = SocketAddr::from_abstract_name(name).map_err(|error| format!("`{name}` is no socket: {error}"))?;
    let started = Instant::now();
    loop {
        match UnixStream::connect_addr(&address) {
            Ok(stream) => return Ok(stream),
            Err(error) if started.elapsed() >= PATIENCE => {
                return Err(format!("no runtime listens in this computer (socket `{name}`): {error}"));
            }
            Err(_) => std::thread::sleep(RETRY),
        }
    }
}

/// The end of stdin is passed on and the last answers still come out; the end of the socket ends everything.
fn bridge(stream: UnixStream) -> io::Result<()> {
    let inward = stream.try_clone()?;
    sync::spawn("inward", move || {
        let _ = pump(io::stdin().lock(), &inward);
        let _ = inward.shutdown(Shutdown::Write);
    })?;
    pump(&stream, io::stdout().lock())
}

fn pump(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => {
                to.write_all(&buffer[..n])?;
                to.flush()?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
