//! Agents and queues as they were applied: versions and revisions are rows that never change. Writes `namespaces`,
//! `agents`, `queues` and `queue_policies`. A file is applied in one transaction: a crash leaves all of it or nothing.

use serde::Serialize;
use sqlx::types::Json;
use sqlx::types::time::OffsetDateTime;
use sqlx::{FromRow, Postgres, Transaction};

use super::{Db, Result};
use crate::domain::agent::AgentSpec;
use crate::domain::policy::QueuePolicy;

/// The queue that exists without being applied.
pub const DEFAULT_QUEUE: &str = "default";

/// What applying did; the number is the version or revision in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "change", content = "number", rename_all = "lowercase")]
pub enum Applied {
    Created(i32),
    Updated(i32),
    Unchanged(i32),
}

impl Applied {
    fn from_last(last: Option<i32>) -> Self {
        last.map_or(Applied::Created(1), |last| Applied::Updated(last + 1))
    }

    pub const fn number(self) -> i32 {
        match self {
            Applied::Created(number) | Applied::Updated(number) | Applied::Unchanged(number) => number,
        }
    }
}

/// A version of an agent.
#[derive(Clone, Debug, FromRow, Serialize)]
pub struct AgentRow {
    pub name: String,
    pub version: i32,
    #[sqlx(json)]
    pub spec: AgentSpec,
    pub digest: String,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

/// A queue and the policy in force.
#[derive(Clone, Debug, FromRow, Serialize)]
pub struct QueueRow {
    pub name: String,
    pub revision: i32,
    pub paused: bool,
    pub broker_epoch: i64,
    #[sqlx(json)]
    pub policy: QueuePolicy,
}

impl Db {
    /// A new version of each agent whose spec changed.
    pub async fn apply_agents(&self, namespace: &str, agents: &[(String, AgentSpec)]) -> Result<Vec<Applied>> {
        let mut tx = self.pool().begin().await?;
        lock(&mut tx, "agents", namespace).await?;
        sqlx::query("insert into namespaces (name) values ($1) on conflict do nothing")
            .bind(namespace)
            .execute(&mut *tx)
            .await?;
        let mut applied = Vec::with_capacity(agents.len());
        for (name, spec) in agents {
            applied.push(apply_agent(&mut tx, namespace, name, spec).await?);
        }
        tx.commit().await?;
        Ok(applied)
    }

    /// The newest version: the one that turns submitted from now on use.
    pub async fn latest_agent(&self, namespace: &str, name: &str) -> Result<Option<AgentRow>> {
        Ok(sqlx::query_as(
            "select name, version, spec, digest, created_at from agents
             where namespace = $1 and name = $2 order by version desc limit 1",
        )
        .bind(namespace)
        .bind(name)
        .fetch_optional(self.pool())
        .await?)
    }

    /// One version of an agent.
    pub async fn agent_version(&self, namespace: &str, name: &str, version: i32) -> Result<Option<AgentRow>> {
        Ok(sqlx::query_as(
            "select name, version, spec, digest, created_at from agents
             where namespace = $1 and name = $2 and version = $3",
        )
        .bind(namespace)
        .bind(name)
        .bind(version)
        .fetch_optional(self.pool())
        .await?)
    }

    /// The newest version of every agent, by name.
    pub async fn list_agents(&self, namespace: &str) -> Result<Vec<AgentRow>> {
        Ok(sqlx::query_as(
            "select distinct on (name) name, version, spec, digest, created_at from agents
             where namespace = $1 order by name, version desc",
        )
        .bind(namespace)
        .fetch_all(self.pool())
        .await?)
    }

    /// A new revision of each queue whose policy changed.
    pub async fn apply_queues(&self, queues: &[(String, QueuePolicy)]) -> Result<Vec<Applied>> {
        let mut tx = self.pool().begin().await?;
        lock(&mut tx, "queues", "").await?;
        let mut applied = Vec::with_capacity(queues.len());
        for (name, policy) in queues {
            applied.push(apply_queue(&mut tx, name, policy).await?);
        }
        tx.commit().await?;
        Ok(applied)
    }

    /// The queue with the default policy, unless somebody has applied one.
    pub async fn ensure_queue(&self, queue: &str) -> Result<()> {
        let policy = serde_json::to_value(QueuePolicy::default()).expect("a policy always encodes");
        sqlx::query(
            "with q as (insert into queues (name, revision) values ($1, 1) on conflict do nothing returning name)
             insert into queue_policies (queue, revision, policy) select name, 1, $2 from q",
        )
        .bind(queue)
        .bind(policy)
        .execute(self.pool())
        .await?;
        Ok(())
    }

