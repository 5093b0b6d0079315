//! The database: version, schema, settings that decide how fast a dead worker is noticed, clock. Reads only.

use std::time::{SystemTime, UNIX_EPOCH};

use holdfast_shared::db::Db;
use holdfast_shared::db::health::{DatabaseHealth, SchemaState};
use holdfast_shared::db::workers::Liveness;

use super::{Line, text};

const CHECK: &str = "database";
/// Oldest server that has everything the statements use.
const OLDEST: i32 = 140_000;
const SKEW_S: f64 = 5.0;

pub(super) async fn look(db: &Db) -> Vec<Line> {
    let health = match db.health().await {
        Ok(health) => health,
        Err(error) => return vec![Line::fail(CHECK, text(error), "check the server's log")],
    };
    let mut lines = server(db, &health);
    lines.push(schema(db).await);
    lines.push(match Liveness::take(db).await {
        Ok(_) if health.connection_check_ms == 0 => Line::warn(
            "liveness",
            "locks are seen, but a killed worker may be noticed only after seconds",
            "set client_connection_check_interval = 500ms in postgresql.conf",
        ),
        Ok(_) => Line::ok("liveness", "a dead worker is noticed by its lock, within a second"),
        Err(error) => Line::warn(
            "liveness",
            format!("by lease time alone ({})", text(error)),
            "connect the workers to PostgreSQL itself, not to a pooler",
        ),
    });
    if let Ok(queues) = db.queue_health().await {
        lines.extend(queues.into_iter().filter(|queue| queue.paused).map(|queue| {
            let advice = format!("`holdfast queue resume {}`", queue.queue);
            Line::warn("queue", format!("`{}` is paused", queue.queue), advice)
        }));
    }
    lines
}

fn server(db: &Db, health: &DatabaseHealth) -> Vec<Line> {
    let at = format!("PostgreSQL {} at {}", health.version, db.address());
    let mut lines = vec![if health.in_recovery || health.read_only {
        Line::fail(CHECK, format!("{at} takes no writes"), "point DATABASE_URL at the primary")
    } else if health.version_number < OLDEST {
        Line::fail(CHECK, at, "update PostgreSQL to 14 or later")
    } else {
        Line::ok(CHECK, at)
    }];
    if health.connections * 10 >= i64::from(health.max_connections) * 9 {
        lines.push(Line::warn(
            "connections",
            format!("{} of {} are in use", health.connections, health.max_connections),
            "raise max_connections; a worker takes HOLDFAST_DATABASE_CONNECTIONS and 3",
        ));
    }
    if health.standbys > 0 && !health.synchronous {
        lines.push(Line::warn(
            "replication",
            format!("{} standby without synchronous commit: a failover can lose the last commits", health.standbys),
            "set synchronous_standby_names; a turn whose commit is lost would run again",
        ));
    }
    let here = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    let skew = here - health.clock;
    if skew.abs() > SKEW_S {
        lines.push(Line::warn(
            "clock",
            format!("this host is {:.0} s {} the database", skew.abs(), if skew > 0.0 { "ahead of" } else { "behind" }),
            "leases use the database's clock and are safe; synchronise the hosts so that logs agree",
        ));
    }
    lines
}

async fn schema(db: &Db) -> Line {
    match db.schema_state().await {
        Ok(SchemaState::Current { version }) => Line::ok("schema", format!("version {version}, up to date")),
        Ok(SchemaState::Behind { pending }) => {
            Line::fail("schema", format!("{pending} migrations are not applied"), "run `holdfast migrate`")
        }
        Ok(SchemaState::Ahead { version }) => Line::warn(
            "schema",
            format!("version {version}, made by a newer holdfast"),
            "update this host's binaries when the rollout is over",
        ),
        Err(error) => Line::fail("schema", text(error), "run `holdfast migrate`"),
    }
}
