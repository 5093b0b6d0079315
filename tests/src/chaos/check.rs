//! The checker: whatever was done to a fleet, this must hold of its database and its computers. Each promise is one
//! query that names what breaks it; a test fails with all of them at once. Reads only.

use std::collections::HashMap;

use holdfast_protocol::{ObjectId, RunId};
use uuid::Uuid;

use super::Chaos;
use crate::memory::{Files, chain};

/// What was checked, for the report of a test.
#[derive(Clone, Copy, Debug)]
pub struct Checked {
    pub turns: i64,
    pub runs: i64,
    pub grants: i64,
}

/// Each gives one line for everything that breaks the promise.
const PROMISES: &[(&str, &str)] = &[
    (
        "every head that is not terminal has a live lease, an outbox row, waits for a cap or its time, or is announced in the current epoch",
        "select t.id::text from turns t join queues q on q.name = t.queue
         left join sandbox_bindings b on b.session_id = t.session_id left join workers w on w.id = b.worker_id
         where t.head and t.ended_at is null
           and not (t.state <> 'queued' and b.state = 'held' and b.turn_id = t.id and w.state <> 'stopped')
           and not exists (select from outbox o where o.turn_id = t.id)
           and not (t.state = 'queued' and (t.announced_at is null or t.announced_epoch is not null))",
    ),
    (
        "a session with open turns has exactly one head",
        "select session_id::text from turns where ended_at is null group by session_id
         having count(*) filter (where head) <> 1",
    ),
    (
        "a turn in flight has a run and a lease of its own",
        "select t.id::text from turns t left join sandbox_bindings b on b.turn_id = t.id and b.run_id = t.run_id
         where t.state in ('starting', 'running', 'saving', 'stopping') and b.session_id is null",
    ),
    (
        "a turn ends once",
        "select turn_id::text || ' ' || string_agg(detail, ', ') from audit
         where what = 'turn' and split_part(detail, ' ', 2) in ('succeeded', 'failed', 'dead', 'cancelled')
         group by turn_id having count(*) > 1
         union all select turn_id::text || ' ' || detail from audit
         where what = 'turn' and split_part(detail, ' ', 1) in ('succeeded', 'failed', 'dead', 'cancelled')",
    ),
    (
        "a turn succeeds in one run at most",
        "select turn_id::text from runs where state = 'succeeded' group by turn_id having count(*) > 1",
    ),
    ("no fence goes back", "select session_id::text from audit where what = 'fence went back'"),
    (
        "each fence is granted once",
        "select session_id::text || ' ' || fence from audit where what = 'grant' group by session_id, fence having count(*) > 1",
    ),
    (
        "nobody writes a run but the holder of its lease, or who ends a lost worker's",
        "select w.label || ' wrote ' || w.what || ' of ' || w.run_id || ' under the fence ' || w.fence || ' of ' || g.label
         from audit w join audit g on g.what = 'grant' and g.session_id = w.session_id and g.fence = w.fence
         where w.what in ('run', 'events') and w.label is distinct from g.label
           and w.detail is distinct from 'failed worker_lost' and w.detail is distinct from 'failed poisoned'",
    ),
    (
        "no write of a run lands after a higher fence was granted",
        "select w.label || ' wrote ' || w.run_id || ' under ' || w.fence from audit w
         where w.what in ('run', 'events') and exists (
             select from audit g where g.what = 'grant' and g.session_id = w.session_id and g.run_id = w.run_id
             and g.fence > w.fence and g.id < w.id)",
    ),
    (
        "later turns of a session begin after the earlier ones have ended",
        "select b.id::text from turns a join turns b on a.session_id = b.session_id and a.seq < b.seq
         where b.started_at is not null and (a.ended_at is null or a.ended_at > b.started_at)",
    ),
    (
        "the checkpoints of a session are one chain up to its recovery point",
        "with recursive walked as (
             select s.id as session_id, s.recovery_point as id from sessions s where s.recovery_point is not null
             union all select w.session_id, c.parent from walked w join checkpoints c on c.id = w.id where c.parent is not null)
         select s.id::text from sessions s where
             (select count(*) from walked w where w.session_id = s.id)
             <> (select count(*) from checkpoints c where c.session_id = s.id and c.state = 'committed')
          or (select count(*) from turns t where t.session_id = s.id and t.state = 'succeeded')
             <> (select count(*) from checkpoints c where c.session_id = s.id and c.state = 'committed')",
    ),
    (
        "the stored events of a run have no gap and no overlap",
        "select run_id::text || ' at ' || from_cursor from (
             select run_id, from_cursor, lag(next_cursor, 1, 0::bigint) over (partition by run_id order by from_cursor) as before
             from run_events) e where from_cursor <> before
         union all select r.id::text from runs r where r.next_cursor <> coalesce(
             (select max(next_cursor) from run_events e where e.run_id = r.id), 0)",
    ),
    (
        "attempts are the burned runs and the one that succeeded",
        "select t.id::text || ' ' || t.attempts from turns t where t.attempts <> (
             select count(*) from runs r where r.turn_id = t.id and (r.burned or r.state = 'succeeded'))",
    ),
    (
        "the folded depth is the number of queued turns",
        "select q.name from queues q where
             coalesce((select queued from queue_depths d where d.queue = q.name), 0)
             + coalesce((select sum(delta) from queue_depth_deltas d where d.queue = q.name), 0)
             <> (select count(*) from turns t where t.queue = q.name and t.state = 'queued')",
    ),
];

