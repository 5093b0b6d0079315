//! The settings of Claude Code that a person may write: everything that the pinned CLI takes headlessly and that means
//! something inside a computer. Pure.

use holdfast_protocol::harness::ClaudeSettings;
use toml::Table;

use super::super::super::problem::Problems;
use super::{Kind, inside_workspace, typed};

const CLAUDE: &[(&str, Kind)] = &[
    ("model", Kind::Text),
    ("fallback_model", Kind::Text),
    ("permission_mode", Kind::OneOf(PERMISSION_MODES)),
    ("allowed_tools", Kind::TextList),
    ("disallowed_tools", Kind::TextList),
    ("tools", Kind::TextList),
    ("system_prompt", Kind::Text),
    ("append_system_prompt", Kind::Text),
    ("refresh_system_prompt", Kind::Switch),
    ("max_turns", Kind::Count(1, 100_000)),
    ("max_budget_usd", Kind::Amount),
    ("mcp_servers", Kind::JsonTable),
    ("strict_mcp_config", Kind::Switch),
    ("settings", Kind::Json),
    ("setting_sources", Kind::SomeOf(&["project", "local"])),
    ("add_dirs", Kind::TextList),
    ("bare", Kind::Switch),
    ("max_model_retries", Kind::Count(0, 10)),
    ("max_thinking_tokens", Kind::Count(0, 1_000_000)),
    ("thinking", Kind::OneOf(&["adaptive", "disabled"])),
    ("task_budget", Kind::Count(1, 1_000_000_000)),
    ("effort", Kind::OneOf(&["low", "medium", "high", "xhigh", "max"])),
    ("agent", Kind::Text),
    ("agents", Kind::JsonTable),
    ("plugin_dirs", Kind::TextList),
    ("skills", Kind::Switch),
    ("betas", Kind::TextList),
    ("forward_subagent_text", Kind::Switch),
    ("verbatim_prompts", Kind::Switch),
    ("output_schema", Kind::Schema),
];
const PERMISSION_MODES: &[&str] = &["acceptEdits", "auto", "bypassPermissions", "manual", "dontAsk", "plan"];

/// The settings of Claude, if nothing is wrong with them.
pub(in super::super) fn claude(problems: &mut Problems, place: &str, given: &Table) -> Option<ClaudeSettings> {
    let settings: ClaudeSettings = typed(problems, place, given, CLAUDE)?;
    let before = problems.list.len();
    values(problems, place, &settings);
    (problems.list.len() == before).then_some(settings)
}

fn values(problems: &mut Problems, place: &str, settings: &ClaudeSettings) {
    inside_workspace(problems, &format!("{place}.add_dirs"), &settings.add_dirs);
    inside_workspace(problems, &format!("{place}.plugin_dirs"), &settings.plugin_dirs);
    if settings.system_prompt.is_some() && settings.append_system_prompt.is_some() {
        problems.add(place, "system_prompt and append_system_prompt exclude each other");
    }
    for tool in &settings.allowed_tools {
        if settings.disallowed_tools.contains(tool) {
            problems.add(place, format!("`{tool}` is in allowed_tools and in disallowed_tools"));
        }
    }
    // Both are a name, or several that are tried in turn.
    for (name, value) in [("model", &settings.model), ("fallback_model", &settings.fallback_model)] {
        let bad = |model: &str| model.trim().is_empty() || model.starts_with('-');
        if value.as_deref().is_some_and(|text| text.split(',').any(bad)) {
            problems.add(format!("{place}.{name}"), "is not a name of a model");
        }
    }
    if settings.model.is_some() && settings.model == settings.fallback_model {
        problems.add(format!("{place}.fallback_model"), "is the model itself");
    }
    for (name, agent) in &settings.agents {
        let fields: serde_json::Value = serde_json::from_str(agent).unwrap_or_default();
        for field in ["description", "prompt"] {
            if fields[field].as_str().is_none_or(|text| text.trim().is_empty()) {
                problems.add(format!("{place}.agents.{name}"), format!("lacks `{field}`"));
            }
        }
    }
    if settings.bare && settings.agent.is_some() && settings.agents.is_empty() {
        problems.add(format!("{place}.agent"), "names an agent of the workspace, which `bare` does not read");
    }
}
