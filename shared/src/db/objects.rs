//! Rows of `packs` and `objects`. Whoever has an object may write it: a name is the hash of the content, so writing is
//! idempotent and needs no fence. A pack and its objects are one statement: a crash leaves both or nothing. What no
//! checkpoint reaches is harmless until it is collected.

use super::{Db, Result};

/// Ids per statement.
const BATCH: usize = 8_192;

/// A pack that is to be written.
pub struct PackRow {
    pub raw_bytes: i64,
    pub body: Vec<u8>,
    /// In byte order of the ids, so that two writers lock alike.
    pub objects: Vec<Placed>,
}

/// An object's place in its pack.
pub struct Placed {
    pub id: [u8; 32],
    pub kind: i16,
    pub at: i32,
    pub len: i32,
    pub raw_len: i32,
}

/// An object as it was found.
#[derive(sqlx::FromRow)]
pub struct Found {
    pub id: Vec<u8>,
    pub kind: i16,
    pub raw_len: i32,
    pub bytes: Vec<u8>,
}

/// Which of these exist. Marks their packs as wanted first, so that what is found here is not collected while its finder
/// builds upon it.
pub async fn present(db: &Db, namespace: &str, ids: &[[u8; 32]]) -> Result<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    for ids in ids.chunks(BATCH) {
        let ids: Vec<&[u8]> = ids.iter().map(<[u8; 32]>::as_slice).collect();
        sqlx::query(
            "update packs set wanted_at = clock_timestamp()
             where id in (select pack_id from objects where namespace = $1 and id = any($2))
               and wanted_at < clock_timestamp() - interval '1 hour'",
        )
        .bind(namespace)
        .bind(&ids)
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
pub async fn insert_pack(db: &Db, namespace: &str, pack: PackRow) -> Result<i64> {
    let column = |of: fn(&Placed) -> i32| pack.objects.iter().map(of).collect::<Vec<i32>>();
    let (pack_id, written): (i64, i64) = sqlx::query_as(
        "with pack as (
             insert into packs (namespace, raw_bytes, body) values ($1, $2, $3) returning id
         ), written as (
             insert into objects (namespace, id, kind, pack_id, at, len, raw_len)
             select $1, o.id, o.kind, pack.id, o.at, o.len, o.raw_len
             from pack, unnest($4::bytea[], $5::smallint[], $6::int[], $7::int[], $8::int[])
                        as o (id, kind, at, len, raw_len)
             order by o.id
             on conflict (namespace, id) do nothing
             returning 1
         )
         select (select id from pack), (select count(*) from written)",
    )
    .bind(namespace)
    .bind(pack.raw_bytes)
    .bind(&pack.body)
    .bind(pack.objects.iter().map(|object| object.id.as_slice()).collect::<Vec<_>>())
    .bind(pack.objects.iter().map(|object| object.kind).collect::<Vec<i16>>())
    .bind(column(|object| object.at))
    .bind(column(|object| object.len))
    .bind(column(|object| object.raw_len))
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

/// Those of the objects that exist, in any order, compressed as they were written.
pub async fn read(db: &Db, namespace: &str, ids: &[[u8; 32]]) -> Result<Vec<Found>> {
    let ids: Vec<&[u8]> = ids.iter().map(<[u8; 32]>::as_slice).collect();
    Ok(sqlx::query_as(
        "select o.id, o.kind, o.raw_len, substring(p.body from o.at + 1 for o.len) as bytes
         from objects o join packs p on p.id = o.pack_id
         where o.namespace = $1 and o.id = any($2)",
    )
    .bind(namespace)
    .bind(&ids)
    .fetch_all(db.pool())
    .await?)
}
