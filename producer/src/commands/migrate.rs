//! `holdfast migrate`: brings the schema up to date. Safe to repeat and to run at several places at once; a crash leaves
//! the last whole migration.

use holdfast_shared::db::catalog::DEFAULT_QUEUE;

use crate::context::Context;
use crate::printer;
use crate::stop::Stop;

pub async fn run(context: &Context) -> Result<(), Stop> {
    let db = context.db().await?;
    db.migrate().await?;
    db.ensure_queue(DEFAULT_QUEUE).await?;
    printer::say(format!("the schema of {} is up to date", db.address()));
    Ok(())
}
