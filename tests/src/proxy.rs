//! A TCP proxy that breaks on command, between us and a broker or a database: cut connections, refuse new ones, or
//! swallow bytes in silence, in one direction or both.
//!
//! In-process and owned by one test; dropping it cuts everything. It changes nothing but the bytes it carries.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// Which bytes are swallowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Half {
    ToServer,
    ToClient,
    Both,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Flow,
    /// Connections stay open and are taken, but bytes vanish.
    Silent(Half),
    /// Nothing is connected, and new connections are closed at once.
    Cut,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct State {
    mode: Mode,
    /// Connections of an earlier age are closed.
    age: u64,
}

pub struct Proxy {
    address: SocketAddr,
    state: watch::Sender<State>,
    open: Arc<AtomicUsize>,
    _accept: AbortOnDropHandle<()>,
}

impl Proxy {
    /// Listens on a free port of this machine and carries bytes to `target` (`host:port`).
    pub async fn start(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let state = watch::Sender::new(State { mode: Mode::Flow, age: 0 });
        let open = Arc::new(AtomicUsize::new(0));
        let accept = tokio::spawn(accept(listener, target.to_owned(), state.clone(), open.clone()));
        Self { address, state, open, _accept: AbortOnDropHandle::new(accept) }
    }

    /// `url` with its host and port replaced by the proxy's.
    pub async fn before(url: &str) -> (Self, String) {
        let (head, rest) = url.split_once("://").expect("a URL has a scheme");
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, target) = authority.rsplit_once('@').map_or(("", authority), |(user, target)| (user, target));
        let at = if user.is_empty() { "" } else { "@" };
        let proxy = Self::start(target).await;
        let url = format!("{head}://{user}{at}{}/{path}", proxy.address);
        (proxy, url)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes all connections; the next one goes through again.
    pub fn drop_connections(&self) {
        self.state.send_modify(|state| state.age += 1);
    }

    /// Closes all connections and refuses new ones until `heal`.
    pub fn cut(&self) {
        self.state.send_modify(|state| *state = State { mode: Mode::Cut, age: state.age + 1 });
    }

    /// Swallows bytes until `heal`.
    pub fn silence(&self, half: Half) {
        self.state.send_modify(|state| state.mode = Mode::Silent(half));
    }

    /// Carries bytes again. Connections that may have lost some are closed.
    pub fn heal(&self) {
        self.state.send_modify(|state| {
            if state.mode != Mode::Flow {
                *state = State { mode: Mode::Flow, age: state.age + 1 };
            }
        });
    }

    /// Connections that clients hold open.
    pub fn connections(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// Waits until clients hold `count` connections.
    pub async fn until_connections(&self, count: usize, limit: Duration) {
        let reached = async {
            while self.connections() != count {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let result = tokio::time::timeout(limit, reached).await;
        assert!(result.is_ok(), "{} connections after {limit:?}, not {count}", self.connections());
    }
}

async fn accept(listener: TcpListener, target: String, state: watch::Sender<State>, open: Arc<AtomicUsize>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        let now = *state.borrow();
        if now.mode == Mode::Cut {
            continue;
        }
        let (target, state, open) = (target.clone(), state.subscribe(), open.clone());
        connections.spawn(async move {
            open.fetch_add(1, Ordering::SeqCst);
            let _ = carry(client, &target, state, now.age).await;
            open.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

/// Until either side closes, or the connection has outlived its age.
async fn carry(client: TcpStream, target: &str, mut state: watch::Receiver<State>, age: u64) -> std::io::Result<()> {
    let server = TcpStream::connect(target).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        result = pump(from_client, to_server, state.clone(), Half::ToServer) => result,
        result = pump(from_server, to_client, state.clone(), Half::ToClient) => result,
        _ = state.wait_for(|state| state.age != age) => Ok(()),
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    state: watch::Receiver<State>,
    half: Half,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        let swallowed = matches!(state.borrow().mode, Mode::Silent(which) if which == half || which == Half::Both);
        if !swallowed {
            to.write_all(&buffer[..count]).await?;
        }
    }
}
