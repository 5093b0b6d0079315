//! A connection for a person who waits: one try with a short deadline instead of the pool's patience. Writes nothing.

use std::str::FromStr;
use std::time::Duration;

use sqlx::Connection;
use sqlx::postgres::{PgConnectOptions, PgConnection};

use super::{Db, DbError, Result, address};

const DEADLINE: Duration = Duration::from_secs(5);

impl Db {
    /// Like `connect`, but a database that does not answer within 5 seconds is `Unreachable`.
    pub async fn reach(url: &str, connections: u32) -> Result<Self> {
        if let Ok(options) = PgConnectOptions::from_str(url) {
            let late = || sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer in 5 s"));
            let tried = tokio::time::timeout(DEADLINE, PgConnection::connect_with(&options)).await;
            match tried.unwrap_or_else(|_| Err(late())) {
                Ok(connection) => drop(connection.close().await),
                Err(source) => return Err(DbError::Unreachable { at: address(&options), source }),
            }
        }
        Self::connect(url, connections).await
    }

    /// True once `migrate` has run at least once.
    pub async fn is_migrated(&self) -> Result<bool> {
        let (there,): (bool,) =
            sqlx::query_as("select to_regclass('turns') is not null").fetch_one(self.pool()).await?;
        Ok(there)
    }
}

impl DbError {
    /// The server's five-character code, where the server said it.
    pub fn sql_state(&self) -> Option<String> {
        match self {
            DbError::Sql(sqlx::Error::Database(error))
            | DbError::Unreachable { source: sqlx::Error::Database(error), .. } => error.code().map(Into::into),
            _ => None,
        }
    }
}
