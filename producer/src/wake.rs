//! Sends the wake-ups of what was just submitted, while the window has room. Writes outbox rows and announcements of
//! these turns. Nothing here is needed for the turn to run: a crash or a dead broker leaves it to the workers' relay.

use std::time::Duration;

use holdfast_protocol::TurnId;
use holdfast_shared::db::Db;
use holdfast_shared::db::scheduling::rank::Announcement;
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
    if let Some(place) = db.may_announce(queue, accepted.turn, window).await? {
        let (not_sent, epoch) = publish(context, db, queue, vec![accepted.turn], place.epoch).await?;
        if not_sent.is_empty() {
            db.mark_announced(accepted.turn, Announcement { epoch, ..place }).await?;
            db.delete_outbox(&[outbox]).await?;
            return Ok(());
        }
    }
    db.release_outbox(&[outbox]).await?;
    Ok(())
}

/// Announces the heads of these queues that go first.
pub async fn queues(context: &Context, queues: impl IntoIterator<Item = &String>) -> Result<(), Stop> {
    let db = context.db().await?;
    let window = db.window().await?;
    for queue in queues {
        let heads = db.announce_candidates(queue, window).await?;
        let Some(marked) = heads.first().map(|head| head.epoch) else { continue };
        let turns: Vec<TurnId> = heads.iter().map(|head| head.turn).collect();
        let (not_sent, epoch) = publish(context, db, queue, turns.clone(), marked).await?;
        if !not_sent.is_empty() {
            db.not_announced(&not_sent).await?;
        }
        if epoch != marked {
            // The queue was made anew in between: the marks are to say so.
            for turn in turns.into_iter().filter(|turn| !not_sent.contains(turn)) {
                db.mark_announced(turn, Announcement { epoch, rank: 0 }).await?;
            }
        }
    }
    Ok(())
}

/// Those that were not confirmed, and the epoch in which the others were sent. Some are not confirmed only if the broker
/// is down, and then it is no error.
async fn publish(
    context: &Context,
    db: &Db,
    queue: &str,
    turns: Vec<TurnId>,
    epoch: i64,
) -> Result<(Vec<TurnId>, i64), Stop> {
    let all = turns.clone();
    let (not_sent, epoch, trouble) =
        match tokio::time::timeout(PATIENCE, send_all(context, db, queue, turns, epoch)).await {
            Ok(Ok((sent, epoch))) => (sent.not_sent, epoch, sent.error.map(|error| chain(&error))),
            Ok(Err(why)) => (all, epoch, Some(why)),
            Err(_) => (all, epoch, Some(format!("no answer in {}s", PATIENCE.as_secs()))),
        };
    if let Some(why) = trouble.filter(|_| context.verbose) {
        printer::hint(&format!("no wake-up was sent ({why}); the workers find the turn by themselves"));
    }
    Ok((not_sent, epoch))
}

async fn send_all(
    context: &Context,
    db: &Db,
    queue: &str,
    turns: Vec<TurnId>,
    mut epoch: i64,
) -> Result<(Sent, i64), String> {
    let publisher = Publisher::connect(context.config.amqp_url.reveal()).await.map_err(|e| chain(&e))?;
    let wakes = |turns: &[TurnId], epoch| turns.iter().map(|turn| WakeUp::new(*turn, queue, epoch)).collect();
    let mut sent = send(&publisher, wakes(&turns, epoch)).await;
    if sent.returned > 0 {
        // The broker has no such queue: what was announced before is gone with it.
        epoch = db.bump_epoch(queue).await.map_err(|e| chain(&e))?;
        publisher.declare(queue).await.map_err(|e| chain(&e))?;
        sent = send(&publisher, wakes(&turns, epoch)).await;
    }
    publisher.close().await;
    Ok((sent, epoch))
}