pub(super) async fn check(chaos: &Chaos) -> Checked {
    let mut broken = Vec::new();
    for (promise, sql) in PROMISES {
        let found: Vec<Option<String>> = sqlx::query_scalar(*sql)
            .fetch_all(chaos.db().pool())
            .await
            .unwrap_or_else(|error| panic!("{promise}: {error}"));
        if !found.is_empty() {
            let some: Vec<String> = found.iter().flatten().take(5).cloned().collect();
            broken.push(format!("{promise}: broken {} times, as by {}", found.len(), some.join("; ")));
        }
    }
    broken.extend(starts(chaos).await);
    broken.extend(files(chaos).await);
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    Checked {
        turns: chaos.count("select count(*) from turns").await,
        runs: chaos.count("select count(*) from runs").await,
        grants: chaos.count("select count(*) from audit where what = 'grant'").await,
    }
}

/// A prompt reaches the model once in each run, and never outside of one.
async fn starts(chaos: &Chaos) -> Vec<String> {
    let known: HashMap<Uuid, String> = sqlx::query_as::<_, (Uuid, String)>("select id, state from runs")
        .fetch_all(chaos.db().pool())
        .await
        .expect("the runs are read")
        .into_iter()
        .collect();
    let starts = chaos.engine.starts();
    let mut broken: Vec<String> = starts
        .iter()
        .filter(|(run, count)| **count > 1 || !known.contains_key(&run.0))
        .map(|(run, count)| format!("{run} was started {count} times, or the database does not know it"))
        .collect();
    let unstarted = known.iter().filter(|(id, state)| *state == "succeeded" && !starts.contains_key(&RunId(**id)));
    broken.extend(unstarted.map(|(id, _)| format!("run {id} succeeded and was never started")));
    broken
}

/// The recovery point of each session holds its successful turns, each once, in order, and the conversation with them.
async fn files(chaos: &Chaos) -> Vec<String> {
    let sessions: Vec<(Uuid, String, String, Vec<u8>)> = sqlx::query_as(
        "select s.id, s.namespace, s.native_conversation, c.manifest from sessions s join checkpoints c on c.id = s.recovery_point",
    )
    .fetch_all(chaos.db().pool())
    .await
    .expect("the sessions are read");
    let mut broken = Vec::new();
    for (session, namespace, native, manifest) in sessions {
        let prompts: Vec<String> =
            sqlx::query_scalar("select prompt from turns where session_id = $1 and state = 'succeeded' order by seq")
                .bind(session)
                .fetch_all(chaos.db().pool())
                .await
                .expect("the turns are read");
        let expected = Files {
            turns: prompts.len() as u64,
            chain: chain(prompts.iter().map(String::as_str)),
            native: Some(native),
        };
        match stored(chaos, &namespace, &manifest).await {
            Ok(found) if found == expected => {}
            other => broken.push(format!("session {session} stands at {other:?}, expected {expected:?}")),
        }
    }
    broken
}

async fn stored(chaos: &Chaos, namespace: &str, manifest: &[u8]) -> Result<Files, String> {
    let manifest = ObjectId::try_from(manifest).map_err(|error| error.to_string())?;
    let store = holdfast_shared::store::PgStore::new(chaos.db().clone());
    let get = async |ids: &[ObjectId]| {
        holdfast_shared::store::Store::get(&store, namespace, ids).await.map_err(|error| error.to_string())
    };
    let top = get(&[manifest]).await?;
    let decoded = holdfast_protocol::tree::Manifest::decode(&top[0].bytes).map_err(|error| error.to_string())?;
    let nodes = get(&[decoded.workspace.node, decoded.native.node]).await?;
    let find = |id| top.iter().chain(&nodes).find(|object| object.id == id).map(|object| object.bytes.clone());
    Files::read(manifest, find)
}
