//! One broker address and one connection to it. Every wait has a deadline, and a connection that is dropped takes its
//! socket and its I/O thread with it.
//!
//! `lapin` waits for the broker's half of the handshake without limit, on a thread of its own, and would keep that
//! thread for every try against a peer that accepts and says nothing. So we keep a second handle on the socket and
//! shut it down. Nothing is written here; a crash loses nothing.

use std::fmt;
use std::future::Future;
use std::io::ErrorKind;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lapin::tcp::OwnedTLSConfig;
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{AsyncTcpStream, Channel, Connection, ConnectionProperties};

use super::error::{QueueError, Result};

/// Interval both sides agree on; a peer that is silent for two of them is gone.
const HEARTBEAT_SECONDS: u16 = 10;
/// TCP, TLS and AMQP handshake together.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// TCP and TLS alone, so that a host that does not answer is told from a broker that does not.
const TCP_DEADLINE: Duration = Duration::from_secs(4);
/// Any other single request.
pub(crate) const CALL_DEADLINE: Duration = Duration::from_secs(5);
const CLOSE_DEADLINE: Duration = Duration::from_secs(1);

/// Where the broker is.
#[derive(Clone)]
pub struct Broker {
    uri: AMQPUri,
    at: String,
}

impl Broker {
    /// From `amqp://user:password@host:5672/vhost` (or `amqps://`). Heartbeats are 10 s unless the URL says `?heartbeat=`.
    pub fn parse(url: &str) -> Result<Self> {
        let mut uri: AMQPUri = url.parse().map_err(|why: String| {
            // The parser may quote the whole URL, and with it the password.
            QueueError::Url(if why.contains(url) { "it has no host".to_owned() } else { why })
        })?;
        if let Some(literal) = ipv6_literal(url) {
            // The parser takes an IPv6 literal for no host at all, which would mean localhost.
            uri.authority.host = literal.to_owned();
        }
        uri.query.heartbeat.get_or_insert(HEARTBEAT_SECONDS);
        let vhost = if uri.vhost == "/" { "%2f" } else { uri.vhost.as_str() };
        let at = format!("{}:{}/{vhost}", uri.authority.host, uri.authority.port);
        Ok(Self { uri, at })
    }

    /// Host, port and virtual host; no user, no password.
    pub fn address(&self) -> &str {
        &self.at
    }

    /// A new connection, known to the broker's operator by `name`.
    pub(crate) async fn open(&self, name: &str) -> Result<Link> {
        let runtime = lapin::runtime::default_runtime().map_err(|error| QueueError::connecting(&self.at, error))?;
        let socket = Socket::default();
        let kept = socket.clone();
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        // Written where it is used: only there the compiler knows lapin's stream type.
        let opening = Connection::connector(
            self.uri.clone(),
            runtime,
            async move |uri: AMQPUri, runtime| {
                let address = (uri.authority.host.as_str(), uri.authority.port);
                let dial = async {
                    let mut last = std::io::Error::new(ErrorKind::NotFound, "the host name has no address");
                    for address in tokio::net::lookup_host(address).await? {
                        match AsyncTcpStream::connect(&runtime, address).await {
                            Ok(stream) => return Ok(stream),
                            Err(error) => last = error,
                        }
                    }
                    Err(last)
                };
                // Also within lapin's own thread: a dial that nobody waits for must not wait for the kernel's limit.
                let stream =
                    tokio::time::timeout(TCP_DEADLINE, dial).await.unwrap_or(Err(ErrorKind::TimedOut.into()))?;
                if let AsyncTcpStream::Plain(tcp) = &stream {
                    kept.keep(tcp.get_ref());
                }
                match uri.scheme {
                    AMQPScheme::AMQP => Ok(stream),
                    AMQPScheme::AMQPS => {
                        let tls = OwnedTLSConfig::default();
                        Ok(stream.into_tls(&uri.authority.host, tls.as_ref()).await?)
                    }
                }
            },
            properties,
        );
        // Owned until the handshake is over: on a deadline its drop ends lapin's thread.
        let socket = CutOnDrop(socket);
        match tokio::time::timeout(CONNECT_DEADLINE, opening).await {
            Ok(Ok(connection)) => Ok(Link { connection, socket, at: self.at.clone() }),
            Ok(Err(error)) => Err(QueueError::connecting(&self.at, error)),
            Err(_) => {
                Err(QueueError::Deadline { at: self.at.clone(), what: "the connection", after: CONNECT_DEADLINE })
            }
        }
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Broker").field(&self.at).finish()
    }
}

