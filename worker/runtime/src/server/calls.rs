//! What each call does. Quick ones act under the admission's lock, on the connection's own thread; slow ones wait or
//! read files on a thread of their own, so that a `Renew` is answered meanwhile.
//!
//! A slow call is checked when it begins, and again when it has waited for the files. What a stale worker's restore or
//! capture still does after that is harmless: the successor finds a computer that is not blank, or captures anew.

use std::time::Duration;

use holdfast_protocol::message::{Answer, Call, Refusal};
use holdfast_protocol::{Fence, PROTOCOL_VERSION};

use super::Server;
use super::connection::Connection;
use crate::checkpoint::Checkpointer;
use crate::run::Patience;

type Answered = Result<Answer, Refusal>;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    Quick,
    Slow,
}

pub(super) fn pace(call: &Call) -> Pace {
    match call {
        Call::Hello { .. } | Call::Renew { .. } | Call::Start(_) | Call::End { .. } => Pace::Quick,
        Call::Stage(_)
        | Call::Command { .. }
        | Call::Settle { .. }
        | Call::Survey { .. }
        | Call::Changes { .. }
        | Call::RestoreBegin { .. }
        | Call::RestoreObjects { .. }
        | Call::Poll { .. }
        | Call::Capture { .. }
        | Call::CaptureList { .. }
        | Call::CaptureRead { .. }
        | Call::CaptureEnd => Pace::Slow,
    }
}

pub(super) fn quick(server: &Server, connection: &Connection, fence: Fence, call: Call) -> Answered {
    let computer = &server.computer;
    let done = |()| Answer::Done;
    if let Call::Hello { protocol, ttl_ms } = call {
        if protocol != PROTOCOL_VERSION {
            return Err(Refusal::Protocol { runtime: PROTOCOL_VERSION, worker: protocol });
        }
        return server.admission.admit(connection.id, &connection.stream, fence, || {
            computer.renew(ttl_ms);
            Answer::Hello(computer.status())
        });
    }
    server.admission.act(connection.id, fence, || match call {
        Call::Renew { ttl_ms } => {
            computer.renew(ttl_ms);
            Ok(Answer::Done)
        }
        Call::Start(turn) => computer.start(&turn).map(done),
        Call::End { run, reason } => computer.end(run, reason).map(done),
        _ => Err(Refusal::Internal("a slow call came to the quick ones".to_owned())),
    })?
}

pub(super) fn slow(server: &Server, connection: &Connection, fence: Fence, call: Call) -> Answered {
    let held = || server.admission.act(connection.id, fence, || ());
    held()?;
    let computer = &server.computer;
    match call {
        Call::Stage(part) => computer.stage(&part, &held).map(|written| Answer::Staged { written }),
        Call::Command { command, wait_ms } => {
            let wait = Duration::from_millis(wait_ms);
            computer.command(&command, wait, &held, || connection.is_open()).map(Answer::Commanded)
        }
        Call::Settle { limits } => computer.settle(&limits, &held).map(|()| Answer::Done),
        Call::Survey { run, limits } => {
            computer.survey(run, &limits, &held).map(|stats| Answer::Surveyed(Box::new(stats)))
        }
        Call::Changes { run } => computer.changes(run).map(Answer::Changes),
        Call::RestoreBegin { checkpoint, manifest } => computer.restore_begin(checkpoint, manifest, &held),
        Call::RestoreObjects { objects } => computer.restore_objects(objects, &held),
        Call::Poll { run, from, wait_ms, linger_ms } => {
            let wait = Patience { first: Duration::from_millis(wait_ms), more: Duration::from_millis(linger_ms) };
            computer.poll(run, from, wait, || connection.is_open()).map(Answer::Events)
        }
        Call::Capture { run, checkpoint, limits, exclude } => {
            let captured = computer.capture(run, checkpoint, &limits, &exclude, &held);
            captured.map(|captured| Answer::Captured(Box::new(captured)))
        }
        Call::CaptureList { from } => computer
            .captured(&held, |capture| capture.capture_list(from))
            .map(|objects| Answer::CaptureList { objects }),
        Call::CaptureRead { ids } => {
            computer.captured(&held, |capture| capture.capture_read(&ids)).map(|objects| Answer::Objects { objects })
        }
        Call::CaptureEnd => {
            let end = |capture: &mut Checkpointer| {
                capture.capture_end();
                Ok(Answer::Done)
            };
            computer.captured(&held, end)
        }
        _ => Err(Refusal::Internal("a quick call came to the slow ones".to_owned())),
    }
}
