//! Sends the wake-ups of what was just submitted, while the window has room. Writes outbox rows and announcements of
//! these turns. Nothing here is needed for the turn to run: a crash or a dead broker leaves it to the workers' relay.

use std::time::Duration;

use holdfast_protocol::TurnId;
use holdfast_shared::db::Db;
use holdfast_shared::db::submit::Accepted;
use holdfast_shared::queue::{Published, Publisher, WakeUp};

use crate::context::Context;
use crate::printer;
use crate::stop::{Stop, chain};

/// Longest wait for the broker; the submission is safe already.
const PATIENCE: Duration = Duration::from_secs(3);

/// Announces one accepted turn, if it may run now.
pub async fn turn(context: &Context, queue: &str, accepted: &Accepted) -> Result<(), Stop> {
    let Some(outbox) = accepted.outbox else { return Ok(()) };
    let db = context.db().await?;
    if let Some(epoch) = db.may_announce(queue, accepted.turn).await?
        && publish(context, db, queue, &[accepted.turn], epoch).await? == 1
    {
        db.delete_outbox(&[outbox]).await?;
    } else {
        db.release_outbox(&[outbox]).await?;
    }
    Ok(())
}

/// Announces what the window of these queues has room for.
pub async fn queues(context: &Context, queues: impl IntoIterator<Item = &String>) -> Result<(), Stop> {
    let db = context.db().await?;
    let window = db.window().await?;
    for queue in queues {
        let room = window - db.announced(queue, window).await?;
        let candidates = if room > 0 { db.announce_candidates(queue, room).await? } else { Vec::new() };
        if let Some(first) = candidates.first() {
            let turns: Vec<TurnId> = candidates.iter().map(|candidate| candidate.turn).collect();
            publish(context, db, queue, &turns, first.epoch).await?;
        }
    }
    Ok(())
}

/// How many were confirmed; fewer only if the broker is down, and then it is no error.
async fn publish(context: &Context, db: &Db, queue: &str, turns: &[TurnId], epoch: i64) -> Result<usize, Stop> {
    let mut sent = Vec::new();
    let sending = send(context, db, queue, turns, epoch, &mut sent);
    let trouble = match tokio::time::timeout(PATIENCE, sending).await {
        Ok(Ok(())) => None,
        Ok(Err(why)) => Some(why),
        Err(_) => Some(format!("no answer in {}s", PATIENCE.as_secs())),
    };
    if let Some(why) = trouble.filter(|_| context.verbose) {
        printer::hint(&format!("no wake-up was sent ({why}); the workers find the turn by themselves"));
    }
    for (turn, epoch) in &sent {
        db.mark_announced(&[*turn], *epoch).await?;
    }
    Ok(sent.len())
}

async fn send(
    context: &Context,
    db: &Db,
    queue: &str,
    turns: &[TurnId],
    mut epoch: i64,
    sent: &mut Vec<(TurnId, i64)>,
) -> Result<(), String> {
    let publisher = Publisher::connect(context.config.amqp_url.reveal()).await.map_err(|e| chain(&e))?;
    for turn in turns {
        let mut published = publisher.wake(&WakeUp::new(*turn, queue, epoch)).await.map_err(|e| chain(&e))?;
        if published == Published::Returned {
            // The broker has no such queue: what was announced before is gone with it.
            epoch = db.bump_epoch(queue).await.map_err(|e| chain(&e))?;
            publisher.declare(queue).await.map_err(|e| chain(&e))?;
            published = publisher.wake(&WakeUp::new(*turn, queue, epoch)).await.map_err(|e| chain(&e))?;
        }
        match published {
            Published::Confirmed => sent.push((*turn, epoch)),
            Published::Returned => return Err(format!("the broker has no queue `{queue}`")),
        }
    }
    publisher.close().await;
    Ok(())
}
