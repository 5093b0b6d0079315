//! What `doctor` asks of a database: its version, schema, settings and clock. Reads only.

use std::time::Duration;

use sqlx::FromRow;

use super::{Db, MIGRATIONS, Result};

/// A database as a worker will find it.
#[derive(Clone, Debug, FromRow)]
pub struct DatabaseHealth {
    pub version: String,
    /// 150000 = 15.0.
    pub version_number: i32,
    /// A standby takes no writes.
    pub in_recovery: bool,
    pub read_only: bool,
    pub max_connections: i32,
    pub connections: i64,
    /// Milliseconds; 0 = the server notices a dead client only when it writes to it.
    pub connection_check_ms: i64,
    /// Standbys that stream, and whether a commit waits for one.
    pub standbys: i64,
    pub synchronous: bool,
    /// Seconds by which the server's clock is ahead of the epoch.
    pub clock: f64,
}

/// How the schema stands to this program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SchemaState {
    Current {
        version: i64,
    },
    /// So many migrations are to be applied.
    Behind {
        pending: usize,
    },
    /// A newer program migrated it.
    Ahead {
        version: i64,
    },
}

/// A queue and who serves it.
#[derive(Clone, Debug, FromRow)]
pub struct QueueHealth {
    pub queue: String,
    pub paused: bool,
    pub workers: i64,
}

impl Db {
    pub async fn health(&self) -> Result<DatabaseHealth> {
        let asked = sqlx::query_as(
            "select current_setting('server_version') as version,
                    current_setting('server_version_num')::int as version_number, pg_is_in_recovery() as in_recovery,
                    current_setting('default_transaction_read_only') = 'on' as read_only,
                    current_setting('max_connections')::int as max_connections,
                    (select count(*) from pg_stat_activity where backend_type = 'client backend') as connections,
                    coalesce((select setting::bigint from pg_settings
                              where name = 'client_connection_check_interval'), 0) as connection_check_ms,
                    (select count(*) from pg_stat_replication) as standbys,
                    current_setting('synchronous_standby_names') <> '' as synchronous,
                    extract(epoch from clock_timestamp())::float8 as clock",
        )
        .fetch_one(self.pool());
        match tokio::time::timeout(Duration::from_secs(10), asked).await {
            Ok(health) => Ok(health?),
            Err(_) => Err(super::unanswered().into()),
        }
    }

    pub async fn schema_state(&self) -> Result<SchemaState> {
        let known: Vec<i64> = MIGRATIONS.iter().map(|migration| migration.version).collect();
        let newest = known.iter().copied().max().unwrap_or(0);
        if !self.is_migrated().await? {
            return Ok(SchemaState::Behind { pending: known.len() });
        }
        let applied: Vec<i64> =
            sqlx::query_scalar("select version from _sqlx_migrations where success order by version")
                .fetch_all(self.pool())
                .await?;
        let pending = known.iter().filter(|version| !applied.contains(version)).count();
        let last = applied.last().copied().unwrap_or(0);
        Ok(match (pending, last > newest) {
            (0, false) => SchemaState::Current { version: last },
            (0, true) => SchemaState::Ahead { version: last },
            _ => SchemaState::Behind { pending },
        })
    }

    /// Every queue, with the live workers of the whole fleet (a worker does not say which queues it serves).
    pub async fn queue_health(&self) -> Result<Vec<QueueHealth>> {
        Ok(sqlx::query_as(
            "select name as queue, paused, (select count(*) from workers
                    where state = 'active' and lease_until > clock_timestamp()) as workers
             from queues order by name",
        )
        .fetch_all(self.pool())
        .await?)
    }
}
