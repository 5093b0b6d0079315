//! The worker's own row: registration, heartbeat in database time, end. One row is the heartbeat of all its leases, so
//! renewing never touches a binding.
//!
//! A heartbeat whose answer is lost is ambiguous: the caller suspends every fenced write until one succeeds, and gives
//! its leases up at a deadline counted from before the last good one was sent.

use std::time::Duration;

use holdfast_protocol::{TurnId, WorkerId};
use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::{Db, DbError, Result};

/// What a worker says of itself.
#[derive(Clone, Debug)]
pub struct WorkerInfo {
    pub id: WorkerId,
    pub host: String,
    pub engine_id: String,
    pub version: String,
    pub slots: u32,
}

/// The dedicated connection whose advisory lock is the worker's sign of life. Nothing else runs on it.
pub struct Liveness {
    connection: PgConnection,
    pub key: i64,
    /// System id, timeline and start of the server: a lock says nothing across a restart.
    pub incarnation: String,
}

impl Liveness {
    /// Opens the connection, takes the lock and proves from another connection that the lock is seen. An error of kind
    /// `Refused` means that locks cannot be trusted here (a pooler): use lease time alone.
    pub async fn take(db: &Db) -> Result<Self> {
        let mut connection =
            PgConnection::connect_with(&db.options().clone().application_name("holdfast-liveness")).await?;
        let key = rand::random::<i64>();
        sqlx::query("select pg_advisory_lock($1)").bind(key).execute(&mut connection).await?;
        let incarnation = incarnation(&mut connection).await?;
        let (free,): (bool,) =
            sqlx::query_as("select pg_try_advisory_xact_lock_shared($1)").bind(key).fetch_one(db.pool()).await?;
        if free {
            return Err(DbError::Refused("the liveness lock is not seen by another connection".to_owned()));
        }
        Ok(Self { connection, key, incarnation })
    }

    /// Fails once the connection, and so the lock, is gone.
    pub async fn check(&mut self) -> Result<()> {
        Ok(self.connection.ping().await?)
    }
}

pub(super) async fn incarnation(connection: &mut PgConnection) -> Result<String> {
    let (text,): (String,) = sqlx::query_as(
        "select (select system_identifier from pg_control_system())::text || '/' ||
                (select timeline_id from pg_control_checkpoint())::text || '/' || pg_postmaster_start_time()::text",
    )
    .fetch_one(connection)
    .await?;
    Ok(text)
}

/// What a heartbeat brings back.
#[derive(Clone, Debug, Default)]
pub struct Heartbeat {
    /// Turns of this worker that somebody asked to cancel.
    pub cancelled: Vec<TurnId>,
}

/// The connection of the heartbeat; nothing else uses it.
pub struct HeartbeatConnection(PgConnection);

impl HeartbeatConnection {
    pub async fn open(db: &Db) -> Result<Self> {
        let options = db.options().clone().application_name("holdfast-heartbeat");
        Ok(Self(PgConnection::connect_with(&options).await?))
    }

    /// Extends all leases of the worker. `LeaseLost` = the worker was declared stopped.
    pub async fn heartbeat(&mut self, worker: WorkerId, ttl: Duration) -> Result<Heartbeat> {
        let done = sqlx::query(
            "update workers set heartbeat_at = clock_timestamp(), lease_until = clock_timestamp() + $2 * interval '1 second'
             where id = $1 and state <> 'stopped'",
        )
        .bind(worker.0)
        .bind(ttl.as_secs_f64())
        .execute(&mut self.0)
        .await?;
        if done.rows_affected() != 1 {
            return Err(DbError::LeaseLost);
        }
        let cancelled: Vec<(Uuid,)> = sqlx::query_as(
            "select t.id from sandbox_bindings b join turns t on t.id = b.turn_id
             where b.worker_id = $1 and t.cancel_requested_at is not null",
        )
        .bind(worker.0)
        .fetch_all(&mut self.0)
        .await?;
        Ok(Heartbeat { cancelled: cancelled.into_iter().map(|(id,)| TurnId(id)).collect() })
    }
}

impl Db {
    /// Calls `each` for every turn that somebody asks to cancel, until the connection fails.
    pub async fn hear_cancels(&self, each: impl Fn(TurnId)) -> Result<()> {
        let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(self.options().clone());
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.listen("holdfast_cancel").await?;
        loop {
            if let Ok(turn) = listener.recv().await?.payload().parse() {
                each(turn);
            }
        }
    }
}

