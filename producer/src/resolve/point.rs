//! Checkpoints and salvages as people name them: by the first digits of the id, by a tag, by `@SEQ`. Reads only.

use holdfast_protocol::{CheckpointId, ObjectId, SalvageId, SessionId};
use holdfast_shared::db::checkpoints::CheckpointRow;
use holdfast_shared::db::salvage::SalvageRow;
use holdfast_shared::db::views::{Found, SessionView};

use super::found_one;
use crate::context::Context;
use crate::stop::Stop;

/// Files that are kept.
pub enum Point {
    Checkpoint(Box<CheckpointRow>),
    Salvage(Box<SalvageRow>),
}

impl Point {
    pub fn name(&self) -> String {
        match self {
            Point::Checkpoint(row) => row.checkpoint().to_string(),
            Point::Salvage(row) => SalvageId(row.id).to_string(),
        }
    }

    pub fn manifest(&self) -> Result<ObjectId, Stop> {
        Ok(match self {
            Point::Checkpoint(row) => row.manifest()?,
            Point::Salvage(row) => row.manifest()?,
        })
    }
}

/// What `--at` means for a session; left out, its recovery point.
pub async fn point(context: &Context, session: &SessionView, at: Option<&str>) -> Result<Point, Stop> {
    match at {
        Some(text) if text.starts_with(SalvageId::PREFIX) => {
            Ok(Point::Salvage(Box::new(salvage(context, text).await?)))
        }
        Some(text) => Ok(Point::Checkpoint(Box::new(kept(checkpoint(context, Some(session), text).await?)?))),
        None => {
            let id = session.recovery_point.ok_or_else(|| {
                let name = &session.session;
                Stop::failed(format!("session `{name}` has no recovery point: no turn of it was completed yet"))
            })?;
            Ok(Point::Checkpoint(Box::new(row(context, CheckpointId(id)).await?)))
        }
    }
}

/// A checkpoint of a session, or of any where none is given.
pub async fn checkpoint(context: &Context, session: Option<&SessionView>, text: &str) -> Result<CheckpointRow, Stop> {
    let db = context.db().await?;
    let list = session.map_or("holdfast checkpoint ls".to_owned(), |session| {
        format!("holdfast checkpoint ls --session {}", session.session)
    });
    let found = db.find_checkpoint(context.namespace(), session.map(|session| SessionId(session.id)), text).await?;
    if session.is_some() && found == Found::None && text.starts_with('@') {
        let stop = Stop::bad(format!("turn {} of this session left no checkpoint", &text[1..]));
        return Err(stop.hint(format!("`{list}` lists them")));
    }
    row(context, found_one(found, "checkpoint", text, &list)?).await
}

pub async fn salvage(context: &Context, text: &str) -> Result<SalvageRow, Stop> {
    let db = context.db().await?;
    let found = db.find_salvage(context.namespace(), text).await?;
    let id = found_one(found, "salvage", text, "holdfast session salvage ls")?;
    db.salvage(id).await?.ok_or_else(|| Stop::bad(format!("the time of {id} is over")))
}

async fn row(context: &Context, id: CheckpointId) -> Result<CheckpointRow, Stop> {
    context.db().await?.checkpoint(id).await?.ok_or_else(|| Stop::bad(format!("unknown checkpoint `{id}`")))
}

fn kept(row: CheckpointRow) -> Result<CheckpointRow, Stop> {
    match row.collected_at {
        None => Ok(row),
        Some(at) => {
            let when = crate::text::at(at);
            Err(Stop::failed(format!("the files of {} are not kept any more, since {when}", row.checkpoint()))
                .hint("`holdfast checkpoint tag` keeps what should stay"))
        }
    }
}
