//! The only AMQP. RabbitMQ carries a bounded window of hints ("look at turn T"); everything it holds may be lost,
//! doubled, late or stale, because Postgres is the truth and idle slots poll.
//!
//! Who writes what: the [`Publisher`] writes wake-ups and set-aside messages, the [`Consumer`] only acknowledges. Queues
//! are declared by both, idempotently. Nothing here writes the database.
//!
//! What a crash leaves: an unacknowledged delivery goes back to the broker and comes again; a message published but not
//! yet deleted from the outbox is published twice. Both are the ordinary case for the claim.
//!
//! **Why every reconnect is a new connection.** `lapin` can recover a connection in place, but then stale
//! acknowledgement handles, half-replayed topology and a retry loop of its own (which sleeps its I/O thread and ends
//! after 16 tries) sit between us and the broker. Here a lost connection is dropped whole, its socket shut down so that
//! no I/O thread lingers, and a new one is made by our own loop: "all unacknowledged deliveries are gone" then is a
//! fact of construction, not of bookkeeping.
//!
//! **Why one unconfirmed message per channel.** `lapin` pairs a returned message with whichever confirm it resolves
//! next, in the order of a hash map; with several outstanding, a lost wake-up could be taken for a sent one.
//!
//! **Why two connections.** A broker in memory or disk alarm stops reading from connections that publish; `lapin` then
//! writes nothing at all on them. Acknowledgements must not wait for that, so the consumer never publishes.

mod broker;
mod consumer;
mod delivery;
mod error;
mod message;
mod publisher;
mod relay;
mod topology;

pub use broker::Broker;
pub use consumer::{AtStart, BrokerState, Consumer, ConsumerOptions, OnMissing};
pub use delivery::{Acked, Delivery, Received, Undecodable};
pub use error::{QueueError, Result};
pub use message::{BadMessage, MAX_BODY_BYTES, WakeUp};
pub use publisher::{Published, Publisher};
pub use relay::{Outbox, OutboxRow, RelayError, Sent, Tick, send, tick};
pub use topology::{DEAD_LETTERS, Declared, QUEUE_HEADER, REASON_HEADER, broker_name, engine_queue};
