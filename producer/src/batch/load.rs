//! Sends a checked file to the database in chunks. Each chunk is one transaction and may be sent again: a load that dies
//! between two is continued from the keys.

use std::fmt::Write;
use std::time::Duration;

use holdfast_protocol::BatchId;
use holdfast_shared::db::Db;
use holdfast_shared::db::batches::load::{CHUNK, Loaded};
use holdfast_shared::db::submit::{NewTurn, SubmitError, Wish};
use holdfast_shared::domain::input::TurnInputs;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use tokio::time::sleep;

use super::lines::Line;
use super::spool::Spool;
use crate::context::Context;
use crate::stop::Stop;

/// A chunk of long prompts is cut earlier, in bytes.
const CHUNK_BYTES: usize = 4 << 20;
/// Tries of one chunk while the database is away for a moment.
const TRIES: u32 = 5;

/// The turn that a line asks for.
pub fn turn(namespace: &str, batch: &str, number: u64, line: Line, wish: Wish, inputs: TurnInputs) -> NewTurn {
    NewTurn {
        namespace: namespace.to_owned(),
        session_given: line.session.is_some(),
        session: line.session.unwrap_or_else(|| format!("{batch}-{number}")),
        wish,
        prompt: line.prompt,
        metadata: line.metadata,
        key: Some(line.key.unwrap_or_else(|| format!("batch:{batch}:{number}"))),
        inputs,
        priority: line.priority.unwrap_or_default().number(),
        schedule: line.schedule,
        budget: line.budget,
    }
}

/// Looks whether the sessions and keys of the file suit; which lines do not.
pub async fn check(context: &Context, db: &Db, spool: &Spool, name: &str) -> Result<Vec<(u64, String)>, Stop> {
    let mut bad = Vec::new();
    let mut chunks = Chunks::new(context, spool, name)?;
    while let Some(chunk) = chunks.next()? {
        let turns: Vec<NewTurn> = chunk.iter().map(|(_, turn)| turn.clone()).collect();
        match suits(db, &turns).await {
            Ok(()) => {}
            Err(SubmitError::Db(error)) => return Err(error.into()),
            // Rare: one by one, to name the lines.
            Err(SubmitError::Refused(_)) => {
                for (number, turn) in chunk {
                    match suits(db, std::slice::from_ref(&turn)).await {
                        Ok(()) => {}
                        Err(SubmitError::Refused(why)) => bad.push((number, why.to_string())),
                        Err(SubmitError::Db(error)) => return Err(error.into()),
                    }
                }
            }
        }
    }
    Ok(bad)
}

async fn suits(db: &Db, turns: &[NewTurn]) -> Result<(), SubmitError> {
    db.check_sessions(turns).await?;
    let Some(first) = turns.first() else { return Ok(()) };
    db.known_keys(&first.namespace, turns).await.map(|_| ())
}

/// Sends every line but the `skipped` ones.
pub async fn load(
    context: &Context,
    db: &Db,
    spool: &Spool,
    name: &str,
    batch: BatchId,
    skipped: &[u64],
) -> Result<Loaded, Stop> {
    let bar = bar(spool.lines);
    let mut loaded = Loaded::default();
    let mut chunks = Chunks::new(context, spool, name)?;
    let mut files = spool.files();
    while let Some(chunk) = chunks.next()? {
        let read = chunk.len() as u64;
        let turns: Vec<NewTurn> =
            chunk.into_iter().filter(|(number, _)| !skipped.contains(number)).map(|(_, turn)| turn).collect();
        for turn in &turns {
            files.store(db, context.namespace(), &turn.inputs).await?;
        }
        let done = send(db, batch, &turns).await?;
        loaded.inserted += done.inserted;
        loaded.repeated += done.repeated;
        bar.inc(read);
    }
    bar.finish_and_clear();
    Ok(loaded)
}

async fn send(db: &Db, batch: BatchId, turns: &[NewTurn]) -> Result<Loaded, Stop> {
    for attempt in 1.. {
        match db.load_chunk(batch, turns).await {
            Err(SubmitError::Db(error)) if error.is_transient() && attempt < TRIES => {
                sleep(Duration::from_millis(200) * attempt).await;
            }
            other => return Ok(other?),
        }
    }
    unreachable!("the loop returns in its last try")
}

type Lines = Box<dyn Iterator<Item = Result<(u64, Line), Stop>>>;

/// The lines in chunks.
struct Chunks<'a> {
    lines: Lines,
    spool: &'a Spool,
    namespace: &'a str,
    name: &'a str,
}

impl<'a> Chunks<'a> {
    fn new(context: &'a Context, spool: &'a Spool, name: &'a str) -> Result<Self, Stop> {
        Ok(Self { lines: Box::new(spool.lines()?), spool, namespace: context.namespace(), name })
    }

    fn next(&mut self) -> Result<Option<Vec<(u64, NewTurn)>>, Stop> {
        let (mut chunk, mut bytes) = (Vec::new(), 0);
        while chunk.len() < CHUNK && bytes < CHUNK_BYTES {
            let Some(line) = self.lines.next() else { break };
            let (number, line) = line?;
            bytes += line.prompt.len();
            let wish = self.spool.wish(&line).ok_or_else(|| Stop::failed("a line changed after it was checked"))?;
            let inputs = self.spool.inputs(number);
            chunk.push((number, turn(self.namespace, self.name, number, line, wish, inputs)));
        }
        Ok((!chunk.is_empty()).then_some(chunk))
    }
}

/// On a terminal only; hidden elsewhere.
fn bar(lines: u64) -> ProgressBar {
    let bar = ProgressBar::new(lines);
    let rate = |state: &ProgressState, out: &mut dyn Write| {
        // A bar that cannot be drawn is no failure of the load.
        let _ = write!(out, "{:.0}/s", state.per_sec());
    };
    if let Ok(style) = ProgressStyle::with_template("{bar:30.cyan/dim} {pos}/{len} lines {rate:.dim}") {
        bar.set_style(style.with_key("rate", rate).progress_chars("━━─"));
    }
    bar
}
