//! PID 1's side of the frames: one listener, a thread for each connection, one connection admitted.
//!
//! Only uid 0 may connect, which the agent cannot become. A connection owns nothing: when it dies, its partial frame
//! dies with it, and the run, the journal and the files stay.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;

use crate::computer::Computer;
use crate::evidence;
use crate::harden;
use crate::process::mappings::Mappings;
use crate::process::reaper::Reaper;
use crate::settings::{Admit, Settings};
use crate::sync;
use admission::Admission;
use connection::Connection;

mod admission;
mod calls;
mod connection;

/// After an `accept` that failed for lack of something.
const PAUSE: Duration = Duration::from_millis(50);

struct Server {
    computer: Computer,
    admission: Admission,
}

/// Listens for ever; an error means that it could not begin.
pub fn run(settings: Settings) -> Result<(), String> {
    harden::become_init().map_err(|error| format!("PID 1 cannot be made safe: {error}"))?;
    let name = &settings.socket;
    let listener = SocketAddr::from_abstract_name(name)
        .and_then(|address| UnixListener::bind_addr(&address))
        .map_err(|error| format!("the socket `{name}` cannot be had: {error}"))?;
    let reaper = Arc::new(Reaper::default());
    let reaping = Arc::clone(&reaper);
    sync::thread("reaper", move || reaping.run()).map_err(|error| format!("no thread for the reaper: {error}"))?;
    let mappings = Mappings::start().map_err(|error| format!("nobody would hear of mappings: {error}"))?;
    sync::start_pool(evidence::task_limit());
    let admit = settings.admit;
    let server =
        Arc::new(Server { computer: Computer::new(settings, reaper, mappings), admission: Admission::default() });
    accept(&listener, &server, admit)
}

fn accept(listener: &UnixListener, server: &Arc<Server>, admit: Admit) -> ! {
    let ids = AtomicU64::new(1);
    loop {
        match listener.accept() {
            Ok((stream, _)) if may_speak(&stream, admit) => {
                let (id, server) = (ids.fetch_add(1, Ordering::Relaxed), Arc::clone(server));
                // Without a thread the connection is closed, and the worker tries again.
                let _ = sync::spawn("connection", move || Connection::serve(id, stream, &server));
            }
            Ok(_) => {}
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

fn may_speak(stream: &UnixStream, admit: Admit) -> bool {
    let Ok(peer) = socket_peercred(stream) else { return false };
    peer.uid.is_root() || (admit == Admit::OwnUid && peer.uid == rustix::process::geteuid())
}