impl Db {
    /// Registers (or re-registers, with another liveness key) the worker.
    pub async fn register(&self, who: &WorkerInfo, liveness: Option<(i64, &str)>, ttl: Duration) -> Result<()> {
        sqlx::query(
            "insert into workers (id, host, engine_id, version, slots, liveness_key, incarnation, lease_until)
             values ($1, $2, $3, $4, $5, $6, $7, clock_timestamp() + $8 * interval '1 second')
             on conflict (id) do update set liveness_key = excluded.liveness_key, incarnation = excluded.incarnation",
        )
        .bind(who.id.0)
        .bind(&who.host)
        .bind(&who.engine_id)
        .bind(&who.version)
        .bind(who.slots as i32)
        .bind(liveness.map(|(key, _)| key))
        .bind(liveness.map(|(_, incarnation)| incarnation))
        .bind(ttl.as_secs_f64())
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// The worker takes no more turns, or has stopped: then its leases are over.
    pub async fn set_worker_state(&self, worker: WorkerId, state: WorkerState) -> Result<()> {
        let name = match state {
            WorkerState::Draining => "draining",
            WorkerState::Stopped => "stopped",
        };
        sqlx::query("update workers set state = $2 where id = $1")
            .bind(worker.0)
            .bind(name)
            .execute(self.pool())
            .await?;
        Ok(())
    }
}

impl Db {
    /// Keeps a delivery that could not be decoded.
    pub async fn dead_delivery(&self, queue: &str, reason: &str, body: &[u8]) -> Result<()> {
        sqlx::query("insert into dead_deliveries (queue, reason, body) values ($1, $2, $3)")
            .bind(queue)
            .bind(reason)
            .bind(body)
            .execute(self.pool())
            .await?;
        Ok(())
    }

    /// The short name of this installation, for labels: computers of other databases on the same engine are not ours.
    pub async fn installation(&self) -> Result<String> {
        let (id,): (Uuid,) = sqlx::query_as("select id from installation").fetch_one(self.pool()).await?;
        Ok(id.simple().to_string()[..12].to_owned())
    }

    /// Whether another worker of this engine takes turns. One whose liveness lock is free is dead, however long its lease
    /// still lives; `incarnation` is that of the server as this worker's own liveness connection sees it.
    pub async fn has_other_worker(&self, worker: WorkerId, engine_id: &str, incarnation: Option<&str>) -> Result<bool> {
        let (other,): (bool,) = sqlx::query_as(
            "select exists (select from workers
             where engine_id = $2 and id <> $1 and state = 'active' and lease_until > clock_timestamp()
               and not (liveness_key is not null and incarnation = $3
                        and pg_try_advisory_xact_lock_shared(liveness_key)))",
        )
        .bind(worker.0)
        .bind(engine_id)
        .bind(incarnation)
        .fetch_one(self.pool())
        .await?;
        Ok(other)
    }

    /// Parked computers of the engine are of no use once its last worker stops: retires them, if this one is the last
    /// (see `has_other_worker`).
    pub async fn retire_parked_of_last_worker(
        &self,
        worker: WorkerId,
        engine_id: &str,
        incarnation: Option<&str>,
    ) -> Result<u64> {
        let done = sqlx::query(
            "with others as materialized (
                 select 1 from workers where engine_id = $2 and id <> $1 and state <> 'stopped' and lease_until > clock_timestamp()
                 and not (liveness_key is not null and incarnation = $3
                          and pg_try_advisory_xact_lock_shared(liveness_key))),
             b as (
                 -- What a killed worker was parking belongs to nobody else any more: everybody else is gone.
                 update sandbox_bindings set warm_at_checkpoint = null, warm_until = null, condemned = true,
                        updated_at = clock_timestamp(), state = 'free', lease_token = null, worker_id = null,
                        fence = fence + case when state = 'parking' then 1 else 0 end
                 where engine_id = $2 and state in ('free', 'parking') and not condemned and computer_name is not null
                   and not exists (select from others)
                 returning computer_name, engine_id, provider, session_id, generation)
             insert into retired_computers (computer_name, engine_id, provider, session_id, generation, reason)
             select computer_name, engine_id, provider, session_id, generation, 'last worker stopped' from b
             on conflict do nothing",
        )
        .bind(worker.0)
        .bind(engine_id)
        .bind(incarnation)
        .execute(self.pool())
        .await?;
        Ok(done.rows_affected())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkerState {
    Draining,
    Stopped,
}
