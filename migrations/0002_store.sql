-- Objects of checkpoints in the embedded store: few large packs, and where each object lies in them.

-- `wanted_at` says when somebody last stored or relied on something in the pack. Only packs that nobody has wanted for
-- longer than any capture lasts, and that no checkpoint reaches, may be removed.
create table packs (
    id          bigint generated always as identity primary key,
    namespace   text not null references namespaces,
    raw_bytes   bigint not null,
    body        bytea not null,
    created_at  timestamptz not null default clock_timestamp(),
    wanted_at   timestamptz not null default clock_timestamp()
);
alter table packs alter column body set storage external;

-- `at` and `len` are the place in the pack's body; each object is compressed by itself, or kept raw where `len = raw_len`.
create table objects (
    namespace  text not null,
    id         bytea not null check (octet_length(id) = 32),
    kind       smallint not null check (kind in (0, 1, 2)),
    pack_id    bigint not null references packs,
    at         int not null,
    len        int not null,
    raw_len    int not null check (raw_len >= len),
    primary key (namespace, id)
);
create index objects_pack on objects (pack_id);
