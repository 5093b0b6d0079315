//! The broker: reachable, and the queues as they are wanted. Makes no queue: a worker does that.

use holdfast_shared::config::Config;
use holdfast_shared::db::Db;
use holdfast_shared::queue::{Publisher, QueueError};

use super::Line;

const CHECK: &str = "broker";
const ADVICE: &str = "start RabbitMQ there, or set AMQP_URL";

pub(super) async fn look(config: &Config, db: Option<&Db>) -> Vec<Line> {
    let one_line = |error: &QueueError| error.one_line();
    let publisher = match Publisher::connect(config.amqp_url.reveal()).await {
        Ok(publisher) => publisher,
        Err(error) => {
            return vec![Line::warn(
                CHECK,
                one_line(&error),
                format!("{ADVICE}; until then turns are found by polling"),
            )];
        }
    };
    let mut lines = vec![Line::ok(CHECK, format!("RabbitMQ at {}", publisher.address()))];
    let mut queues = match db {
        Some(db) => db.queue_health().await.unwrap_or_default().into_iter().map(|queue| queue.queue).collect(),
        None => Vec::new(),
    };
    if queues.is_empty() {
        queues.push(config.queue.clone());
    }
    for queue in queues {
        let line = match publisher.depth(&queue).await {
            Ok(None) => Line::ok("queue", format!("`{queue}` is made by the first worker or submission")),
            // Declaring what is there only compares.
            Ok(Some(waiting)) => match publisher.declare(&queue).await {
                Ok(_) => Line::ok("queue", format!("`{queue}`, {waiting} wake-ups wait")),
                Err(error) => Line::fail("queue", one_line(&error), "remove the queue; its wake-ups are sent again"),
            },
            Err(error) => Line::fail("queue", one_line(&error), ADVICE),
        };
        lines.push(line);
    }
    publisher.close().await;
    lines
}
