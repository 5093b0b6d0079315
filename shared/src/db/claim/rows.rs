//! The rows that a claim reads, under the locks that it holds.

use std::time::Duration;

use holdfast_protocol::TurnId;
use sqlx::types::Json;
use sqlx::{FromRow, Postgres, Transaction};
use uuid::Uuid;

use crate::db::Result;
use crate::domain::agent::AgentSpec;
use crate::domain::input::TurnInputs;
use crate::domain::policy::QueuePolicy;
use crate::domain::repository::PinnedRepository;

/// How long after the end of a lease another engine waits, for clocks and a harness on its way out.
pub(super) const OTHER_ENGINE_MARGIN: Duration = Duration::from_secs(5);

#[derive(FromRow)]
pub(super) struct SessionRow {
    pub(super) id: Uuid,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) recovery_point: Option<Uuid>,
    pub(super) native_conversation: Option<String>,
    pub(super) repository: Option<Json<PinnedRepository>>,
}

#[derive(FromRow)]
pub(super) struct TurnRow {
    pub(super) seq: i32,
    pub(super) queue: String,
    pub(super) agent: String,
    pub(super) prompt: String,
    pub(super) inputs: Option<Json<TurnInputs>>,
    pub(super) state: String,
    pub(super) head: bool,
    pub(super) due: bool,
    pub(super) waited_ms: f64,
    pub(super) run_id: Option<Uuid>,
    pub(super) runs: i32,
    pub(super) attempts: i32,
    pub(super) setup_attempts: i32,
    pub(super) deaths: i32,
    pub(super) limited_s: f64,
    pub(super) cancel_requested: bool,
    pub(super) budgeted: bool,
    pub(super) paused: bool,
    pub(super) revision: i32,
    pub(super) policy: Json<QueuePolicy>,
    pub(super) spec: Json<AgentSpec>,
    pub(super) manifest: Option<Vec<u8>>,
    pub(super) concurrency_key: Option<String>,
    /// A head of the queue that goes first and that the broker cannot have handed out before this one. One that has just
    /// stood back for a better one (epoch 0) is in the hands of whoever had it stand back.
    pub(super) outranked_by: Option<Uuid>,
    /// Some credential is limited; only then is this turn's looked up.
    pub(super) any_limit: bool,
}

#[derive(FromRow, Default)]
pub(super) struct BindingRow {
    pub(super) state: String,
    pub(super) fence: i64,
    pub(super) worker_id: Option<Uuid>,
    pub(super) engine_id: Option<String>,
    pub(super) provider: Option<String>,
    pub(super) generation: i32,
    pub(super) computer_name: Option<String>,
    pub(super) creation_nonce: Option<Uuid>,
    pub(super) spec_digest: Option<String>,
    pub(super) condemned: bool,
    pub(super) warm_at_checkpoint: Option<Uuid>,
    pub(super) warm: bool,
    pub(super) parking_fresh: bool,
    /// Milliseconds since the row was last written: since the computer was parked, if it is.
    pub(super) since_ms: f64,
    pub(super) holder_key: Option<i64>,
    pub(super) holder_incarnation: Option<String>,
    pub(super) holder_stopped: Option<bool>,
    pub(super) holder_expired: Option<bool>,
    pub(super) holder_long_expired: Option<bool>,
}

pub(super) async fn turn_row(
    tx: &mut Transaction<'_, Postgres>,
    turn: TurnId,
    recovery_point: Option<Uuid>,
) -> Result<TurnRow> {
    Ok(sqlx::query_as(
        "select t.seq, t.queue, t.agent, t.prompt, t.inputs, t.state, t.head, t.due_at <= clock_timestamp() as due,
                greatest(0, extract(epoch from clock_timestamp() - greatest(t.due_at, t.submitted_at)) * 1000)::float8 as waited_ms,
                t.run_id, t.runs, t.attempts, t.setup_attempts, t.deaths,
                coalesce(extract(epoch from clock_timestamp() - t.limited_since), 0)::float8 as limited_s, t.cancel_requested_at is not null as cancel_requested,
                coalesce(t.max_cost_nanos, t.max_tokens) is not null
                or exists (select from batches b where b.id = t.batch_id and coalesce(b.max_cost_nanos, b.max_tokens) is not null)
                or exists (select from namespaces n where n.name = t.namespace
                           and coalesce(n.max_cost_nanos, n.max_tokens) is not null) as budgeted,
                q.paused, q.revision, p.policy, a.spec, c.manifest, t.concurrency_key,
                exists (select from credential_limits) as any_limit,
                (select b.id from turns b
                 where b.queue = t.queue and b.state = 'queued' and b.head and b.rank < t.rank and b.waits_for is null
                   and b.due_at <= statement_timestamp()
                   and not (coalesce(b.announced_epoch, -1) = 0 and b.announced_at > statement_timestamp() - interval '1 second')
                   and (b.announced_at is null or b.announced_epoch is distinct from q.broker_epoch
                        or b.announced_at > t.announced_at or b.announced_at < t.announced_at - interval '30 seconds')
                 order by b.rank, b.id limit 1) as outranked_by
         from turns t
         join queues q on q.name = t.queue
         join queue_policies p on p.queue = t.queue and p.revision =
              case when t.state = 'queued' then q.revision else t.policy_revision end
         join agents a on (a.namespace, a.name, a.version) = (t.namespace, t.agent, t.agent_version)
         left join checkpoints c on c.id = $2
         where t.id = $1",
    )
    .bind(turn.0)
    .bind(recovery_point)
    .fetch_one(&mut **tx)
    .await?)
}

/// The lease row, locked; made on first use. The session row is held, so nobody else makes it meanwhile.
pub(super) async fn binding_row(tx: &mut Transaction<'_, Postgres>, session: Uuid) -> Result<BindingRow> {
    if let Some(row) = locked_binding(tx, session).await? {
        return Ok(row);
    }
    sqlx::query("insert into sandbox_bindings (session_id) values ($1)").bind(session).execute(&mut **tx).await?;
    locked_binding(tx, session).await?.ok_or(sqlx::Error::RowNotFound.into())
}

async fn locked_binding(tx: &mut Transaction<'_, Postgres>, session: Uuid) -> Result<Option<BindingRow>> {
    Ok(sqlx::query_as(
        "select b.state, b.fence, b.worker_id, b.engine_id, b.provider, b.generation, b.computer_name, b.creation_nonce,
                b.spec_digest, b.condemned, b.warm_at_checkpoint,
                coalesce(b.warm_until > clock_timestamp(), false) as warm,
                (extract(epoch from clock_timestamp() - b.updated_at) * 1000)::float8 as since_ms,
                b.state = 'parking' and b.updated_at > clock_timestamp() - interval '25 seconds' as parking_fresh,
                w.liveness_key as holder_key, w.incarnation as holder_incarnation, w.state = 'stopped' as holder_stopped,
                w.lease_until < clock_timestamp() as holder_expired,
                w.lease_until + $2 * interval '1 second' < clock_timestamp() as holder_long_expired
         from sandbox_bindings b left join workers w on w.id = b.worker_id
         where b.session_id = $1 for update of b",
    )
    .bind(session)
    .bind(OTHER_ENGINE_MARGIN.as_secs_f64())
    .fetch_optional(&mut **tx)
    .await?)
}
