//! The one way to the Docker Engine: where it is, which version it speaks, a deadline on every call. The client keeps idle
//! tcp connections; on a unix socket it connects for every call, which costs less than the call.
//!
//! Nothing is written here. A process that dies in the middle of a call leaves what the engine made of it: the engine
//! finishes a create or a start whose caller is gone, and names and labels lead back to it.

use std::future::Future;
use std::time::{Duration, Instant};

use bollard::errors::Error;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::sandbox::SandboxError;

/// Deadline of calls that only read or switch something.
pub(super) const QUICK: Duration = Duration::from_secs(10);
/// Deadline of create, start and remove.
pub(super) const SLOW: Duration = Duration::from_secs(30);

const DEFAULT_HOST: &str = "unix:///var/run/docker.sock";
/// bollard's own limit counts from the request to the response's header, builds and waits included; deadlines are ours.
const NO_LIMIT: Duration = Duration::from_secs(30 * 24 * 3600);
/// The first version with everything the lockdown asks for.
const OLDEST_API: (usize, usize) = (1, 41);

/// A connected engine. Cloning shares the connection.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(super) client: bollard::Docker,
    address: String,
    id: String,
    clock: (OffsetDateTime, Instant),
}

impl Engine {
    /// Connects to the engine of `DOCKER_HOST` (`unix://` or `tcp://`), or to the default socket.
    pub async fn connect() -> Result<Self, SandboxError> {
        let address =
            std::env::var("DOCKER_HOST").ok().filter(|host| !host.is_empty()).unwrap_or(DEFAULT_HOST.to_owned());
        Self::connect_to(&address).await
    }

    /// Connects to the engine at an address.
    pub async fn connect_to(address: &str) -> Result<Self, SandboxError> {
        if !["unix://", "tcp://", "http://"].iter().any(|scheme| address.starts_with(scheme)) {
            return Err(SandboxError::Unsatisfiable(format!(
                "DOCKER_HOST `{address}` is not supported: use unix:///path/to/docker.sock or tcp://host:port"
            )));
        }
        let client = bollard::Docker::connect_with_host(address).map_err(|error| down(address, error.into()))?;
        let client = call(QUICK, client.with_timeout(NO_LIMIT).negotiate_version())
            .await
            .map_err(|fault| down(address, fault))?;
        let version = client.client_version();
        if (version.major_version, version.minor_version) < OLDEST_API {
            return Err(SandboxError::Unsatisfiable(format!(
                "the Docker engine at {address} speaks API {version}, older than {}.{}: update it",
                OLDEST_API.0, OLDEST_API.1
            )));
        }
        let info = call(QUICK, client.info()).await.map_err(|fault| down(address, fault))?;
        let id = info.id.filter(|id| !id.is_empty()).ok_or_else(|| {
            SandboxError::Unsatisfiable(format!("the Docker engine at {address} does not tell its id"))
        })?;
        let now = info.system_time.as_deref().and_then(instant_of).unwrap_or_else(OffsetDateTime::now_utc);
        Ok(Self { client, address: address.to_owned(), id, clock: (now, Instant::now()) })
    }

    /// The engine's own id; it survives a change of the host's name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Where the engine was found.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Seconds since an instant of the engine, by the engine's clock as of the connect.
    pub(super) fn age_of(&self, created: OffsetDateTime) -> u64 {
        let now = self.clock.0 + self.clock.1.elapsed();
        (now - created).whole_seconds().try_into().unwrap_or(0)
    }
}

/// Why the engine did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// The engine answered no.
    #[error("the engine answered {code}: {message}")]
    Answer { code: u16, message: String },
    #[error("the engine did not answer within {0:?}")]
    Late(Duration),
    #[error("the exchange with the engine broke")]
    Broken(#[source] Error),
}

impl Fault {
    /// The status of an answer.
    pub(super) fn code(&self) -> Option<u16> {
        match self {
            Fault::Answer { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// The engine's own words, or ours.
    pub(super) fn text(&self) -> String {
        match self {
            Fault::Answer { message, .. } => message.trim().replace('\n', " "),
            Fault::Late(_) => self.to_string(),
            Fault::Broken(source) => source.to_string(),
        }
    }

    pub(super) fn during(self, operation: &'static str) -> SandboxError {
        SandboxError::Unavailable { operation, source: self.into() }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        match error {
            Error::DockerResponseServerError { status_code, message } => Fault::Answer { code: status_code, message },
            Error::DockerStreamError { error } => Fault::Answer { code: 500, message: error },
            other => Fault::Broken(other),
        }
    }
}

/// Runs one call with a deadline.
pub(super) async fn call<T>(deadline: Duration, exchange: impl Future<Output = Result<T, Error>>) -> Result<T, Fault> {
    match tokio::time::timeout(deadline, exchange).await {
        Ok(result) => result.map_err(Fault::from),
        Err(_) => Err(Fault::Late(deadline)),
    }
}

/// An RFC 3339 instant as the engine writes it.
pub(super) fn instant_of(text: &str) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(text, &Rfc3339).ok()
}

fn down(address: &str, fault: Fault) -> SandboxError {
    let text = match &fault {
        Fault::Broken(error) => innermost(error),
        other => other.text(),
    };
    let advice = match text.contains("ermission denied") {
        true => "let this user use it (group `docker`)",
        false => "start Docker there, or set DOCKER_HOST",
    };
    let source = anyhow::anyhow!("no Docker engine answers at {address} ({text}): {advice}");
    SandboxError::Unavailable { operation: "connect", source }
}

/// The last cause says what the system said; the ones before it only say that a request failed.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
