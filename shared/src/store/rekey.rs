//! Writes everything anew that is not sealed with the key in front (or at all, if there is none). A pack at a time: its new
//! bytes are written, then its rows change in one transaction, then its old bytes go. Stopped anywhere it can be given
//! again; readers see the old pack or the new one.

use holdfast_protocol::object::Object;

use super::StoreError;
use super::pack::{PackStore, blocking};
use super::read::unpack;
use crate::db::gc::Cut;
use crate::db::objects::{self, Found, PackBody};

/// What a `rekey` did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rekeyed {
    pub packs: u64,
    pub bytes: u64,
}

/// Seals a namespace with the key in front. `progress` hears of every pack.
pub async fn rekey(
    store: &PackStore,
    namespace: &str,
    progress: &mut (dyn FnMut(Rekeyed) + Send),
) -> Result<Rekeyed, StoreError> {
    let mut done = Rekeyed::default();
    let mut after = 0;
    loop {
        let packs = objects::packs_of_other_keys(&store.db, namespace, store.sealing(), after).await?;
        let Some((last, _)) = packs.last() else { return Ok(done) };
        after = *last;
        for (pack, place) in packs {
            let rows = objects::read_pack(&store.db, pack).await?;
            if let Some(bytes) = store.rewrite(namespace, pack, place.as_deref(), rows, None).await? {
                done.packs += 1;
                done.bytes += bytes;
                progress(done);
            }
        }
    }
}

impl PackStore {
    /// Writes a pack anew with these of its objects. `None` = it was wanted after the cut, or is gone.
    pub(super) async fn rewrite(
        &self,
        namespace: &str,
        pack: i64,
        place: Option<&str>,
        mut rows: Vec<Found>,
        cut: Option<Cut>,
    ) -> Result<Option<u64>, StoreError> {
        self.bodies.fill(&mut rows).await?;
        let (keys, space, store) = (self.keys.clone(), namespace.to_owned(), self.clone());
        let packs = blocking(move || {
            let objects = rows.into_iter().map(|row| unpack(row, &keys, &space)).collect::<Result<Vec<Object>, _>>()?;
            Ok::<_, StoreError>(store.packs(&space, objects))
        })
        .await??;
        // One pack stays one pack, whatever its new size.
        let Some(new) = merged(packs) else { return Ok(Some(0)) };
        let bytes = new.body.len() as u64;
        let row = new.write(&self.bodies, namespace).await?;
        let changed = objects::replace_pack(&self.db, namespace, pack, &row, cut).await;
        let unused = match (&changed, &row.body) {
            (Ok(true), _) => place,
            (_, PackBody::Place(new)) => Some(new.as_str()),
            (_, PackBody::Row(_)) => None,
        };
        if let Some(place) = unused {
            let _ = self.bodies.remove(place).await;
        }
        Ok(changed?.then_some(bytes))
    }
}

fn merged(mut packs: Vec<super::pack::Packed>) -> Option<super::pack::Packed> {
    let mut first = if packs.is_empty() { return None } else { packs.remove(0) };
    packs.into_iter().for_each(|pack| first.append(pack));
    Some(first)
}
