-- Events of runs by day, and how the tables that change most are kept small.
--
-- Expand only: what is inserted and read stays as it was. Rows that are there become the partition of all days up to this
-- one; the days after it are made ahead of time by the workers (`run_events_days`), and a row that finds no day goes to
-- `run_events_rest`. A batch of events is unique by the cursor of its run, which the writing statement compares and sets.

alter table run_events rename to run_events_before;
alter table run_events_before drop constraint run_events_pkey;
alter table run_events_before drop constraint run_events_run_id_fkey;

create table run_events (
    run_id       uuid not null,
    from_cursor  bigint not null,
    next_cursor  bigint not null,
    body         bytea not null,
    created_at   timestamptz not null default clock_timestamp(),
    primary key (run_id, from_cursor, created_at),
    constraint run_events_check check (next_cursor > from_cursor)
) partition by range (created_at);
alter table run_events alter column body set storage external;

do $$
begin
    execute format('alter table run_events attach partition run_events_before for values from (minvalue) to (%L)',
                   date_trunc('day', clock_timestamp() at time zone 'UTC') at time zone 'UTC' + interval '1 day');
end $$;
create table run_events_rest partition of run_events default;

-- Makes the partitions of today and the days ahead that are missing; gives how many.
create function run_events_days(ahead int) returns int language plpgsql as $$
declare
    today date := (clock_timestamp() at time zone 'UTC')::date;
    day date;
    part text;
    made int := 0;
begin
    for offset_days in 0..ahead loop
        day := today + offset_days;
        part := 'run_events_' || to_char(day, 'YYYYMMDD');
        if to_regclass(part) is null then
            begin
                execute format('create table %I (like run_events including defaults including constraints including storage)', part);
                execute format('alter table run_events attach partition %I for values from (%L) to (%L)', part,
                               day || ' 00:00:00+00', (day + 1) || ' 00:00:00+00');
                made := made + 1;
            exception
                -- The day is covered already, has rows that came before its partition, or is being made by somebody else.
                when invalid_object_definition or check_violation or duplicate_table or unique_violation then null;
            end;
        end if;
    end loop;
    return made;
end $$;
select run_events_days(2);

-- Drops the partitions of days that ended more than `keep` days ago; gives how many.
create function run_events_forget(keep int) returns int language plpgsql as $$
declare
    part record;
    dropped int := 0;
begin
    for part in
        select c.relname as name, substring(pg_get_expr(c.relpartbound, c.oid) from 'TO \(''([^'']+)''\)')::timestamptz as ends
        from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = 'run_events'::regclass and pg_get_expr(c.relpartbound, c.oid) <> 'DEFAULT'
    loop
        if part.ends < clock_timestamp() - keep * interval '1 day' then
            execute format('drop table %I', part.name);
            dropped := dropped + 1;
        end if;
    end loop;
    return dropped;
end $$;

-- Vacuumed early and often: a row of these is changed several times in the seconds of its life.
alter table sessions set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);
alter table sandbox_bindings set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);
alter table runs set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);
alter table workers set (autovacuum_vacuum_threshold = 20, autovacuum_vacuum_scale_factor = 0.1);
alter table queue_depth_deltas set (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.02);
alter table outbox set (autovacuum_vacuum_threshold = 500, autovacuum_analyze_scale_factor = 0.1);
