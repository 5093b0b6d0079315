//! The queues and exchanges on the broker, declared idempotently by everybody who needs them.
//!
//! Per queue `Q` a durable quorum queue `holdfast.Q`; for what could not be read the exchange and the quorum queue
//! `holdfast.dead`. No plugin, no priority, no global prefetch, so that RabbitMQ 3.10 to 4.x behave the same.
//!
//! Making a queue voids every earlier announcement, so whoever finds it missing moves the queue's broker epoch *before*
//! making it: a crash in between moves the epoch once more next time, which is harmless; the other order would forget it.

use std::future::Future;

use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use sha2::{Digest, Sha256};

use super::broker::Link;
use super::error::{QueueError, Result};
use crate::domain::sandbox::hex;

/// Exchange and queue of the messages that could not be read.
pub const DEAD_LETTERS: &str = "holdfast.dead";
/// Header of a dead letter: why it is one.
pub const REASON_HEADER: &str = "x-holdfast-reason";
/// Header of a dead letter: the broker queue it came from.
pub const QUEUE_HEADER: &str = "x-holdfast-queue";

/// 4.x drops a message after 20 returns unless told otherwise, 3.x never does. We count in Postgres, so: practically never.
const DELIVERY_LIMIT: i32 = 1_000_000;

/// How names of engines' queues begin.
const ENGINE: &str = "engine-";
/// Longer than any `affinity_wait`.
const ENGINE_MESSAGE_MS: i32 = 15 * 60_000;
/// An engine that nobody listens for any more.
const ENGINE_QUEUE_MS: i32 = 60 * 60_000;

/// What a declaration did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Declared {
    /// The queue was not there: everything announced before is void (move the queue's broker epoch).
    pub created: bool,
}

/// The broker's name for a queue of ours.
pub fn broker_name(queue: &str) -> String {
    format!("holdfast.{queue}")
}

/// The queue of one engine: wake-ups of turns whose computer is parked there. It expires with its engine, and so do its
/// messages: by then the turn has been announced to everybody.
pub fn engine_queue(installation: &str, engine_id: &str) -> String {
    let hash = Sha256::digest(format!("{installation}\0{engine_id}"));
    format!("{ENGINE}{}", &hex(&hash)[..16])
}

pub(crate) fn check_name(queue: &str) -> Result<()> {
    let fits = (1..=200).contains(&queue.len());
    let plain = queue.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    if fits && plain && queue != "dead" { Ok(()) } else { Err(QueueError::Name(queue.to_owned())) }
}

/// Declares `queue` with its dead-letter target. `before_creating` runs if the queue is missing, and must succeed first.
pub(crate) async fn declare<F>(link: &Link, queue: &str, before_creating: impl FnOnce() -> F) -> Result<Declared>
where
    F: Future<Output = Result<()>>,
{
    check_name(queue)?;
    declare_dead_letters(link).await?;
    let name = broker_name(queue);
    let created = depth(link, queue).await?.is_none();
    if created {
        before_creating().await?;
    }
    let mut arguments = quorum();
    if queue.starts_with(ENGINE) {
        arguments.insert("x-message-ttl".into(), AMQPValue::LongInt(ENGINE_MESSAGE_MS));
        arguments.insert("x-expires".into(), AMQPValue::LongInt(ENGINE_QUEUE_MS));
    } else {
        arguments.insert("x-dead-letter-exchange".into(), AMQPValue::LongString(DEAD_LETTERS.into()));
    }
    declare_queue(link, &name, arguments).await?;
    Ok(Declared { created })
}

