-- Holdfast: sessions, turns, runs, leases, checkpoints, outbox.
-- Postgres is the truth and the backlog; RabbitMQ carries ids as wake-ups. Every non-terminal head turn is in flight
-- under a live lease, or has an outbox row, or is announced in the current broker epoch, or is found by polling.
-- Lock order: session, binding, turn, run, outbox. All transactions are READ COMMITTED and short.

create table namespaces (
    name        text primary key check (name ~ '^[a-z0-9][a-z0-9._-]{0,62}$'),
    created_at  timestamptz not null default now()
);
insert into namespaces (name) values ('default');

-- One row: what makes this database's computers, networks and messages its own on shared engines and brokers.
create table installation (
    one   boolean primary key default true check (one),
    id    uuid not null default gen_random_uuid()
);
insert into installation default values;

-- An agent is a name with versions; the newest version is used by turns submitted from then on.
create table agents (
    namespace   text not null references namespaces,
    name        text not null,
    version     int  not null,
    spec        jsonb not null,
    digest      text not null,
    created_at  timestamptz not null default now(),
    primary key (namespace, name, version)
);

-- Queues are shared by all namespaces. `broker_epoch` grows whenever the broker's queue had to be made anew:
-- announcements of older epochs are void.
create table queues (
    name          text primary key,
    revision      int not null,
    paused        boolean not null default false,
    broker_epoch  bigint not null default 1,
    updated_at    timestamptz not null default now()
);
create table queue_policies (
    queue       text not null references queues,
    revision    int not null,
    policy      jsonb not null,
    created_at  timestamptz not null default now(),
    primary key (queue, revision)
);

-- Folded counts of queued turns, and the deltas not folded yet. Turn transactions only ever insert.
create table queue_depths (
    queue   text primary key references queues,
    queued  bigint not null default 0
);
create table queue_depth_deltas (
    id      bigint generated always as identity primary key,
    queue   text not null,
    delta   int not null
);

-- The session row is the mutex of the session: whoever ends, retries, cancels or rewinds locks it first.
create table sessions (
    id                   uuid primary key,
    namespace            text not null references namespaces,
    name                 text not null,
    agent                text not null,
    harness              text not null,
    state                text not null default 'open' check (state in ('open', 'retired')),
    next_seq             int not null default 1,
    recovery_point       uuid,
    native_conversation  text,
    created_at           timestamptz not null default now(),
    updated_at           timestamptz not null default now(),
    unique (namespace, name)
) with (fillfactor = 70);

create table batches (
    id          uuid primary key,
    namespace   text not null references namespaces,
    source      text,
    state       text not null default 'loading' check (state in ('loading', 'open', 'cancelled')),
    total       int not null default 0,
    metadata    jsonb not null default '{}',
    created_at  timestamptz not null default now()
);

