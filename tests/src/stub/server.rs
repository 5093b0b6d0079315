//! The HTTP side: the Messages protocol, the hello probe, and control calls under `/stub`; `responses` has the other protocol.
//!
//! ```text
//! POST   /v1/messages                 streaming or not
//! POST   /v1/messages/count_tokens
//! POST   /v1/responses
//! GET    /api/hello                   HEAD as well
//! GET    /stub/requests               what was asked (see `ledger`)
//! POST   /stub/faults                 {"fault": "status 529", "times": 2}: strikes the next requests
//! POST   /stub/release                lets everybody go who is held
//! POST   /stub/reset
//! ```

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use serde_json::{Value, json};

use super::conversation::Conversation;
use super::fault::{self, Directive, Fault};
use super::ledger::{Asked, Ledger, key_hash};
use super::plan;
use super::wire::{self, Event, Message};

/// Largest request; a long conversation with large tool results stays below.
const MAX_BODY: usize = 256 << 20;
/// Events before a stream breaks.
const HEAD: usize = 4;

pub fn router(ledger: Arc<Ledger>) -> Router {
    Router::new()
        .route("/", get(|| async { "This is Holdfast's stand-in for the model endpoint. It is no model.\n" }))
        .route("/api/hello", get(|| async { "hello" }))
        .route("/v1/messages", post(messages))
        .route("/v1/messages/count_tokens", post(count_tokens))
        .route("/v1/responses", post(super::responses::responses))
        .route("/stub/requests", get(|State(ledger): State<Arc<Ledger>>| async move { Json(ledger.requests()) }))
        .route("/stub/faults", post(faults))
        .route("/stub/release", post(|State(ledger): State<Arc<Ledger>>| async move { ledger.release() }))
        .route("/stub/reset", post(|State(ledger): State<Arc<Ledger>>| async move { ledger.reset() }))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(ledger)
}

async fn count_tokens(body: Bytes) -> Json<Value> {
    Json(json!({"input_tokens": (body.len() / 4).max(1)}))
}

async fn faults(State(ledger): State<Arc<Ledger>>, Json(order): Json<Value>) -> Response {
    let directive = order["fault"].as_str().unwrap_or_default().parse::<Directive>();
    match directive {
        Ok(directive) => {
            let times = order["times"].as_u64().map(|times| times as u32);
            ledger.fail_next(Directive { times: times.or(directive.times), ..directive });
            StatusCode::NO_CONTENT.into_response()
        }
        Err(error) => (StatusCode::BAD_REQUEST, error).into_response(),
    }
}

/// One model call, from the request to the plan.
struct Call {
    asked: Asked,
    directives: Vec<Directive>,
    message: Message,
    input_bytes: usize,
}

async fn messages(State(ledger): State<Arc<Ledger>>, headers: HeaderMap, body: Bytes) -> Response {
    let Some(credential) = credential(&headers) else {
        return error(401, "x-api-key header is required", None);
    };
    let request: Value = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(problem) => return error(400, &format!("the body is not JSON: {problem}"), None),
    };
    ledger.see(&request);
    let call = read(&headers, credential, &request, body.len());
    let mut releases = ledger.releases();
    let fault = ledger.asked(call.asked.clone(), &call.directives);
    tracing::info!(
        conversation = call.asked.conversation,
        step = call.asked.step,
        ?fault,
        bytes = body.len(),
        "model call"
    );
    let mut delay = Duration::ZERO;
    match fault {
        Some(Fault::Status { code, retry_after }) => {
            return error(code, "the stand-in was told to say so", retry_after);
        }
        Some(Fault::Limited(wait)) => return limited(wait),
        Some(Fault::Overflow) => return error(400, "prompt is too long: 250000 tokens > 200000 maximum", None),
        Some(Fault::Silent) => std::future::pending().await,
        Some(Fault::Hold) => drop(releases.changed().await),
        Some(Fault::Delay(span)) => delay = span,
        _ => {}
    }
    let message = match fault {
        Some(Fault::Refusal) => Message::refused(&call.asked.model, call.input_bytes),
        Some(Fault::MaxTokens) => call.message.cut_short(),
        _ => call.message,
    };
    if call.asked.stream {
        return streamed(message.events(), fault, delay, ledger, call.asked.conversation);
    }
    tokio::time::sleep(delay).await;
    match fault {
        Some(Fault::Overloaded) => error(529, "Overloaded", None),
        Some(Fault::Hang) => std::future::pending().await,
        Some(Fault::Cut) => Body::from_stream(cut()).into_response(),
        _ => {
            ledger.answered(&call.asked.conversation);
            Json(message.whole()).into_response()
        }
    }
}

