//! What a person sees when settings of Codex are wrong, and what right ones become.

use insta::assert_snapshot;

use super::super::super::read_agents;
use holdfast_protocol::harness::Harness;

fn refused(settings: &str) -> String {
    let text = format!("[agent.c]\nharness = \"codex\"\n[agent.c.settings]\n{settings}");
    read_agents("agents.toml", &text).expect_err("the file is wrong").to_string()
}

#[test]
fn everything_wrong_is_told_at_once() {
    let text = r#"
        mdoel = "gpt-5.5"
        codex_bin = "/usr/bin/codex"
        approval_policy = "on-failure"
        model_verbosity = "loud"
        max_model_retries = 99
        http_headers = { a = 1 }
        config = 3
    "#;
    assert_snapshot!(refused(text));
}

#[test]
fn what_would_break_the_wall_is_refused_by_name() {
    let text = r#"
        model = " "
        model_provider = "openai"
        base_url = "ftp://x"
        env_key = "sk-123"
        sandbox_mode = "workspace-write"
        http_headers = { Authorization = "Bearer x" }
        [agent.c.settings.config]
        model = "x"
        sqlite_home = "/x"
        model_providers.openai.base_url = "http://x"
        features = { plugins = true, web = false }
        history.persistence = "none"
        projects."/workspace".trust_level = "trusted"
    "#;
    assert_snapshot!(refused(text));
}

#[test]
fn right_settings_travel_as_data() {
    let text = r#"
        [agent.c]
        harness = "codex"
        [agent.c.settings]
        model = "gpt-6.1-sol"
        base_url = "https://gateway.example/v1"
        env_key = "GATEWAY_KEY"
        output_schema = { type = "object" }
        mcp_servers.docs = { command = "docs" }
        [agent.c.settings.config]
        tools.web_search.context_size = "low"
        "model_context_window" = 200000
    "#;
    let agents = read_agents("agents.toml", text).expect("the file is right");
    assert_eq!(agents[0].1.forward_env, ["GATEWAY_KEY"]);
    let Harness::Codex(settings) = &agents[0].1.harness else { panic!("not codex") };
    assert_eq!(settings.config["tools.web_search.context_size"], "\"low\"");
    assert_eq!(settings.config["model_context_window"], "200000");
    assert_eq!(settings.output_schema.as_deref(), Some(r#"{"type":"object"}"#));
}
