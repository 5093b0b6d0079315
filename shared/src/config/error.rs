//! Why the configuration cannot be used: one line that names the variable, the flag or the file. Pure.

/// A setting that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{place}: {text}")]
    Value { place: String, text: String },
    #[error("HOLDFAST_CONFIG: cannot read `{path}`: {source}")]
    File { path: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("DATABASE_URL: `{scheme}` is not supported, only Postgres is (postgres://user@host:5432/database)")]
    NotPostgres { scheme: String },
}
