//! The `result` line of Claude Code: the end of a turn, with its tokens and its price.
//!
//! Pure. `total_cost_usd` and `modelUsage` run over the whole conversation and can go back after a kill; a turn's own
//! figures are those since the last result.

use std::collections::BTreeMap;

use holdfast_protocol::outcome::ModelUsage;
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize, Default, Debug)]
#[serde(default)]
pub(super) struct ResultLine {
    pub subtype: Option<String>,
    pub is_error: bool,
    pub result: Option<String>,
    pub errors: Vec<Value>,
    pub num_turns: u32,
    pub terminal_reason: Option<String>,
    pub stop_reason: Option<String>,
    pub api_error: Option<String>,
    pub api_error_status: Option<u16>,
    pub structured_output: Option<Value>,
    pub user_message_uuid: Option<String>,
    model_usage_since_last_result: Option<BTreeMap<String, Tokens>>,
    usage: Option<PlainTokens>,
}

#[derive(Deserialize, Default, Debug)]
#[serde(default, rename_all = "camelCase")]
struct Tokens {
    input_tokens: u64,
    output_tokens: u64,
    cache_read_input_tokens: u64,
    cache_creation_input_tokens: u64,
    #[serde(rename = "costUSD")]
    cost_usd: Option<f64>,
}

#[derive(Deserialize, Default, Debug)]
#[serde(default)]
struct PlainTokens {
    input_tokens: u64,
    output_tokens: u64,
    cache_read_input_tokens: u64,
    cache_creation_input_tokens: u64,
}

impl ResultLine {
    /// Its text, or its errors.
    pub(super) fn said(&self) -> String {
        match self.result.as_deref() {
            Some(text) if !text.is_empty() => text.to_owned(),
            _ if !self.errors.is_empty() => {
                let plain = |error: &Value| error.as_str().map_or_else(|| error.to_string(), str::to_owned);
                self.errors.iter().map(plain).collect::<Vec<_>>().join("; ")
            }
            _ if self.is_error => format!("the turn ended with {}", self.reason()),
            _ => String::new(),
        }
    }

    /// Why the turn ended, in the CLI's own word.
    pub(super) fn reason(&self) -> &str {
        self.terminal_reason.as_deref().or(self.subtype.as_deref()).unwrap_or("no reason")
    }

    /// Tokens of this turn, by model.
    pub(super) fn usage(&self, model: Option<&str>) -> Vec<ModelUsage> {
        if let Some(by_model) = &self.model_usage_since_last_result {
            return by_model
                .iter()
                .map(|(model, tokens)| ModelUsage {
                    model: model.clone(),
                    input_tokens: tokens.input_tokens,
                    output_tokens: tokens.output_tokens,
                    cache_read_tokens: tokens.cache_read_input_tokens,
                    cache_write_tokens: tokens.cache_creation_input_tokens,
                    cost_usd: tokens.cost_usd,
                })
                .collect();
        }
        let one = |tokens: &PlainTokens| ModelUsage {
            model: model.unwrap_or("unknown").to_owned(),
            input_tokens: tokens.input_tokens,
            output_tokens: tokens.output_tokens,
            cache_read_tokens: tokens.cache_read_input_tokens,
            cache_write_tokens: tokens.cache_creation_input_tokens,
            cost_usd: None,
        };
        self.usage.iter().map(one).filter(|usage| usage.input_tokens + usage.output_tokens > 0).collect()
    }
}
