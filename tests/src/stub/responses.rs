//! The Responses protocol, for the real Codex CLI: `POST /v1/responses`, streaming.
//!
//! Stateless like the Messages side, whose plan, faults and ledger it shares: what comes next follows from the items of the
//! request alone. Strict about what the CLI sends (`strict`): a version that speaks otherwise is told so with status 400
//! instead of being answered somehow. Writes nothing but the ledger's counts.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::{Value, json};

use super::fault::{self, Directive, Fault};
use super::ledger::{Asked, Ledger, key_hash};
use super::plan;
use super::server::{body, credential};
use conversation::Dialogue;
use wire::Turn;

mod conversation;
mod strict;
mod tools;
mod wire;

/// The tools of the plan; what Codex offers in their place is in `tools`.
const PLANNED: [&str; 4] = ["Write", "Edit", "Read", "Bash"];

struct Call {
    asked: Asked,
    directives: Vec<Directive>,
    turn: Turn,
}

pub(super) async fn responses(State(ledger): State<Arc<Ledger>>, headers: HeaderMap, bytes: Bytes) -> Response {
    let Some(credential) = credential(&headers) else {
        return error(401, "invalid_api_key", "You didn't provide an API key.", None);
    };
    let request: Value = match serde_json::from_slice(&bytes) {
        Ok(request) => request,
        Err(problem) => return error(400, "invalid_json", &format!("the body is not JSON: {problem}"), None),
    };
    if let Err(problem) = strict::check(&headers, &request) {
        tracing::warn!(problem, "the CLI does not speak as it did");
        return error(400, "unexpected_request", &format!("the stand-in does not know this wire: {problem}"), None);
    }
    let call = read(&headers, credential, &request, bytes.len());
    let mut releases = ledger.releases();
    let fault = ledger.asked(call.asked.clone(), &call.directives);
    tracing::info!(conversation = call.asked.conversation, step = call.asked.step, ?fault, "model call");
    let mut delay = Duration::ZERO;
    match fault {
        Some(Fault::Status { code, retry_after }) => {
            let name = if code == 429 { "rate_limit_exceeded" } else { "stand_in" };
            return error(code, name, "the stand-in was told to say so", retry_after);
        }
        Some(Fault::Silent) => std::future::pending().await,
        Some(Fault::Hold) => drop(releases.changed().await),
        Some(Fault::Delay(span)) => delay = span,
        _ => {}
    }
    let events = match fault {
        Some(fault) => call.turn.with(fault),
        None => call.turn.events(),
    };
    let body = body(events, fault, delay, ledger, call.asked.conversation);
    ([(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")], body).into_response()
}

fn read(headers: &HeaderMap, credential: &str, request: &Value, input_bytes: usize) -> Call {
    let dialogue = Dialogue::read(request);
    let current = dialogue.conversation.current();
    let (prompt, directives) = fault::take(current.map_or("", |exchange| exchange.prompt.as_str()));
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let asked = Asked {
        conversation: header("thread-id").to_owned(),
        key: key_hash(credential),
        model: request["model"].as_str().unwrap_or_default().to_owned(),
        step: current.map_or(0, |exchange| exchange.answered()),
        prompts: dialogue.conversation.exchanges.len(),
        prompt: prompt.clone(),
        stream: true,
        tools: dialogue.style.count(request),
    };
    let item = match &dialogue.waits_for {
        Some(session) => tools::poll(dialogue.style, *session),
        None => tools::item(dialogue.style, plan::next(&dialogue.conversation, &prompt, &PLANNED)),
    };
    Call { asked, directives, turn: Turn::new(item, input_bytes) }
}

fn error(status: u16, code: &str, message: &str, retry_after: Option<u64>) -> Response {
    let wait = retry_after.map(|seconds| format!(" Please try again in {seconds}s.")).unwrap_or_default();
    let kind = if status == 429 { "tokens" } else { "stand_in_error" };
    let body = json!({ "error": { "message": format!("{message}{wait}"), "type": kind, "param": null, "code": code } });
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, Json(body)).into_response();
    if let Some(seconds) = retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}
