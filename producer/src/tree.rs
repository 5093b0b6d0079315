//! Files of a recovery point, read from the store. Writes only the file that `export` is asked for.

use holdfast_protocol::SessionId;

use crate::context::Context;
use crate::resolve;
use crate::stop::Stop;

pub async fn files(context: &Context, session: &str, _path: Option<&str>) -> Result<(), Stop> {
    let session = resolve::session(context, session).await?;
    let _ = context.db().await?.recovery_point(SessionId(session.id)).await?;
    Err(Stop::failed("not in this version"))
}

pub async fn export(context: &Context, session: &str, _out: &str) -> Result<(), Stop> {
    let session = resolve::session(context, session).await?;
    let _ = context.db().await?.recovery_point(SessionId(session.id)).await?;
    Err(Stop::failed("not in this version"))
}
