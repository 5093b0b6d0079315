//! Tokens of a turn, out of notices that give the sum over a whole thread and the last model call.
//!
//! Pure. A resumed thread begins with a notice about its past; a notice that repeats the sum adds nothing.

use std::collections::HashMap;

use holdfast_protocol::outcome::ModelUsage;
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Tokens {
    total_tokens: u64,
    input_tokens: u64,
    cached_input_tokens: u64,
    cache_write_input_tokens: u64,
    output_tokens: u64,
}

#[derive(Default)]
pub(super) struct Meter {
    /// By thread: a turn's sub-agents have threads of their own.
    totals: HashMap<String, u64>,
}

impl Meter {
    /// What one more model call used; `past` if the notice is about an earlier turn.
    pub(super) fn more(&mut self, params: &Value, model: &str, past: bool) -> Option<ModelUsage> {
        let read = |name: &str| Tokens::deserialize(&params["tokenUsage"][name]).ok();
        let (total, last) = (read("total")?.total_tokens, read("last")?);
        let thread = params["threadId"].as_str().unwrap_or_default().to_owned();
        let before = self.totals.insert(thread, total);
        if past || before == Some(total) || last.total_tokens == 0 {
            return None;
        }
        Some(ModelUsage {
            model: model.to_owned(),
            input_tokens: last.input_tokens.saturating_sub(last.cached_input_tokens),
            output_tokens: last.output_tokens,
            cache_read_tokens: last.cached_input_tokens,
            cache_write_tokens: last.cache_write_input_tokens,
            cost_usd: None,
        })
    }
}
