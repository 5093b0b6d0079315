//! Keeps a connection to the broker: connect, serve every queue, and when it is lost begin anew, for as long as the
//! consumer lives.
//!
//! Writes no durable state. On a loss (and so on a crash) everything unacknowledged is with the broker again.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::lane::Lane;
use super::switch::Shared;
use super::{BrokerState, ConsumerOptions};
use crate::queue::broker::{Broker, Link};
use crate::queue::error::{QueueError, Result};
use crate::retry::Backoff;

/// How often the state of an idle connection is looked at; a busy one reports its end by itself.
const LOOK_EVERY: Duration = Duration::from_millis(250);

pub(super) struct Session {
    broker: Broker,
    options: ConsumerOptions,
    shared: Arc<Shared>,
    stop: CancellationToken,
}

impl Session {
    pub(super) fn new(broker: Broker, options: ConsumerOptions, shared: Arc<Shared>, stop: CancellationToken) -> Self {
        Self { broker, options, shared, stop }
    }

    pub(super) async fn run(self) {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
        let mut told = false;
        loop {
            let outcome = tokio::select! {
                outcome = self.once(&mut told) => outcome,
                () = self.stop.cancelled() => break,
            };
            let Err(error) = outcome else { break };
            if *self.shared.state().borrow() == BrokerState::Ready {
                backoff.reset();
            }
            let why = error.one_line();
            self.shared.lost(&why);
            if told {
                debug!(why, "still no broker");
            } else if !self.shared.tell_first(Err(error)) {
                warn!(why, "no deliveries for now: polling until the broker is back");
            }
            told = true;
            tokio::select! {
                () = tokio::time::sleep(backoff.next_delay()) => {}
                () = self.stop.cancelled() => break,
            }
        }
        self.shared.lost("closed");
    }

    /// One connection from its beginning to its end. `Ok` only when stopped.
    async fn once(&self, told: &mut bool) -> Result<()> {
        let link = self.broker.open("holdfast consumer").await?;
        let lanes = self.options.queues.iter().enumerate().map(|(index, queue)| {
            Lane { index, queue, link: &link, options: &self.options, shared: &self.shared }.run()
        });
        let ready = async {
            let up = |state: &BrokerState| *state == BrokerState::Ready;
            let _ = self.shared.state().wait_for(up).await;
            info!(at = self.broker.address(), "consuming");
            *told = false;
            self.shared.tell_first(Ok(()));
            std::future::pending::<Result<()>>().await
        };
        tokio::select! {
            ended = try_join_all(lanes) => ended.map(drop),
            never = ready => never,
            lost = self.lost(&link) => Err(lost),
            () = self.stop.cancelled() => {
                link.close().await;
                Ok(())
            }
        }
    }

    async fn lost(&self, link: &Link) -> QueueError {
        while link.is_open() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let source = "the broker closed it or went silent".into();
        QueueError::Lost { at: self.broker.address().to_owned(), what: "consuming", source }
    }
}
