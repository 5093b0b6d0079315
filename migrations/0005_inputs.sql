-- What comes with a turn beside its prompt, what a session began with, and the commands that were run around a turn.

-- Attached files by the hash of their content: the same file attached to a thousand turns is stored once.
create table input_files (
    namespace  text not null references namespaces,
    sha256     bytea not null check (octet_length(sha256) = 32),
    size       bigint not null check (size >= 0),
    body       bytea not null,
    stored_at  timestamptz not null default clock_timestamp(),
    primary key (namespace, sha256),
    check (octet_length(body) = size)
);

-- Files, repository and checks of the turn as they were asked for; null = the prompt alone.
alter table turns add column inputs jsonb;

-- The repository that the session's first turn was given, with its pinned commit.
alter table sessions add column repository jsonb;

-- Setup and verify commands of a run, with their output.
create table run_commands (
    run_id       uuid not null references runs,
    kind         text not null check (kind in ('setup', 'verify')),
    ordinal      int not null,
    script       text not null,
    exit_code    int,
    signal       int,
    cut          text check (cut in ('timeout', 'lease_ended')),
    output       text not null,
    duration_ms  bigint not null,
    ended_at     timestamptz not null default clock_timestamp(),
    primary key (run_id, kind, ordinal)
);
