//! The only SQL. One file per concern; each says which rows it may write and what a crash in the middle leaves.
//!
//! READ COMMITTED throughout; every transaction is short and none is open across a call to anything but Postgres.

pub mod batches;
pub mod budget;
pub mod catalog;
pub mod checkpoints;
pub mod claim;
pub mod computers;
pub mod end;
pub mod event_days;
pub mod events;
pub mod fleet;
pub mod fork;
pub mod gc;
pub mod health;
pub mod inputs;
pub mod lease;
pub mod outbox;
pub mod reach;
pub mod redrive;
pub mod runs;
pub mod salvage;
pub mod scheduling;
pub mod stage;
pub mod submit;
pub mod sweep;
pub mod views;
pub mod workers;

use std::str::FromStr;
use std::time::Duration;

use sqlx::Postgres;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};

pub mod objects;

/// Connections beside the pool; see `Db::urgent`.
const RESERVED: u32 = 2;

/// A handle on the database; cheap to clone.
#[derive(Clone, Debug)]
pub struct Db {
    pool: PgPool,
    /// For what ends a turn, when the pool has nothing free.
    reserved: PgPool,
    options: PgConnectOptions,
}

/// What can go wrong between us and Postgres.
#[derive(Debug, thiserror::Error)]
pub enum DbError {
    #[error("DATABASE_URL is not a Postgres URL: {0} (write postgres://user@host:5432/database)")]
    Url(String),
    #[error("cannot reach Postgres at {at}")]
    Unreachable {
        at: String,
        #[source]
        source: sqlx::Error,
    },
    #[error("cannot bring the schema up to date")]
    Migrate(#[source] sqlx::migrate::MigrateError),
    /// A fenced write touched no row: a higher fence was granted. Close the channel and write nothing.
    #[error("the lease is lost: a higher fence was granted")]
    LeaseLost,
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Sql(#[from] sqlx::Error),
}

impl DbError {
    /// True when the same call may succeed later: connection loss, restart, lock timeout, serialization, read-only server.
    pub fn is_transient(&self) -> bool {
        match self {
            DbError::Unreachable { .. } => true,
            DbError::Sql(error) => match error {
                sqlx::Error::Io(_)
                | sqlx::Error::PoolTimedOut
                | sqlx::Error::PoolClosed
                | sqlx::Error::WorkerCrashed => true,
                sqlx::Error::Database(db) => db.code().is_some_and(|code| {
                    ["08", "40", "53", "55", "57"].iter().any(|class| code.starts_with(class))
                        || ["25006", "25P03", "25P04"].contains(&code.as_ref())
                }),
                sqlx::Error::Protocol(_) | sqlx::Error::Tls(_) => true,
                _ => false,
            },
            _ => false,
        }
    }
}

pub type Result<T, E = DbError> = std::result::Result<T, E>;

static MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("../migrations");

impl Db {
    /// Connects with timeouts on everything: no statement over 30 s, no lock wait over 5 s, no idle transaction over 5 s.
    pub async fn connect(url: &str, connections: u32) -> Result<Self> {
        if !(url.starts_with("postgres://") || url.starts_with("postgresql://")) {
            return Err(DbError::Url(url.split("://").next().unwrap_or_default().to_owned()));
        }
        let options = PgConnectOptions::from_str(url)
            .map_err(|e| DbError::Url(e.to_string()))?
            .application_name("holdfast")
            .options([
                ("statement_timeout", "30s"),
                ("lock_timeout", "5s"),
                ("idle_in_transaction_session_timeout", "5s"),
                ("tcp_keepalives_idle", "10"),
                ("tcp_keepalives_interval", "5"),
                ("tcp_keepalives_count", "3"),
            ]);
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .min_connections(1)
            .acquire_timeout(Duration::from_secs(10))
            .max_lifetime(Duration::from_secs(1800))
            .test_before_acquire(false)
            .connect_with(options.clone())
            .await
            .map_err(|source| DbError::Unreachable { at: address(&options), source })?;
        let reserved = PgPoolOptions::new()
            .max_connections(RESERVED)
            .acquire_timeout(Duration::from_secs(10))
            .idle_timeout(Duration::from_secs(60))
            .test_before_acquire(false)
            .connect_lazy_with(options.clone());
        Ok(Self { pool, reserved, options })
    }

    /// Brings the schema up to date; several processes may do so at once.
    pub async fn migrate(&self) -> Result<()> {
        // Without the limits of ordinary statements: building an index, or waiting for who builds it, may take long.
        let unlimited =
            [("statement_timeout", "0"), ("lock_timeout", "0"), ("idle_in_transaction_session_timeout", "0")];
        let options = self.options.clone().options(unlimited);
        let pool = PgPoolOptions::new().max_connections(1).connect_with(options).await?;
        MIGRATIONS.run(&pool).await.map_err(DbError::Migrate)?;
        pool.close().await;
        Ok(())
    }

    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// A connection for stage and commit: however many claims, events and transfers wait for the pool, turns end.
    async fn urgent(&self) -> Result<PoolConnection<Postgres>> {
        if let Some(free) = self.pool.try_acquire() {
            return Ok(free);
        }
        Ok(tokio::select! {
            free = self.reserved.acquire() => free?,
            free = self.pool.acquire() => free?,
        })
    }

    /// For connections that must not come from the pool (liveness, heartbeat).
    pub fn options(&self) -> &PgConnectOptions {
        &self.options
    }

    /// Where the database is, without the password.
    pub fn address(&self) -> String {
        address(&self.options)
    }
}

/// The error of a statement that nobody answered.
pub fn unanswered() -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, "the database did not answer"))
}

fn address(options: &PgConnectOptions) -> String {
    let place = options.get_socket().map_or_else(
        || format!("{}:{}", options.get_host(), options.get_port()),
        |socket| format!("{}:{}", socket.display(), options.get_port()),
    );
    format!("{place}/{}", options.get_database().unwrap_or_else(|| options.get_username()))
}
