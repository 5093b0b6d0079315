//! Sends the wake-ups of what was just submitted, while the window has room. Writes outbox rows and announcements of
//! these turns. Nothing here is needed for the turn to run: a crash or a dead broker leaves it to the workers' relay.

use std::time::Duration;

use holdfast_protocol::TurnId;
use holdfast_shared::db::Db;
use holdfast_shared::db::submit::Accepted;
use holdfast_shared::queue::{Publisher, Sent, WakeUp, send};

use crate::context::Context;
use crate::printer;
use crate::stop::{Stop, chain};

/// Longest wait for the broker; the submission is safe already.
const PATIENCE: Duration = Duration::from_secs(3);

/// Announces one accepted turn, if it may run now.
pub async fn turn(context: &Context, queue: &str, accepted: &Accepted) -> Result<(), Stop> {
    let Some(outbox) = accepted.outbox else { return Ok(()) };
    let db = context.db().await?;
    let window = db.window().await?;
    if let Some(place) = db.may_announce(queue, accepted.turn, window).await?
        && publish(context, db, queue, vec![accepted.turn], place.epoch).await?.is_empty()
    {
        db.mark_announced(accepted.turn, place).await?;
        db.delete_outbox(&[outbox]).await?;
    } else {
        db.release_outbox(&[outbox]).await?;
    }
    Ok(())
}

/// Announces the heads of these queues that go first.
pub async fn queues(context: &Context, queues: impl IntoIterator<Item = &String>) -> Result<(), Stop> {
    let db = context.db().await?;
    let window = db.window().await?;
    for queue in queues {
        let heads = db.announce_candidates(queue, window).await?;
        let Some(epoch) = heads.first().map(|head| head.epoch) else { continue };
        let turns = heads.iter().map(|head| head.turn).collect();
        let not_sent = publish(context, db, queue, turns, epoch).await?;
        if !not_sent.is_empty() {
            db.not_announced(&not_sent).await?;
        }
    }
    Ok(())
}

/// Those that were not confirmed; some only if the broker is down or has no such queue, and then it is no error.
async fn publish(context: &Context, db: &Db, queue: &str, turns: Vec<TurnId>, epoch: i64) -> Result<Vec<TurnId>, Stop> {
    let all = turns.clone();
    let (not_sent, trouble) = match tokio::time::timeout(PATIENCE, send_all(context, db, queue, turns, epoch)).await {
        Ok(Ok(sent)) => (sent.not_sent, sent.error.map(|error| chain(&error))),
        Ok(Err(why)) => (all, Some(why)),
        Err(_) => (all, Some(format!("no answer in {}s", PATIENCE.as_secs()))),
    };
    if let Some(why) = trouble.filter(|_| context.verbose) {
        printer::hint(&format!("no wake-up was sent ({why}); the workers find the turn by themselves"));
    }
    Ok(not_sent)
}

async fn send_all(context: &Context, db: &Db, queue: &str, turns: Vec<TurnId>, epoch: i64) -> Result<Sent, String> {
    let publisher = Publisher::connect(context.config.amqp_url.reveal()).await.map_err(|e| chain(&e))?;
    let wakes = turns.into_iter().map(|turn| WakeUp::new(turn, queue, epoch)).collect();
    let sent = send(&publisher, wakes).await;
    if sent.returned > 0 {
        // The broker has no such queue: what was announced before is gone with it, and the workers announce it anew.
        db.bump_epoch(queue).await.map_err(|e| chain(&e))?;
        publisher.declare(queue).await.map_err(|e| chain(&e))?;
    }
    publisher.close().await;
    Ok(sent)
}
