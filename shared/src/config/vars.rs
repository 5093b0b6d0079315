//! Every environment variable that Holdfast reads, once: its name, its key in the file of HOLDFAST_CONFIG, its default
//! and what it means. Constant data.

/// A variable.
#[derive(Clone, Copy, Debug)]
pub struct Var {
    pub name: &'static str,
    /// In the file, and as a flag (`--database-url`).
    pub key: &'static str,
    pub default: Option<&'static str>,
    /// True where the value is a whole number.
    pub number: bool,
    pub meaning: &'static str,
}

/// Path of the TOML file with the same settings; read before the others, so it is not one of them.
pub const CONFIG: &str = "HOLDFAST_CONFIG";

pub const VARS: &[Var] = &[
    text(
        "DATABASE_URL",
        "database_url",
        Some("postgres://postgres@127.0.0.1:5432/holdfast"),
        "the PostgreSQL database",
    ),
    text("AMQP_URL", "amqp_url", Some("amqp://guest:guest@127.0.0.1:5672/%2f"), "the RabbitMQ broker"),
    text(
        "DOCKER_HOST",
        "docker_host",
        None,
        "the Docker Engine: unix:///path or tcp://host:port; unset: the default socket",
    ),
    text("HOLDFAST_NAMESPACE", "namespace", Some("default"), "the tenant that the command works in"),
    text("HOLDFAST_QUEUE", "queue", Some("default"), "the queue that a worker serves and a submission goes to"),
    number(
        "HOLDFAST_PARKED",
        "parked",
        Some("32"),
        "computers that wait parked on one engine for their session's next turn, at most",
    ),
    number(
        "HOLDFAST_EVENT_DAYS",
        "event_days",
        Some("0"),
        "days after which the events of runs are dropped, by the day they were stored; 0 keeps them",
    ),
    number("HOLDFAST_SLOTS", "slots", Some("2"), "turns that one worker runs at a time"),
    text(
        "HOLDFAST_METRICS_ADDR",
        "metrics_addr",
        Some("127.0.0.1:9464"),
        "where a worker serves /metrics, /livez and /readyz",
    ),
    text("HOLDFAST_LEASE_TTL", "lease_ttl", Some("60s"), "how long a lease lives without a heartbeat"),
    text("HOLDFAST_ISOLATED_SUBNET", "isolated_subnet", Some("172.30.0.0/22"), "the subnet of the network `isolated`"),
    text(
        "HOLDFAST_RUNTIME",
        "runtime",
        None,
        "path of the runtime binary that goes into the image; unset: beside the worker",
    ),
    text(
        "HOLDFAST_CACHE_DIR",
        "cache_dir",
        None,
        "where downloads for the image are kept; unset: the user's cache directory",
    ),
    text(
        "HOLDFAST_STORE",
        "store",
        Some("postgres"),
        "where checkpoints lie: postgres, or s3://bucket/prefix?endpoint=URL&region=NAME",
    ),
    text(
        "HOLDFAST_STORE_KEYS",
        "store_keys",
        Some(""),
        "keys that seal checkpoints at rest, NAME:64 hex digits, the first one seals; unset: not sealed",
    ),
    text("HOLDFAST_STORE_KEYS_FILE", "store_keys_file", None, "a file with such keys, one a line, instead"),
    number(
        "HOLDFAST_KEEP_LAST",
        "keep_last",
        Some("50"),
        "checkpoints kept of each session whose agent does not say; 0 keeps all",
    ),
    text(
        "HOLDFAST_GIT_PROTOCOLS",
        "git_protocols",
        Some("https,ssh"),
        "how a worker may fetch repositories: some of https, ssh, http, file",
    ),
    text(
        "HOLDFAST_GIT_CREDENTIALS",
        "git_credentials",
        None,
        "the directory of the files that `credentials.file` of a repository names",
    ),
    number(
        "HOLDFAST_DATABASE_CONNECTIONS",
        "database_connections",
        Some("10"),
        "most database connections of one process",
    ),
];

const fn text(name: &'static str, key: &'static str, default: Option<&'static str>, meaning: &'static str) -> Var {
    Var { name, key, default, number: false, meaning }
}

const fn number(name: &'static str, key: &'static str, default: Option<&'static str>, meaning: &'static str) -> Var {
    Var { name, key, default, number: true, meaning }
}
