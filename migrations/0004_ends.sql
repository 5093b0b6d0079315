-- How turns end and begin beyond the plain way: tried again, submitted inside somebody's own transaction, given up while
-- loading; and what they may cost.

-- A turn is tried again by another turn, and by one only. `redrive_root` is the first of such a chain.
alter table turns add column redrive_root uuid;
create unique index turns_redrive on turns (redrive_of) where redrive_of is not null;
create index turns_unsuccessful on turns (namespace, ended_at desc) where state in ('failed', 'dead');

-- A turn submitted inside the caller's transaction names its session and is not in it yet: no row of the session is
-- touched before that transaction has committed. A tick admits it.
alter table turns alter column session_id drop not null;
alter table turns add column session_name text;
alter table turns add constraint turns_in_a_session
    check (session_id is not null or (session_name is not null and not head and state in ('queued', 'cancelled')));
create index turns_unadmitted on turns (id) where session_id is null and state = 'queued';

-- `abandoned`: its load died and nobody came back for it.
alter table batches drop constraint batches_state_check;
alter table batches add constraint batches_state_check check (state in ('loading', 'open', 'cancelled', 'abandoned'));
create index batches_loading on batches (created_at) where state = 'loading';

-- Budgets. Money is counted in billionths of a dollar, so that sums are exact.
alter table turns add column max_cost_nanos bigint check (max_cost_nanos >= 0),
                  add column max_tokens bigint check (max_tokens >= 0);
alter table batches add column max_cost_nanos bigint check (max_cost_nanos >= 0),
                    add column max_tokens bigint check (max_tokens >= 0);
alter table namespaces add column max_cost_nanos bigint check (max_cost_nanos >= 0),
                       add column max_tokens bigint check (max_tokens >= 0),
                       add column budget_period text not null default 'total'
                           check (budget_period in ('total', 'month', 'day'));

-- What a million tokens cost, in nanodollars. A name that ends with `*` stands for all names that begin so.
create table model_prices (
    model        text primary key,
    input        bigint not null check (input >= 0),
    output       bigint not null check (output >= 0),
    cache_read   bigint not null check (cache_read >= 0),
    cache_write  bigint not null check (cache_write >= 0),
    updated_at   timestamptz not null default clock_timestamp()
);

-- What each run used, event by event; the last rows of a run bring its sum to what the harness said at its end.
create table usage_ledger (
    run_id        uuid not null references runs,
    cursor        bigint not null,
    turn_id       uuid not null,
    model         text not null,
    input         bigint not null,
    output        bigint not null,
    cache_read    bigint not null,
    cache_write   bigint not null,
    -- null = nobody knows the price
    cost_nanos    bigint,
    recorded_at   timestamptz not null default clock_timestamp(),
    primary key (run_id, cursor)
);
create index usage_ledger_turn on usage_ledger (turn_id);

-- Sums of batches and namespaces, and the deltas not folded yet. Turn transactions only ever insert. The batch of turns
-- that have none is the nil uuid.
create table usage_totals (
    namespace   text not null,
    batch_id    uuid not null,
    day         date not null,
    cost_nanos  bigint not null default 0,
    tokens      bigint not null default 0,
    unpriced    bigint not null default 0,
    primary key (namespace, batch_id, day)
) with (fillfactor = 70);
create index usage_totals_batch on usage_totals (batch_id);
create table usage_deltas (
    id          bigint generated always as identity primary key,
    namespace   text not null,
    batch_id    uuid not null,
    day         date not null,
    cost_nanos  bigint not null,
    tokens      bigint not null,
    unpriced    bigint not null
);
