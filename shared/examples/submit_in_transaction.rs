//! Submits a turn in the same transaction as a row of one's own: either both are there or neither. Killed before the
//! commit it leaves nothing; after it a worker admits the turn within half a second.
//!
//!     DATABASE_URL=postgres://... cargo run -p holdfast-shared --example submit_in_transaction -- coder "Write hello.py."

use holdfast_shared::db::Db;
use holdfast_shared::db::submit::{NewTurn, enlist};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("DATABASE_URL")?;
    let mut args = std::env::args().skip(1);
    let (Some(agent), Some(prompt)) = (args.next(), args.next()) else {
        return Err("usage: submit_in_transaction AGENT PROMPT".into());
    };
    let db = Db::connect(&url, 2).await?;
    let turn = NewTurn {
        // A ticket is worked on once, however often this is called for it.
        key: Some("ticket-4711".to_owned()),
        ..NewTurn::new("default", "tickets", db.wish("default", &agent, "default").await?, &prompt)
    };

    // Any transaction on this database will do: the pool is the application's own as well as ours.
    let mut tx = db.pool().begin().await?;
    sqlx::query("create table if not exists tickets (id int primary key, turn text)").execute(&mut *tx).await?;
    let enlisted = enlist(&mut tx, &turn).await?;
    sqlx::query("insert into tickets (id, turn) values (4711, $1) on conflict do nothing")
        .bind(enlisted.turn.to_string())
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;

    // Not needed, only sooner than the worker's own tick.
    db.admit_waiting().await?;
    println!("{}", enlisted.turn);
    Ok(())
}
