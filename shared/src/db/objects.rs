//! Rows of `packs` and `objects`. Whoever has an object may write it: a name is the hash of the content, so writing is
//! idempotent and needs no fence. A pack and its objects are one statement: a crash leaves both or nothing. What no
//! checkpoint reaches is harmless until it is collected.

use std::time::Duration;

use super::gc::Cut;
use super::{Db, DbError, Result};

/// Ids per statement.
const BATCH: usize = 8_192;

/// A pack that is to be written.
pub struct PackRow {
    pub raw_bytes: i64,
    pub body: PackBody,
    /// The key that every object of it is sealed with.
    pub key_id: Option<String>,
    /// In byte order of the ids, so that two writers lock alike.
    pub objects: Vec<Placed>,
}

/// Where a pack's bytes are.
pub enum PackBody {
    Row(Vec<u8>),
    /// In the bucket already.
    Place(String),
}

/// An object's place in its pack.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    pub id: [u8; 32],
    pub kind: i16,
    pub at: i32,
    pub len: i32,
    pub raw_len: i32,
}

/// An object as it was found.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Found {
    pub id: Vec<u8>,
    pub kind: i16,
    pub at: i32,
    pub len: i32,
    pub raw_len: i32,
    pub key_id: Option<String>,
    pub place: Option<String>,
    /// Its bytes, where the pack lies in the row.
    pub bytes: Option<Vec<u8>>,
}

/// What is known of an object without its bytes.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Known {
    pub id: Vec<u8>,
    pub kind: i16,
    pub raw_len: i32,
    /// The pack's own bytes reach as far as the object does; unknown where they lie in a bucket.
    pub whole: Option<bool>,
    pub place: Option<String>,
    pub ends_at: i64,
}

/// Which of these exist. Marks their packs as wanted first, so that what is found here is not collected while its finder
/// builds upon it. A mark that is younger than a part of the grace time is young enough.
pub async fn present(db: &Db, namespace: &str, ids: &[[u8; 32]], grace: Duration) -> Result<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    for ids in ids.chunks(BATCH) {
        let ids: Vec<&[u8]> = ids.iter().map(<[u8; 32]>::as_slice).collect();
        sqlx::query(
            "update packs set wanted_at = clock_timestamp()
             where id in (select pack_id from objects where namespace = $1 and id = any($2))
               and wanted_at < clock_timestamp() - $3 * interval '1 second'",
        )
        .bind(namespace)
        .bind(&ids)
        .bind(grace.as_secs_f64() / 24.0)
        .execute(db.pool())
        .await?;
        let rows: Vec<Vec<u8>> = sqlx::query_scalar("select id from objects where namespace = $1 and id = any($2)")
            .bind(namespace)
            .bind(&ids)
            .fetch_all(db.pool())
            .await?;
        found.extend(rows);
    }
    Ok(found)
}

/// Writes a pack and those of its objects that are still missing; gives their number. A pack of which nothing was missing
/// (another writer was faster) is removed again.
pub async fn insert_pack(db: &Db, namespace: &str, pack: &PackRow) -> Result<i64> {
    let (pack_id, written): (i64, i64) = bind(
        sqlx::query_as(
            "with pack as (
                 insert into packs (namespace, raw_bytes, body, place, key_id) values ($1, $2, $3, $4, $5) returning id
             ), written as (
                 insert into objects (namespace, id, kind, pack_id, at, len, raw_len)
                 select $1, o.id, o.kind, pack.id, o.at, o.len, o.raw_len
                 from pack, unnest($6::bytea[], $7::smallint[], $8::int[], $9::int[], $10::int[])
                            as o (id, kind, at, len, raw_len)
                 order by o.id
                 on conflict (namespace, id) do nothing
                 returning 1
             )
             select (select id from pack), (select count(*) from written)",
        ),
        namespace,
        pack,
    )
    .fetch_one(db.pool())
    .await?;
    if written == 0 {
        sqlx::query("delete from packs where id = $1 and not exists (select from objects where pack_id = $1)")
            .bind(pack_id)
            .execute(db.pool())
            .await?;
    }
    Ok(written)
}