/// Messages ready in the broker's queue; `None` if there is no such queue.
pub(crate) async fn depth(link: &Link, queue: &str) -> Result<Option<u32>> {
    let channel = link.channel().await?;
    let name = broker_name(queue);
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::durable() };
    let asked = channel.queue_declare(name.as_str().into(), passive, FieldTable::default());
    match link.call("looking for a queue", asked).await {
        Ok(found) => Ok(Some(found.message_count())),
        Err(QueueError::Refused { why, .. }) if why.contains("NOT_FOUND - no queue") => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) async fn declare_dead_letters(link: &Link) -> Result<()> {
    let channel = link.channel().await?;
    let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
    let exchange = channel.exchange_declare(DEAD_LETTERS.into(), ExchangeKind::Fanout, durable, FieldTable::default());
    link.call("declaring the dead-letter exchange", exchange).await.map_err(|error| mismatch(link, error))?;
    declare_queue(link, DEAD_LETTERS, quorum()).await?;
    let bind = channel.queue_bind(
        DEAD_LETTERS.into(),
        DEAD_LETTERS.into(),
        "".into(),
        QueueBindOptions::default(),
        FieldTable::default(),
    );
    link.call("binding the dead-letter queue", bind).await
}

/// On a channel of its own: a refusal closes the channel.
async fn declare_queue(link: &Link, name: &str, arguments: FieldTable) -> Result<()> {
    let channel = link.channel().await?;
    let declared = channel.queue_declare(name.into(), QueueDeclareOptions::durable(), arguments);
    link.call("declaring a queue", declared).await.map(drop).map_err(|error| mismatch(link, error))
}

fn quorum() -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(DELIVERY_LIMIT));
    arguments
}

/// Reads the broker's refusal, where it names the argument and both values.
fn mismatch(link: &Link, error: QueueError) -> QueueError {
    let QueueError::Refused { why, .. } = &error else { return error };
    let Some((argument, queue, new, old)) = parse_mismatch(why) else { return error };
    QueueError::Mismatch { at: link.at().to_owned(), queue, argument, old, new }
}

/// From `... inequivalent arg 'A' for queue 'Q' in vhost 'V': received N but current is O`: `(A, Q, N, O)`.
fn parse_mismatch(text: &str) -> Option<(String, String, String, String)> {
    let (_, rest) = text.split_once("inequivalent arg '")?;
    let (argument, rest) = rest.split_once('\'')?;
    let (_, rest) = rest.split_once(" '")?;
    let (queue, rest) = rest.split_once('\'')?;
    let (_, rest) = rest.split_once("received ")?;
    let (new, old) = rest.split_once(" but current is ")?;
    Some((argument.to_owned(), queue.to_owned(), value(new), value(old)))
}

/// `the value 'x' of type 'longstr'` or `'x'` or `none`, without the wrapping.
fn value(text: &str) -> String {
    let text = text.trim().trim_start_matches("the value ");
    let text = text.split_once(" of type ").map_or(text, |(value, _)| value);
    text.trim_matches('\'').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_brokers_refusals_are_read() {
        let read = |text: &str| parse_mismatch(text).expect("a mismatch");
        let own = |a: &str, q: &str, n: &str, o: &str| (a.to_owned(), q.to_owned(), n.to_owned(), o.to_owned());
        let about = |rest: &str| read(&format!("PRECONDITION_FAILED - inequivalent arg {rest}"));
        assert_eq!(
            about(
                "'x-dead-letter-exchange' for queue 'holdfast.q' in vhost '/': received the value 'holdfast.dead' of \
                 type 'longstr' but current is none"
            ),
            own("x-dead-letter-exchange", "holdfast.q", "holdfast.dead", "none")
        );
        assert_eq!(
            about(
                "'x-delivery-limit' for queue 'holdfast.q' in vhost '/': received the value '1000000' of type \
                 'signedint' but current is the value '20' of type 'long'"
            ),
            own("x-delivery-limit", "holdfast.q", "1000000", "20")
        );
        assert_eq!(
            about("'durable' for queue 'holdfast.q' in vhost '/': received 'true' but current is 'false'"),
            own("durable", "holdfast.q", "true", "false")
        );
        assert_eq!(
            about("'type' for exchange 'holdfast.dead' in vhost '/': received 'fanout' but current is 'direct'"),
            own("type", "holdfast.dead", "fanout", "direct")
        );
        assert_eq!(parse_mismatch("PRECONDITION_FAILED - something new"), None);
    }

    #[test]
    fn names_that_would_clash_or_break_are_refused() {
        assert!(check_name("default").is_ok());
        for name in ["", "dead", "a b", "é", &"x".repeat(201)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