/// One open connection. Dropping it cuts it; what was unacknowledged goes back to the broker.
#[derive(Debug)]
pub(crate) struct Link {
    connection: Connection,
    #[allow(dead_code, reason = "held for its drop")]
    socket: CutOnDrop,
    at: String,
}

impl Link {
    pub(crate) fn at(&self) -> &str {
        &self.at
    }

    pub(crate) fn is_open(&self) -> bool {
        self.connection.status().connected()
    }

    /// The broker is in memory or disk alarm and reads nothing from us.
    pub(crate) fn is_blocked(&self) -> bool {
        self.connection.status().blocked()
    }

    pub(crate) async fn channel(&self) -> Result<Channel> {
        self.call("opening a channel", self.connection.create_channel()).await
    }

    /// One request with its deadline.
    pub(crate) async fn call<T>(
        &self,
        what: &'static str,
        request: impl Future<Output = lapin::Result<T>>,
    ) -> Result<T> {
        match tokio::time::timeout(CALL_DEADLINE, request).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(QueueError::of(&self.at, what, error)),
            Err(_) => Err(QueueError::Deadline { at: self.at.clone(), what, after: CALL_DEADLINE }),
        }
    }

    /// Says goodbye, so that the broker does not log a lost client; cuts after a second.
    pub(crate) async fn close(&self) {
        let _ = tokio::time::timeout(CLOSE_DEADLINE, self.connection.close(200, "bye".into())).await;
    }
}

/// A second handle on the socket of a connection, to end it from outside.
#[derive(Clone, Debug, Default)]
struct Socket(Arc<Mutex<Option<std::net::TcpStream>>>);

impl Socket {
    fn keep(&self, stream: &tokio::net::TcpStream) {
        if let Ok(fd) = stream.as_fd().try_clone_to_owned() {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(fd.into());
        }
    }
}

#[derive(Debug)]
struct CutOnDrop(Socket);

impl Drop for CutOnDrop {
    fn drop(&mut self) {
        if let Some(stream) = self.0.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // Bytes already handed to the kernel still go out; an error means that it is closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn ipv6_literal(url: &str) -> Option<&str> {
    let authority = url.split_once("://")?.1.split(['/', '?']).next()?;
    let host = authority.rsplit('@').next()?;
    host.strip_prefix('[')?.split_once(']').map(|(literal, _)| literal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(url: &str) -> String {
        Broker::parse(url).map_or_else(|error| error.to_string(), |broker| broker.address().to_owned())
    }

    #[test]
    fn addresses_never_show_the_password() {
        insta::assert_debug_snapshot!([
            address("amqp://user:secret@broker:5673/%2f"),
            address("amqps://user:secret@broker/team"),
            address("amqp://user:secret@[::1]:5672/%2f"),
            address("amqp:user:secret"),
            address("http://user:secret@broker"),
            address("not a url with secret"),
            format!("{:?}", Broker::parse("amqp://user:secret@broker:5673/%2f")),
        ], @r#"
        [
            "broker:5673/%2f",
            "broker:5671/team",
            "::1:5672/%2f",
            "the broker URL is not an AMQP URL: it has no host (write amqp://user:password@host:5672/%2f)",
            "the broker URL is not an AMQP URL: Invalid AMQP scheme: http (write amqp://user:password@host:5672/%2f)",
            "the broker URL is not an AMQP URL: relative URL without a base (write amqp://user:password@host:5672/%2f)",
            "Ok(Broker(\"broker:5673/%2f\"))",
        ]
        "#);
    }
}
