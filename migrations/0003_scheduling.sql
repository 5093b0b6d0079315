-- Scheduling: rank within the announced window, places under caps, limits of credentials, held sessions, later starts.
-- Only additions: a worker of the release before runs on, and leaves the new columns alone.

alter table turns
    -- what the caller named: turns of one key share the places that the queue's policy gives a key
    add column concurrency_key text,
    -- what happens to the session if this turn fails; null = what the queue's policy says
    add column on_failure text,
    -- a batch is released no earlier than this
    add column not_before timestamptz,
    -- place in the announced window: class of priority, then virtual time of the namespace; null = not in the window
    add column rank bigint,
    -- what a queued head waits for besides its time: a scope of `cap_slots`, or a limited credential
    add column waits_for text;
create index turns_ranked on turns (queue, rank, id)
    where state = 'queued' and head and rank is not null and waits_for is null;
create index turns_backlog on turns (queue, priority desc, namespace, due_at, id)
    where state = 'queued' and head and rank is null and waits_for is null;
create index turns_waiting on turns (waits_for, priority desc, due_at, id)
    where state = 'queued' and waits_for is not null;

-- A session whose turn failed under `hold`: nothing of it becomes head until somebody releases it.
alter table sessions
    add column held_at timestamptz,
    add column held_by uuid;

-- The places of everything that is capped, made on first use; a claim takes one of each scope, never waits for one.
create table cap_slots (
    scope    text not null,
    slot     int  not null,
    holder   uuid,
    turn_id  uuid,
    taken_at timestamptz,
    primary key (scope, slot),
    check ((holder is null) = (turn_id is null))
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
create index cap_slots_turn on cap_slots (turn_id) where turn_id is not null;
create index cap_slots_held on cap_slots (scope) where turn_id is not null;

-- A credential that its provider limits, by a keyed hash. Gone once enough turns of it have succeeded.
create table credential_limits (
    credential   text primary key,
    until        timestamptz not null,
    limited_at   timestamptz not null default clock_timestamp(),
    hits         int not null default 1,
    -- turns of it in flight at a time once `until` has passed; 0 = the probe alone
    allowed      int not null default 0,
    probe_turn   uuid,
    probe_until  timestamptz
);
alter table runs add column credential text;
create index runs_credential on runs (credential) where ended_at is null and credential is not null;