    /// A queue with the policy in force.
    pub async fn queue(&self, name: &str) -> Result<Option<QueueRow>> {
        Ok(sqlx::query_as(
            "select q.name, q.revision, q.paused, q.broker_epoch, p.policy from queues q
             join queue_policies p on (p.queue, p.revision) = (q.name, q.revision) where q.name = $1",
        )
        .bind(name)
        .fetch_optional(self.pool())
        .await?)
    }

    /// The policy of one revision: a turn in flight keeps the one it started with.
    pub async fn policy(&self, queue: &str, revision: i32) -> Result<Option<QueuePolicy>> {
        let row: Option<(Json<QueuePolicy>,)> =
            sqlx::query_as("select policy from queue_policies where queue = $1 and revision = $2")
                .bind(queue)
                .bind(revision)
                .fetch_optional(self.pool())
                .await?;
        Ok(row.map(|(policy,)| policy.0))
    }

    /// Every queue with the policy in force, by name.
    pub async fn list_queues(&self) -> Result<Vec<QueueRow>> {
        Ok(sqlx::query_as(
            "select q.name, q.revision, q.paused, q.broker_epoch, p.policy from queues q
             join queue_policies p on (p.queue, p.revision) = (q.name, q.revision) order by q.name",
        )
        .fetch_all(self.pool())
        .await?)
    }
}

async fn apply_agent(
    tx: &mut Transaction<'_, Postgres>,
    namespace: &str,
    name: &str,
    spec: &AgentSpec,
) -> Result<Applied> {
    let last: Option<(i32, String)> = sqlx::query_as(
        "select version, digest from agents where namespace = $1 and name = $2 order by version desc limit 1",
    )
    .bind(namespace)
    .bind(name)
    .fetch_optional(&mut **tx)
    .await?;
    let digest = spec.digest();
    if let Some((version, _)) = last.as_ref().filter(|(_, known)| *known == digest) {
        return Ok(Applied::Unchanged(*version));
    }
    let applied = Applied::from_last(last.map(|(version, _)| version));
    sqlx::query("insert into agents (namespace, name, version, spec, digest) values ($1, $2, $3, $4, $5)")
        .bind(namespace)
        .bind(name)
        .bind(applied.number())
        .bind(Json(spec))
        .bind(digest)
        .execute(&mut **tx)
        .await?;
    Ok(applied)
}

async fn apply_queue(tx: &mut Transaction<'_, Postgres>, name: &str, policy: &QueuePolicy) -> Result<Applied> {
    let last: Option<(i32, Json<QueuePolicy>)> = sqlx::query_as(
        "select p.revision, p.policy from queues q
         join queue_policies p on (p.queue, p.revision) = (q.name, q.revision) where q.name = $1",
    )
    .bind(name)
    .fetch_optional(&mut **tx)
    .await?;
    if let Some((revision, _)) = last.as_ref().filter(|(_, known)| known.0 == *policy) {
        return Ok(Applied::Unchanged(*revision));
    }
    let applied = Applied::from_last(last.map(|(revision, _)| revision));
    sqlx::query(
        "insert into queues (name, revision) values ($1, $2)
         on conflict (name) do update set revision = excluded.revision, updated_at = now()",
    )
    .bind(name)
    .bind(applied.number())
    .execute(&mut **tx)
    .await?;
    sqlx::query("insert into queue_policies (queue, revision, policy) values ($1, $2, $3)")
        .bind(name)
        .bind(applied.number())
        .bind(Json(policy))
        .execute(&mut **tx)
        .await?;
    sqlx::query("insert into queue_depths (queue) values ($1) on conflict do nothing")
        .bind(name)
        .execute(&mut **tx)
        .await?;
    Ok(applied)
}

/// Two people applying at once take turns: versions count without gaps.
async fn lock(tx: &mut Transaction<'_, Postgres>, what: &str, key: &str) -> Result<()> {
    sqlx::query("select pg_advisory_xact_lock(hashtextextended('holdfast.' || $1 || ':' || $2, 0))")
        .bind(what)
        .bind(key)
        .execute(&mut **tx)
        .await?;
    Ok(())
}