/// Puts a new pack in the place of an old one; objects of the old one that the new one does not hold are removed.
/// `false` = somebody wanted the old pack after the cut, or it is gone: nothing changed.
pub async fn replace_pack(db: &Db, namespace: &str, old: i64, pack: &PackRow, cut: Option<Cut>) -> Result<bool> {
    let mut tx = db.pool().begin().await?;
    let held: Option<(i64,)> =
        sqlx::query_as("select id from packs where id = $1 and ($2::timestamptz is null or wanted_at < $2) for update")
            .bind(old)
            .bind(cut.map(Cut::at))
            .fetch_optional(&mut *tx)
            .await?;
    if held.is_none() {
        return Ok(false);
    }
    let (moved,): (i64,) = bind(
        sqlx::query_as(
            "with pack as (
                 insert into packs (namespace, raw_bytes, body, place, key_id) values ($1, $2, $3, $4, $5) returning id
             ), moved as (
                 update objects set pack_id = pack.id, at = o.at, len = o.len
                 from pack, unnest($6::bytea[], $7::smallint[], $8::int[], $9::int[], $10::int[])
                            as o (id, kind, at, len, raw_len)
                 where objects.namespace = $1 and objects.id = o.id and objects.pack_id = $11 returning 1
             )
             select count(*) from moved",
        ),
        namespace,
        pack,
    )
    .bind(old)
    .fetch_one(&mut *tx)
    .await?;
    if moved != pack.objects.len() as i64 {
        return Err(DbError::Refused("a pack changed while it was written anew".to_owned()));
    }
    sqlx::query("delete from objects where pack_id = $1").bind(old).execute(&mut *tx).await?;
    sqlx::query("delete from packs where id = $1").bind(old).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(true)
}

type Query<'q, T> = sqlx::query::QueryAs<'q, sqlx::Postgres, T, sqlx::postgres::PgArguments>;

/// Parameters 1 to 10 of a statement that writes a pack.
fn bind<'q, T>(query: Query<'q, T>, namespace: &'q str, pack: &'q PackRow) -> Query<'q, T> {
    let column = |of: fn(&Placed) -> i32| pack.objects.iter().map(of).collect::<Vec<i32>>();
    let (body, place) = match &pack.body {
        PackBody::Row(body) => (Some(body.as_slice()), None),
        PackBody::Place(place) => (None, Some(place.as_str())),
    };
    query
        .bind(namespace)
        .bind(pack.raw_bytes)
        .bind(body)
        .bind(place)
        .bind(&pack.key_id)
        .bind(pack.objects.iter().map(|object| object.id.as_slice()).collect::<Vec<_>>())
        .bind(pack.objects.iter().map(|object| object.kind).collect::<Vec<i16>>())
        .bind(column(|object| object.at))
        .bind(column(|object| object.len))
        .bind(column(|object| object.raw_len))
}

/// Those of the objects that exist, in any order, as they were written.
pub async fn read(db: &Db, namespace: &str, ids: &[[u8; 32]]) -> Result<Vec<Found>> {
    let ids: Vec<&[u8]> = ids.iter().map(<[u8; 32]>::as_slice).collect();
    Ok(sqlx::query_as(
        "select o.id, o.kind, o.at, o.len, o.raw_len, p.key_id, p.place,
                substring(p.body from o.at + 1 for o.len) as bytes
         from objects o join packs p on p.id = o.pack_id
         where o.namespace = $1 and o.id = any($2)",
    )
    .bind(namespace)
    .bind(&ids)
    .fetch_all(db.pool())
    .await?)
}

/// Every object of one pack, as it was written.
pub async fn read_pack(db: &Db, pack: i64) -> Result<Vec<Found>> {
    Ok(sqlx::query_as(
        "select o.id, o.kind, o.at, o.len, o.raw_len, p.key_id, p.place,
                substring(p.body from o.at + 1 for o.len) as bytes
         from objects o join packs p on p.id = o.pack_id where p.id = $1 order by o.id",
    )
    .bind(pack)
    .fetch_all(db.pool())
    .await?)
}

/// What the index says of these, without their bytes.
pub async fn known(db: &Db, namespace: &str, ids: &[[u8; 32]]) -> Result<Vec<Known>> {
    let mut found = Vec::with_capacity(ids.len());
    for ids in ids.chunks(BATCH) {
        let ids: Vec<&[u8]> = ids.iter().map(<[u8; 32]>::as_slice).collect();
        let rows: Vec<Known> = sqlx::query_as(
            "select o.id, o.kind, o.raw_len, octet_length(p.body) >= o.at + o.len as whole, p.place,
                    o.at::bigint + o.len as ends_at
             from objects o join packs p on p.id = o.pack_id where o.namespace = $1 and o.id = any($2)",
        )
        .bind(namespace)
        .bind(&ids)
        .fetch_all(db.pool())
        .await?;
        found.extend(rows);
    }
    Ok(found)
}

/// Packs that are not sealed with this key (`None` = not sealed), in the order of their ids.
pub async fn packs_of_other_keys(
    db: &Db,
    namespace: &str,
    key: Option<&str>,
    after: i64,
) -> Result<Vec<(i64, Option<String>)>> {
    Ok(sqlx::query_as(
        "select id, place from packs where namespace = $1 and key_id is distinct from $2 and id > $3 order by id limit 64",
    )
    .bind(namespace)
    .bind(key)
    .bind(after)
    .fetch_all(db.pool())
    .await?)
}

/// Names of all namespaces.
pub async fn namespaces(db: &Db) -> Result<Vec<String>> {
    Ok(sqlx::query_scalar("select name from namespaces order by name").fetch_all(db.pool()).await?)
}
