//! One queue on one connection: declare it, then consume while the switch is on, one delivery at a time.
//!
//! Trouble of this queue alone (deleted, declared otherwise, a delivery given back) stays here and is tried again with
//! backoff, so that its neighbours flow; only the end of the connection leaves. Acknowledgements are the worker's.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use lapin::Channel;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use tokio::time::Instant;
use tracing::{info, warn};

use super::ConsumerOptions;
use super::switch::{Shared, Wanted};
use crate::queue::broker::Link;
use crate::queue::delivery::{self, GivenBack};
use crate::queue::error::{QueueError, Result};
use crate::queue::topology::{self, broker_name};
use crate::retry::Backoff;

const PREFETCH: u16 = 1;
/// A queue that worked this long starts its backoff anew.
const CALM: Duration = Duration::from_secs(60);

pub(super) struct Lane<'a> {
    pub(super) index: usize,
    pub(super) queue: &'a str,
    pub(super) link: &'a Link,
    pub(super) options: &'a ConsumerOptions,
    pub(super) shared: &'a Shared,
}

/// Why one stretch of consuming ended, the connection still standing.
enum Ended {
    /// The switch was turned off, and nothing was left waiting here.
    Clean,
    /// Turned off with a delivery waiting here, which goes back with its channel.
    WithLeftover,
    /// The worker dropped its delivery.
    GivenBack,
}

impl Lane<'_> {
    /// Runs until the connection ends.
    pub(super) async fn run(self) -> Result<()> {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
        loop {
            let began = Instant::now();
            let outcome = self.serve().await;
            self.shared.withdraw(self.index);
            self.shared.stopped(self.index);
            match outcome {
                Ok(()) => info!(queue = self.queue, "a delivery was given back; consuming again shortly"),
                Err(error) if error.ends_connection() || !self.link.is_open() => return Err(error),
                Err(error) => {
                    let why = error.one_line();
                    if !self.shared.tell_first(Err(error)) {
                        warn!(queue = self.queue, why, "this queue is only polled for now");
                    }
                    self.shared.queue_is(self.index, Err(why));
                }
            }
            if began.elapsed() > CALM {
                backoff.reset();
            }
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }

    /// Until something goes wrong, or (`Ok`) a delivery is given back.
    async fn serve(&self) -> Result<()> {
        topology::declare(self.link, self.queue, || self.options.on_missing.call(self.queue)).await?;
        loop {
            // A new channel: whatever the last one held is with the broker again.
            let channel = self.channel().await?;
            let given_back = Arc::new(GivenBack::default());
            let ended = loop {
                if !self.shared.wants_deliveries() {
                    // Declared is all that can be known of a paused queue.
                    self.shared.queue_is(self.index, Ok(()));
                }
                tokio::select! {
                    () = self.shared.wanted(Wanted::Deliveries) => {}
                    () = given_back.wait() => break Ended::GivenBack,
                }
                if !self.shared.start(self.index) {
                    continue;
                }
                let ended = self.consume(&channel, &given_back).await?;
                if !matches!(ended, Ended::Clean) {
                    break ended;
                }
                self.shared.stopped(self.index);
            };
            self.link.call("closing a channel", channel.close(200, "giving a delivery back".into())).await?;
            self.shared.stopped(self.index);
            if matches!(ended, Ended::GivenBack) {
                return Ok(());
            }
        }
    }

    async fn channel(&self) -> Result<Channel> {
        let channel = self.link.channel().await?;
        self.link.call("setting the prefetch", channel.basic_qos(PREFETCH, BasicQosOptions::default())).await?;
        Ok(channel)
    }

    /// From basic.consume to the answer to basic.cancel.
    async fn consume(&self, channel: &Channel, given_back: &Arc<GivenBack>) -> Result<Ended> {
        let options = BasicConsumeOptions::default();
        let consume = channel.basic_consume(broker_name(self.queue).into(), "".into(), options, FieldTable::default());
        let mut deliveries = self.link.call("consuming", consume).await?;
        // Only now: a queue whose leader is gone can be declared, but does not answer this.
        self.shared.queue_is(self.index, Ok(()));
        loop {
            tokio::select! {
                delivery = deliveries.next() => match delivery {
                    Some(Ok(raw)) => {
                        let received = delivery::receive(self.queue, raw, &self.options.publisher, given_back);
                        self.shared.push(self.index, received);
                    }
                    Some(Err(error)) => return Err(QueueError::of(self.link.at(), "consuming", error)),
                    None => return Err(self.cancelled()),
                },
                () = self.shared.wanted(Wanted::Silence) => break,
                () = given_back.wait() => return Ok(Ended::GivenBack),
            }
        }
        let cancel = channel.basic_cancel(deliveries.tag(), BasicCancelOptions::default());
        self.link.call("stopping to consume", cancel).await?;
        let mut leftover = self.shared.withdraw(self.index);
        while let Some(Some(Ok(_))) = deliveries.next().now_or_never() {
            leftover = true;
        }
        Ok(if leftover { Ended::WithLeftover } else { Ended::Clean })
    }

    fn cancelled(&self) -> QueueError {
        let why = "the broker ended it; was the queue deleted?".to_owned();
        QueueError::Refused { at: self.link.at().to_owned(), what: "consuming", why }
    }
}
