-- What people do with a checkpoint (fork, rewind, tag, salvage), which of them are kept, and where packs lie.
-- Expand only: what an older worker writes is still right.

-- A fork begins at a checkpoint of another session, which is kept for as long as the fork exists.
alter table sessions add column forked_from uuid references checkpoints;
create index sessions_forked_from on sessions (forked_from) where forked_from is not null;
create index sessions_recovery_point on sessions (recovery_point) where recovery_point is not null;

-- `rewound_at`: the session went back behind it; it can be gone to again while its files are kept.
-- `collected_at`: nobody needs it any more, its files may be gone. The row stays: it is the session's history.
alter table checkpoints
    add column rewound_at timestamptz,
    add column collected_at timestamptz;
create index checkpoints_kept on checkpoints (namespace, session_id, created_at) where collected_at is null;

-- The chain of a session is what was not rewound: each checkpoint of it has at most one successor.
create unique index checkpoints_line on checkpoints (session_id, parent) nulls not distinct
    where state = 'committed' and rewound_at is null;
drop index checkpoints_chain;

-- A name for a checkpoint; what has one is kept.
create table checkpoint_tags (
    namespace      text not null references namespaces,
    tag            text not null check (octet_length(tag) between 1 and 200),
    checkpoint_id  uuid not null references checkpoints,
    created_at     timestamptz not null default clock_timestamp(),
    primary key (namespace, tag)
);
create index checkpoint_tags_checkpoint on checkpoint_tags (checkpoint_id);

-- The workspace that a turn without success left, kept for a set time. Never a recovery point.
create table salvages (
    id                   uuid primary key,
    namespace            text not null references namespaces,
    session_id           uuid not null references sessions,
    turn_id              uuid not null references turns,
    run_id               uuid not null unique references runs,
    class                text not null,
    manifest             bytea not null check (octet_length(manifest) = 32),
    native_conversation  text,
    stats                jsonb not null default '{}',
    stored_bytes         bigint not null default 0,
    created_at           timestamptz not null default clock_timestamp(),
    expires_at           timestamptz not null
);
create index salvages_session on salvages (session_id, created_at);
create index salvages_expiry on salvages (expires_at);

-- A pack's bytes lie in the row, or at `place` in the bucket; `key_id` names the key that they are sealed with.
alter table packs
    add column place text,
    add column key_id text,
    alter column body drop not null,
    add constraint packs_somewhere check ((body is null) = (place is not null));
create index packs_wanted on packs (namespace, wanted_at);
-- Sealed, an object may be longer than it was.
alter table objects drop constraint objects_check;
