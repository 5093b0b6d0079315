//! What can go wrong between us and RabbitMQ, each in one line that says where (never with the password) and what to do.
//!
//! Nothing is written here; a crash loses nothing.

use std::time::Duration;

use lapin::ErrorKind;

type Source = Box<dyn std::error::Error + Send + Sync>;

pub type Result<T, E = QueueError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    #[error("the broker URL is not an AMQP URL: {0} (write amqp://user:password@host:5672/%2f)")]
    Url(String),
    #[error("`{0}` cannot be a queue name (1 to 200 of a-z, A-Z, 0-9, `.`, `_`, `-`; `dead` is taken)")]
    Name(String),
    #[error("cannot reach RabbitMQ at {at} ({hint})")]
    Unreachable {
        at: String,
        hint: &'static str,
        #[source]
        source: Source,
    },
    #[error("RabbitMQ at {at} did not answer {what} within {}s (is it overloaded, or the network cut?)", after.as_secs())]
    Deadline { at: String, what: &'static str, after: Duration },
    #[error("RabbitMQ at {at} takes no messages: it is in memory or disk alarm (see `rabbitmqctl status`)")]
    Blocked { at: String },
    #[error(
        "queue `{queue}` exists on RabbitMQ at {at} with another `{argument}`: {old} there, {new} here \
         (delete the queue once it is empty, or remove the broker policy that sets it)"
    )]
    Mismatch { at: String, queue: String, argument: String, old: String, new: String },
    #[error("RabbitMQ at {at} refuses {what}: {why}")]
    Refused { at: String, what: &'static str, why: String },
    #[error("RabbitMQ at {at} answered a message with a negative confirm; it was not stored")]
    Nacked { at: String },
    #[error("the connection to RabbitMQ at {at} was lost during {what}")]
    Lost {
        at: String,
        what: &'static str,
        #[source]
        source: Source,
    },
    /// The connection failed a moment ago and is not tried again yet; says the same as that failure did.
    #[error("RabbitMQ at {at} is not tried again yet: {why}")]
    Waiting { at: String, why: String },
    #[error("the broker epoch of queue `{queue}` could not be moved before making the queue")]
    Epoch {
        queue: String,
        #[source]
        source: Source,
    },
}

impl QueueError {
    /// True when the broker answered and would answer the same again: retrying soon is of no use.
    pub fn is_permanent(&self) -> bool {
        matches!(self, Self::Url(_) | Self::Name(_) | Self::Mismatch { .. } | Self::Refused { .. })
    }

    /// True when the connection can no longer be used.
    pub(crate) fn ends_connection(&self) -> bool {
        matches!(self, Self::Lost { .. } | Self::Deadline { .. } | Self::Unreachable { .. })
    }

    /// The whole chain in one line, for a log or for readiness.
    pub fn one_line(&self) -> String {
        let mut line = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            let text = error.to_string();
            if !line.contains(&text) {
                line = format!("{line}: {text}");
            }
            cause = error.source();
        }
        line.replace('\n', " ")
    }

    /// What lapin said while we did `what` on an open connection.
    pub(crate) fn of(at: &str, what: &'static str, error: lapin::Error) -> Self {
        match error.kind() {
            ErrorKind::ProtocolError(amqp) if error.is_amqp_soft_error() => {
                Self::Refused { at: at.to_owned(), what, why: amqp.get_message().to_string() }
            }
            _ => Self::Lost { at: at.to_owned(), what, source: Box::new(error) },
        }
    }

    /// What lapin said while we connected.
    pub(crate) fn connecting(at: &str, error: lapin::Error) -> Self {
        let text = error.to_string();
        let hint = match error.kind() {
            ErrorKind::ProtocolError(_) if text.contains("ACCESS_REFUSED") => "check user and password in AMQP_URL",
            ErrorKind::ProtocolError(_) if text.contains("vhost") => {
                "check the virtual host in AMQP_URL; `/%2f` is the default one"
            }
            ErrorKind::IOError(io) if io.kind() == std::io::ErrorKind::ConnectionRefused => {
                "nothing listens there: start RabbitMQ, or correct host and port in AMQP_URL"
            }
            ErrorKind::IOError(io) if io.kind() == std::io::ErrorKind::TimedOut => {
                "no answer: check host and port in AMQP_URL, and the firewall"
            }
            _ => "check that it runs and that AMQP_URL is right",
        };
        Self::Unreachable { at: at.to_owned(), hint, source: Box::new(error) }
    }
}
