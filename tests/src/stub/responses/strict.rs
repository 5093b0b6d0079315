//! What the Codex CLI is known to send. Anything else is refused, so that a new version of it is noticed. Pure.

use axum::http::HeaderMap;
use serde_json::Value;

const FIELDS: [&str; 17] = [
    "model",
    "instructions",
    "input",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning",
    "store",
    "stream",
    "stream_options",
    "include",
    "prompt_cache_key",
    "prompt_cache_options",
    "text",
    "service_tier",
    "client_metadata",
    "previous_response_id",
];
const ITEMS: [&str; 8] = [
    "message",
    "additional_tools",
    "reasoning",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "compaction",
];

/// What is wrong with the request, if anything.
pub(super) fn check(headers: &HeaderMap, request: &Value) -> Result<(), String> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    for (name, value) in [("accept", "text/event-stream"), ("content-type", "application/json")] {
        if header(name) != value {
            return Err(format!("header `{name}` is `{}`", header(name)));
        }
    }
    if header("thread-id").is_empty() || !header("authorization").starts_with("Bearer ") {
        return Err("header `thread-id` or a bearer credential is missing".to_owned());
    }
    let fields = request.as_object().ok_or("the body is no object")?;
    if let Some(unknown) = fields.keys().find(|key| !FIELDS.contains(&key.as_str())) {
        return Err(format!("field `{unknown}`"));
    }
    if request["stream"] != true || request["store"] != false {
        return Err("a call that is stored, or not streamed".to_owned());
    }
    if request["model"].as_str().is_none_or(str::is_empty) || request["prompt_cache_key"] != header("thread-id") {
        return Err("the model or the thread".to_owned());
    }
    let items = request["input"].as_array().filter(|items| !items.is_empty()).ok_or("no input")?;
    items.iter().try_for_each(item)
}

fn item(item: &Value) -> Result<(), String> {
    let kind = item["type"].as_str().unwrap_or_default();
    let whole = match kind {
        "message" => item["role"].is_string() && item["content"].is_array(),
        "function_call" => item["call_id"].is_string() && item["name"].is_string() && item["arguments"].is_string(),
        "custom_tool_call" => item["call_id"].is_string() && item["name"].is_string() && item["input"].is_string(),
        "function_call_output" | "custom_tool_call_output" => item["call_id"].is_string() && !item["output"].is_null(),
        "additional_tools" => item["tools"].is_array(),
        _ => ITEMS.contains(&kind),
    };
    if whole { Ok(()) } else { Err(format!("item of type `{kind}`")) }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_new_field_or_item_is_noticed() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("accept", "text/event-stream"),
            ("content-type", "application/json"),
            ("thread-id", "t"),
            ("authorization", "Bearer k"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let good = json!({
            "model": "m", "stream": true, "store": false, "prompt_cache_key": "t",
            "input": [{ "type": "message", "role": "user", "content": [] }],
        });
        assert_eq!(check(&headers, &good), Ok(()));
        for (key, value) in [
            ("news", json!(1)),
            ("stream", json!(false)),
            ("input", json!([{ "type": "hologram" }])),
            ("input", json!([])),
        ] {
            let mut bad = good.clone();
            bad[key] = value;
            assert!(check(&headers, &bad).is_err(), "{key}");
        }
        assert!(check(&HeaderMap::new(), &good).is_err());
    }
}
