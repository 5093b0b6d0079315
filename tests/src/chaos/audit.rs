//! Who wrote what: triggers of a test database that note every grant of a lease, every write of a run or its events and
//! every change of a turn's state, with the label of the worker whose connection it was. They are part of the writing
//! transaction, so what was rolled back is not noted.

use holdfast_shared::db::Db;

const LABEL: &str = "holdfast.worker";

const DDL: &str = "
create table audit (
    id bigint generated always as identity primary key, at timestamptz not null default clock_timestamp(),
    label text, what text not null, session_id uuid, turn_id uuid, run_id uuid, fence bigint, detail text);
create index on audit (what, session_id, fence);
create function audit(what text, session_id uuid, turn_id uuid, run_id uuid, fence bigint, detail text) returns void
language sql as $$
    insert into audit (label, what, session_id, turn_id, run_id, fence, detail)
    values (nullif(current_setting('holdfast.worker', true), ''), what, session_id, turn_id, run_id, fence, detail) $$;
create function audit_binding() returns trigger language plpgsql as $$
begin
    if tg_op = 'UPDATE' and new.fence < old.fence then
        perform audit('fence went back', new.session_id, new.turn_id, new.run_id, new.fence, null);
    elsif new.lease_token is not null and (tg_op = 'INSERT' or new.lease_token is distinct from old.lease_token) then
        perform audit('grant', new.session_id, new.turn_id, new.run_id, new.fence,
                      case when tg_op = 'UPDATE' then 'after ' || old.fence end);
    end if;
    return null;
end $$;
create function audit_run() returns trigger language plpgsql as $$
begin
    perform audit('run', new.session_id, new.turn_id, new.id, new.fence, concat_ws(' ', new.state, new.class));
    return null;
end $$;
create function audit_events() returns trigger language plpgsql as $$
begin
    perform audit('events', r.session_id, r.turn_id, r.id, r.fence, null) from runs r where r.id = new.run_id;
    return null;
end $$;
create function audit_turn() returns trigger language plpgsql as $$
begin
    if new.state is distinct from old.state then
        perform audit('turn', new.session_id, new.id, new.run_id, null, old.state || ' ' || new.state);
    end if;
    return null;
end $$;
create trigger audit after insert or update on sandbox_bindings for each row execute function audit_binding();
create trigger audit after insert or update on runs for each row execute function audit_run();
create trigger audit after update on turns for each row execute function audit_turn();
";

/// Installs the triggers.
pub(super) async fn install(db: &Db) {
    sqlx::raw_sql(DDL).execute(db.pool()).await.expect("the audit installs");
    sqlx::raw_sql("create trigger audit after insert on run_events for each row execute function audit_events()")
        .execute(db.pool())
        .await
        .expect("the audit of events installs");
}

/// The address with which a worker's connections carry its label.
pub(super) fn labelled(url: &str, label: &str) -> String {
    let joint = if url.contains('?') { '&' } else { '?' };
    format!("{url}{joint}options=-c%20{LABEL}%3D{label}")
}