create table turns (
    id               uuid primary key,
    namespace        text not null,
    session_id       uuid not null references sessions,
    -- null only for turns waiting for admission
    seq              int,
    queue            text not null references queues,
    policy_revision  int not null,
    agent            text not null,
    agent_version    int not null,
    batch_id         uuid references batches,
    priority         smallint not null default 1 check (priority between 0 and 2),
    prompt           text not null,
    metadata         jsonb not null default '{}',
    idempotency_key  text,
    content_hash     bytea not null check (octet_length(content_hash) = 32),
    redrive_of       uuid,
    state            text not null check (state in
                       ('queued', 'starting', 'running', 'saving', 'stopping', 'succeeded', 'failed', 'dead', 'cancelled')),
    class            text,
    error            text,
    -- true for the one turn of the session that may run; set under the session row
    head             boolean not null default false,
    due_at           timestamptz not null default now(),
    announced_at     timestamptz,
    announced_epoch  bigint,
    run_id           uuid,
    runs             int not null default 0,
    attempts         int not null default 0,
    setup_attempts   int not null default 0,
    deaths           int not null default 0,
    cancel_requested_at timestamptz,
    limited_since    timestamptz,
    submitted_at     timestamptz not null default now(),
    started_at       timestamptz,
    ended_at         timestamptz,
    unique (session_id, seq),
    check ((state in ('failed', 'dead')) = (class is not null) or state = 'queued' or state = 'cancelled'),
    check ((state in ('succeeded', 'failed', 'dead', 'cancelled')) = (ended_at is not null)),
    check (state not in ('starting', 'running', 'saving', 'stopping') or (run_id is not null and head))
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
create unique index turns_key on turns (namespace, idempotency_key) where idempotency_key is not null;
create unique index turns_one_head on turns (session_id) where head;
create index turns_open on turns (session_id, seq) where state not in ('succeeded', 'failed', 'dead', 'cancelled');
create index turns_due on turns (queue, priority desc, due_at, id) where state = 'queued' and head;
create index turns_active on turns (queue) where state in ('starting', 'running', 'saving', 'stopping');
create index turns_announced on turns (queue, announced_epoch) where state = 'queued' and head and announced_at is not null;
-- turns of a batch that is still loading wait until then
create index turns_unreleased on turns (batch_id, id) where state = 'queued' and due_at = '9999-12-31 00:00:00+00';
create index turns_batch on turns (batch_id, seq) where batch_id is not null;
create index turns_recent on turns (namespace, submitted_at desc);

-- One process of holdfast-worker. The heartbeat is this one row for all of its leases.
create table workers (
    id               uuid primary key,
    host             text not null,
    engine_id        text not null,
    version          text not null,
    slots            int not null,
    -- key of the advisory lock that its dedicated connection holds; null = lease time alone decides
    liveness_key     bigint,
    -- server incarnation in which the lock was taken: system id, timeline, start of the postmaster
    incarnation      text,
    state            text not null default 'active' check (state in ('active', 'draining', 'stopped')),
    started_at       timestamptz not null default clock_timestamp(),
    heartbeat_at     timestamptz not null default clock_timestamp(),
    lease_until      timestamptz not null
) with (fillfactor = 50);

-- The lease row of a session, made on first use.
create table sandbox_bindings (
    session_id          uuid primary key references sessions,
    fence               bigint not null default 0,
    lease_token         uuid,
    worker_id           uuid references workers,
    state               text not null default 'free' check (state in ('free', 'held', 'parking')),
    turn_id             uuid,
    run_id              uuid,
    granted_at          timestamptz,
    -- the computer of the session, if it has one
    provider            text,
    engine_id           text,
    generation          int not null default 0,
    computer_name       text,
    creation_nonce      uuid,
    spec_digest         text,
    condemned           boolean not null default false,
    -- set by commit only, cleared by claim: the checkpoint at which the computer was parked
    warm_at_checkpoint  uuid,
    warm_until          timestamptz,
    updated_at          timestamptz not null default clock_timestamp(),
    check ((state = 'free') = (lease_token is null)),
    check ((lease_token is null) = (worker_id is null))
) with (fillfactor = 70);
create index sandbox_bindings_worker on sandbox_bindings (worker_id) where worker_id is not null;
create index sandbox_bindings_warm on sandbox_bindings (engine_id, warm_until) where warm_at_checkpoint is not null;

-- Computers that no lease points at any more; each is destroyed by a worker of its own engine.
create table retired_computers (
    computer_name  text primary key,
    engine_id      text not null,
    provider       text not null,
    session_id     uuid not null,
    generation     int not null,
    reason         text not null,
    retired_at     timestamptz not null default clock_timestamp(),
    gone_at        timestamptz
);
create index retired_computers_open on retired_computers (engine_id) where gone_at is null;

-- A run is one start of the harness; its id is stable while several leases hold it in turn.
create table runs (
    id                   uuid primary key,
    turn_id              uuid not null references turns,
    session_id           uuid not null,
    ordinal              int not null,
    state                text not null check (state in ('starting', 'running', 'saving', 'succeeded', 'failed', 'cancelled')),
    -- the lease that may write here; compared by every write
    fence                bigint not null,
    lease_token          uuid not null,
    worker_id            uuid not null,
    leases               int not null default 1,
    generation           int not null,
    engine_id            text not null,
    warm                 boolean not null,
    parent_checkpoint    uuid,
    -- the transcript id this run begins, if it is the first
    new_native           uuid not null,
    next_cursor          bigint not null default 0,
    -- where the events ended when a worker last died on the run
    death_cursor         bigint not null default -1,
    event_bytes          bigint not null default 0,
    class                text,
    error                text,
    retry_at             timestamptz,
    burned               boolean,
    outcome              jsonb,
    usage                jsonb,
    stats                jsonb,
    phases_ms            jsonb not null default '{}',
    native_conversation  text,
    checkpoint_id        uuid,
    claimed_at           timestamptz not null default clock_timestamp(),
    harness_started_at   timestamptz,
    deadline_at          timestamptz,
    ended_at             timestamptz,
    unique (turn_id, ordinal),
    check ((state in ('succeeded', 'failed', 'cancelled')) = (ended_at is not null))
) with (fillfactor = 70);

-- Immutable per run: what a finished harness left, before anything else is touched, and the checkpoint made of it.
create table run_stages (
    run_id      uuid not null references runs,
    kind        text not null check (kind in ('result', 'checkpoint')),
    body        jsonb not null,
    created_at  timestamptz not null default clock_timestamp(),
    primary key (run_id, kind)
);

-- Events in batches: MessagePack array of journal events, zstd. Cursors have no gaps and no overlaps within a run.
create table run_events (
    run_id       uuid not null references runs,
    from_cursor  bigint not null,
    next_cursor  bigint not null,
    body         bytea not null,
    created_at   timestamptz not null default clock_timestamp(),
    primary key (run_id, from_cursor),
    check (next_cursor > from_cursor)
);
alter table run_events alter column body set storage external;

create table checkpoints (
    id                   uuid primary key,
    namespace            text not null references namespaces,
    session_id           uuid not null references sessions,
    turn_id              uuid not null references turns,
    run_id               uuid not null references runs,
    parent               uuid references checkpoints,
    manifest             bytea not null check (octet_length(manifest) = 32),
    native_conversation  text not null,
    state                text not null default 'staged' check (state in ('staged', 'committed')),
    stats                jsonb not null default '{}',
    stored_bytes         bigint not null default 0,
    created_at           timestamptz not null default clock_timestamp(),
    committed_at         timestamptz,
    check ((state = 'committed') = (committed_at is not null))
);
create index checkpoints_session on checkpoints (session_id, created_at);
-- A chain: each checkpoint has at most one committed successor within its session.
create unique index checkpoints_chain on checkpoints (session_id, parent) nulls not distinct where state = 'committed';
alter table sessions add foreign key (recovery_point) references checkpoints;

-- Wake-ups to publish. Rows are immutable but for their publishing lease, and removed by id.
create table outbox (
    id            bigint generated always as identity primary key,
    queue         text not null,
    turn_id       uuid not null,
    due_at        timestamptz not null default now(),
    leased_until  timestamptz,
    created_at    timestamptz not null default now()
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
create index outbox_due on outbox (queue, due_at, id);

-- Deliveries that could not be decoded or named no turn of ours.
create table dead_deliveries (
    id           bigint generated always as identity primary key,
    queue        text not null,
    reason       text not null,
    body         bytea not null,
    received_at  timestamptz not null default clock_timestamp()
);
