//! What Codex's app-server is told: requests of ours, and answers to its own.
//!
//! Pure. One JSON object a line; a request's id says which one its answer belongs to.

use holdfast_protocol::WORKSPACE_DIR;
use holdfast_protocol::harness::CodexSettings;
use holdfast_protocol::input::{InputKind, StagedInput};
use holdfast_protocol::message::StartTurn;
use serde_json::{Value, json};

use crate::harness::attached;
use crate::settings::Place;

pub(super) const INITIALIZE: u64 = 1;
pub(super) const THREAD: u64 = 2;
pub(super) const TURN: u64 = 3;
const INTERRUPT: u64 = 4;
/// JSON-RPC's "method not found".
const UNKNOWN_METHOD: i32 = -32601;

/// The first words: who we are, and the conversation to begin or to go on with.
pub(super) fn opening(settings: &CodexSettings, turn: &StartTurn, place: &Place) -> Vec<u8> {
    let client = json!({ "name": "holdfast", "title": "Holdfast", "version": env!("CARGO_PKG_VERSION") });
    let mut thread = json!({ "cwd": place.workspace });
    if let Some(text) = &settings.base_instructions {
        thread["baseInstructions"] = json!(text);
    }
    if let Some(text) = &settings.developer_instructions {
        thread["developerInstructions"] = json!(text);
    }
    let method = match &turn.expect_native {
        Some(native) => {
            thread["threadId"] = json!(native);
            thread["excludeTurns"] = json!(true);
            "thread/resume"
        }
        None => "thread/start",
    };
    let mut bytes = request(INITIALIZE, "initialize", json!({ "clientInfo": client }));
    bytes.extend(line(&json!({ "method": "initialized" })));
    bytes.extend(request(THREAD, method, thread));
    bytes
}

/// The prompt, with the files that came along: pictures as such, then the prompt, then the names of all. The computer is
/// the wall, so the turn has full access inside it.
pub(super) fn start(settings: &CodexSettings, thread: &str, prompt: &str, inputs: &[StagedInput]) -> Vec<u8> {
    let pictures = inputs.iter().filter(|input| input.kind == InputKind::Image);
    let pictures =
        pictures.map(|input| json!({ "type": "localImage", "path": format!("{WORKSPACE_DIR}/{}", input.path) }));
    let texts = std::iter::once(prompt.to_owned()).chain(attached::note(inputs));
    let input: Vec<Value> = pictures.chain(texts.map(|text| json!({ "type": "text", "text": text }))).collect();
    let mut turn = json!({
        "threadId": thread,
        "input": input,
        "sandboxPolicy": { "type": "dangerFullAccess" },
    });
    if let Ok(Some(schema)) = output_schema(settings) {
        turn["outputSchema"] = schema;
    }
    request(TURN, "turn/start", turn)
}

pub(super) fn interrupt(thread: &str, turn: &str) -> Vec<u8> {
    request(INTERRUPT, "turn/interrupt", json!({ "threadId": thread, "turnId": turn }))
}

/// The answer to something that only a person could decide, and what to tell people about it.
pub(super) fn decline(id: &Value, method: &str) -> Vec<u8> {
    let result = match method {
        "item/commandExecution/requestApproval" | "item/fileChange/requestApproval" => json!({ "decision": "decline" }),
        "applyPatchApproval" | "execCommandApproval" => json!({ "decision": "denied" }),
        "mcpServer/elicitation/request" => json!({ "action": "decline" }),
        _ => {
            let error = json!({ "code": UNKNOWN_METHOD, "message": "nobody is there to answer" });
            return line(&json!({ "id": id, "error": error }));
        }
    };
    line(&json!({ "id": id, "result": result }))
}

pub(super) fn output_schema(settings: &CodexSettings) -> Result<Option<Value>, String> {
    let parse = |text: &String| serde_json::from_str(text);
    let schema = settings.output_schema.as_ref().map(parse).transpose();
    schema.map_err(|error| format!("`output_schema` of the agent is no JSON: {error}"))
}

fn request(id: u64, method: &str, params: Value) -> Vec<u8> {
    line(&json!({ "id": id, "method": method, "params": params }))
}

fn line(value: &Value) -> Vec<u8> {
    format!("{value}\n").into_bytes()
}
