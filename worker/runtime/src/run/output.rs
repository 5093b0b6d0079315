//! Reads the harness's pipes to their end, always: nobody who does not poll can make the harness wait.
//!
//! Writes the run's journal, its summary and the tail of stderr. Memory is bounded by one line and by the journal.

use std::io::{self, Read};
use std::sync::Arc;

use holdfast_protocol::event::{Event, MAX_EVENT_TEXT, Stream, cut};

use super::Run;
use crate::harness::Decoder;
use crate::lines::{Line, Lines};

const BUFFER: usize = 64 << 10;
/// Of the last bytes of stderr that an outcome carries.
const TAIL: usize = 8 << 10;

pub(super) fn read_stdout(run: &Arc<Run>, mut decoder: Box<dyn Decoder>, pipe: impl Read) {
    read(run, pipe, |line| {
        let text = run.redactor.clean(&line.text);
        let events = if line.cut > 0 {
            vec![Event::Unknown { kind: format!("a line of {} bytes", line.text.len() + line.cut) }]
        } else {
            decoder.line(&text)
        };
        let replies = decoder.replies();
        if !replies.is_empty() {
            run.input.say(replies);
        }
        run.journal(events, Some(&text));
        run.decoded(decoder.summary());
    });
    close(run);
}

pub(super) fn read_stderr(run: &Arc<Run>, pipe: impl Read) {
    read(run, pipe, |line| {
        let text = run.redactor.clean(&line.text).into_owned();
        let mut state = run.lock();
        state.stderr_tail.push_str(&text);
        state.stderr_tail.push('\n');
        let extra = state.stderr_tail.len().saturating_sub(TAIL);
        let start = state.stderr_tail.ceil_char_boundary(extra);
        state.stderr_tail.drain(..start);
        drop(state);
        run.journal(vec![Event::Output { stream: Stream::Stderr, text: cut(text, MAX_EVENT_TEXT) }], None);
    });
    close(run);
}

fn read(run: &Run, mut pipe: impl Read, mut each: impl FnMut(Line)) {
    let (mut lines, mut buffer) = (Lines::default(), vec![0; BUFFER]);
    loop {
        match pipe.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => {
                run.heard();
                lines.push(&buffer[..n], &mut each);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    if let Some(last) = lines.finish() {
        each(last);
    }
}

fn close(run: &Run) {
    let mut state = run.lock();
    state.open_pipes -= 1;
    run.changed.notify_all();
}