fn read(headers: &HeaderMap, credential: &str, request: &Value, input_bytes: usize) -> Call {
    let conversation = Conversation::read(request);
    let current = conversation.current();
    let (prompt, directives) = fault::take(current.map_or("", |exchange| exchange.prompt.as_str()));
    let tools: Vec<&str> =
        request["tools"].as_array().into_iter().flatten().filter_map(|tool| tool["name"].as_str()).collect();
    let model = request["model"].as_str().unwrap_or("stand-in");
    Call {
        asked: Asked {
            conversation: conversation_id(headers, request),
            key: key_hash(credential),
            model: model.to_owned(),
            step: current.map_or(0, |exchange| exchange.answered()),
            prompts: conversation.exchanges.len(),
            prompt: prompt.clone(),
            stream: request["stream"].as_bool().unwrap_or_default(),
            tools: tools.len(),
        },
        directives,
        message: Message::new(model, plan::next(&conversation, &prompt, &tools), input_bytes),
        input_bytes,
    }
}

/// The CLI names its session in a header, older ones in the user id only.
fn conversation_id(headers: &HeaderMap, request: &Value) -> String {
    if let Some(id) = headers.get("x-claude-code-session-id").and_then(|id| id.to_str().ok()) {
        return id.to_owned();
    }
    let user = request["metadata"]["user_id"].as_str().unwrap_or_default();
    match serde_json::from_str::<Value>(user) {
        Ok(user) => user["session_id"].as_str().unwrap_or_default().to_owned(),
        Err(_) => user.rsplit("session_").next().unwrap_or_default().to_owned(),
    }
}

pub(super) fn credential(headers: &HeaderMap) -> Option<&str> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    text("x-api-key")
        .or_else(|| text("authorization").map(|value| value.trim_start_matches("Bearer ")))
        .filter(|credential| !credential.is_empty())
}

fn error(status: u16, message: &str, retry_after: Option<u64>) -> Response {
    let code = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (code, Json(wire::error(status, message))).into_response();
    if let Some(seconds) = retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

/// A usage limit as the real endpoint tells it: the CLI reads the time from these headers.
fn limited(wait: Duration) -> Response {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let reset = (now + wait).as_secs().to_string();
    let mut response = error(429, "the stand-in was told to say so", Some(wait.as_secs()));
    let named = [
        ("status", "rejected"),
        ("reset", &reset),
        ("representative-claim", "five_hour"),
        ("5h-status", "rejected"),
        ("5h-reset", &reset),
    ];
    for (name, value) in named {
        let name = format!("anthropic-ratelimit-unified-{name}");
        let name = header::HeaderName::try_from(name).expect("a plain name");
        response.headers_mut().insert(name, value.parse().expect("plain text"));
    }
    response
}

fn streamed(
    events: Vec<Event>,
    fault: Option<Fault>,
    delay: Duration,
    ledger: Arc<Ledger>,
    conversation: String,
) -> Response {
    let fault_after = fault.is_some_and(|fault| fault == Fault::Overloaded);
    let body = if fault_after { overloaded(events) } else { body(events, fault, delay, ledger, conversation) };
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    (headers, body).into_response()
}

/// The first words: message_start, ping, content_block_start, one delta; and then an error inside the stream.
fn overloaded(events: Vec<Event>) -> Body {
    let error = wire::event("error", json!({"error": {"type": "overloaded_error", "message": "Overloaded"}}));
    let all = events.into_iter().take(HEAD).chain([error]);
    Body::from_stream(stream::iter(all.map(|event| Ok::<_, Infallible>(Bytes::from(event.encode())))))
}

/// The events one after the other, unless the connection itself is to fail.
pub(super) fn body(
    events: Vec<Event>,
    fault: Option<Fault>,
    delay: Duration,
    ledger: Arc<Ledger>,
    conversation: String,
) -> Body {
    let events = stream::iter(events).then(move |event| async move {
        tokio::time::sleep(delay).await;
        Ok::<_, std::io::Error>(Bytes::from(event.encode()))
    });
    let head = events.take(if fault.is_some_and(breaks) { HEAD } else { usize::MAX });
    match fault {
        Some(Fault::Cut) => Body::from_stream(head.chain(cut())),
        Some(Fault::Hang) => Body::from_stream(head.chain(stream::pending())),
        _ => Body::from_stream(head.chain(counted(ledger, conversation))),
    }
}

fn breaks(fault: Fault) -> bool {
    matches!(fault, Fault::Cut | Fault::Hang)
}

/// Breaks the connection off, once what came before is on its way.
fn cut() -> impl Stream<Item = std::io::Result<Bytes>> {
    stream::once(async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        Err(std::io::Error::other("the stand-in was told to break off"))
    })
}

/// Adds nothing to the stream; being reached means that everything was sent.
fn counted(ledger: Arc<Ledger>, conversation: String) -> impl Stream<Item = std::io::Result<Bytes>> {
    stream::once(async move { ledger.answered(&conversation) })
        .filter_map(|()| async { None::<Result<Bytes, Infallible>> })
        .map(|item| item.map_err(|never| match never {}))
}
