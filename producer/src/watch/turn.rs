//! Follows one turn to its end. Reads only.

use holdfast_protocol::{RunId, TurnId};
use holdfast_shared::db::Db;
use holdfast_shared::db::views::{RunView, TurnView};
use serde_json::json;

use super::{Nobody, patiently, pause};
use crate::answer::Answer;
use crate::printer;
use crate::render::Renderer;
use crate::stop::Stop;
use crate::table::coloured;
use crate::text;

/// What is printed while waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Show {
    Nothing,
    /// As a person reads them.
    Events,
    /// A JSON object a line.
    JsonEvents,
}

/// How long to stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// The turn is terminal.
    End,
    /// What is stored now has been shown.
    Now,
}

struct Follower<'a> {
    db: &'a Db,
    show: Show,
    renderer: Renderer,
    /// The run whose events are shown, and the next cursor of it.
    run: Option<(RunId, u64)>,
    state: String,
}

/// Shows the turn and gives its end, or its state now.
pub async fn follow(db: &Db, turn: TurnId, show: Show, until: Until) -> Result<(Answer, TurnView), Stop> {
    let mut follower = Follower { db, show, renderer: Renderer::default(), run: None, state: String::new() };
    let mut nobody = Nobody::new();
    loop {
        // The state first: everything of a turn that was terminal before the events were read has been read.
        let view = patiently(|| db.turn(turn)).await?.ok_or_else(|| Stop::bad(format!("unknown turn `{turn}`")))?;
        follower.state_changed(&view);
        let runs = if show != Show::Nothing || view.is_terminal() {
            patiently(|| db.runs_of(turn)).await?
        } else {
            Vec::new()
        };
        if show != Show::Nothing {
            follower.events(&runs).await?;
        }
        if view.is_terminal() || until == Until::Now {
            return Ok((Answer::new(&view, &runs), view));
        }
        let waits = view.state == "queued" && view.head && view.due_in <= 0.0;
        if let Some(why) = nobody.told(db, waits).await? {
            printer::hint(why);
        }
        pause().await;
    }
}

impl Follower<'_> {
    fn state_changed(&mut self, view: &TurnView) {
        if view.state == self.state {
            return;
        }
        self.state.clone_from(&view.state);
        if self.show != Show::Events || view.is_terminal() {
            return;
        }
        let mut line = coloured(&view.state);
        if view.state == "queued" {
            if let Some(class) = &view.class {
                let wait = text::seconds(view.due_in);
                line.push_str(&format!(" again after {class}, due in {wait}"));
            } else if !view.head {
                line.push_str(" behind earlier turns of its session");
            }
        }
        printer::say(line);
    }

    /// Prints the new events of every run, in order.
    async fn events(&mut self, runs: &[RunView]) -> Result<(), Stop> {
        for run in runs {
            let id = run.run();
            let from = match self.run {
                Some((shown, next)) if shown == id => next,
                // Runs come in order, and ids of later runs sort later.
                Some((shown, _)) if id < shown => continue,
                _ => {
                    self.begin(run);
                    0
                }
            };
            let mut next = from;
            loop {
                let events = patiently(|| self.db.events(id, next)).await?;
                let Some(last) = events.last() else { break };
                next = last.cursor + 1;
                for event in &events {
                    if self.show == Show::JsonEvents {
                        let mut line = json!({
                            "run": id, "cursor": event.cursor, "at_ms": event.at_ms, "event": event.event
                        });
                        if let Some(raw) = &event.raw {
                            line["raw"] = raw.as_str().into();
                        }
                        printer::json_line(&line);
                    } else if let Some(line) = self.renderer.render(&event.event) {
                        printer::line(line);
                    }
                }
            }
            self.run = Some((id, next));
        }
        Ok(())
    }

    fn begin(&self, run: &RunView) {
        if self.show == Show::Events && run.ordinal > 1 {
            printer::say(format!("run {} ({})", run.ordinal, run.run()));
        }
    }
}
