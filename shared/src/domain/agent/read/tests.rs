//! What a person sees when an agents file is wrong, and what a right one becomes.

use insta::assert_snapshot;

use super::*;

fn refused(text: &str) -> String {
    read_agents("agents.toml", text).expect_err("the file is wrong").to_string()
}

#[test]
fn everything_wrong_is_told_at_once() {
    let text = r#"
        [agent.coder]
        harness = "claude"
        retries = 3
        timeot = 1
        [agent.coder.settings]
        modle = "claude-sonnet-4-5"
        permission_mode = "bypass"
        max_turns = 0
        cwd = "/home/me"
        cli_path = "/usr/bin/claude"
        mcp_servers = { docs = "not json" }
        [agent.coder.sandbox]
        memory = 4096
        cpus = "two"
        network = "host"
        [agent.coder.env]
        ANTHROPIC_API_KEY = "sk-ant-0123456789"
        HOME = "/root"
        PORT = 8080
        [agent.other]
        harness = "codex"
        [agent.third]
        harness = "cladue"
        [agents.fourth]
    "#;
    assert_snapshot!("everything_wrong", refused(text));
}

#[test]
fn host_settings_are_refused_in_one_message() {
    let text = "[agent.a]\nharness = \"claude\"\nretries = 2\n[agent.a.settings]\ncwd = \"/x\"\n";
    assert_eq!(
        refused(text),
        "agents.toml: agent.a: not supported in a sandbox: cwd, retries; the sandbox owns the workspace, process and \
         local files; configure retries on the queue"
    );
}

#[test]
fn values_are_checked() {
    let text = r#"
        [agent.a]
        harness = "claude"
        forward_env = ["KEY=1", "KEY", "KEY"]
        [agent.a.settings]
        permission_mode = "accept_edits"
        add_dirs = ["/workspace/lib", "lib", "/etc", "../x", "/workspacex"]
        system_prompt = "a"
        append_system_prompt = "b"
        allowed_tools = ["Bash"]
        disallowed_tools = ["Bash"]
        [agent.a.sandbox]
        memory_mb = 512
    "#;
    assert_snapshot!("values", refused(text));
}

#[test]
fn a_refused_network_hides_no_limit() {
    let text = "[agent.a]\nharness = \"scripted\"\n[agent.a.sandbox]\nnetwork = \"host\"\nmemory_mb = 10\nworkspace_mb = \"5\"\n";
    assert_snapshot!("network_and_limits", refused(text));
}

#[test]
fn what_is_no_file_of_agents_says_so() {
    let texts =
        ["[agent.a\n", "", "[queue.default]\n", "[agent.\"-x\"]\nharness = \"scripted\"\nsettings = { a = 1 }\n"];
    assert_snapshot!("no_file_of_agents", texts.map(refused).join("\n---\n"));
}

#[test]
fn a_good_file_becomes_specs() {
    let text = r#"
        [agent.coder]
        harness = "claude"
        settings.permission_mode = "acceptEdits"
        settings.mcp_servers.docs = { command = "docs", args = ["-v"] }
        settings.max_budget_usd = 2
        sandbox.network = "isolated"
        env.LANG = "C.UTF-8"
        [agent.stand-in]
        harness = "scripted"
        forward_env = ["CI_KEY"]
    "#;
    let agents = read_agents("agents.toml", text).expect("the file is right");
    let (name, coder) = &agents[0];
    assert_eq!(name, "coder");
    assert_eq!(coder.forward_env, ["ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN"]);
    let Harness::Claude(settings) = &coder.harness else { panic!("not claude") };
    assert_eq!(settings.mcp_servers["docs"], r#"{"args":["-v"],"command":"docs"}"#);
    assert_eq!(settings.max_budget_usd, Some(2.0));
    assert_eq!(agents[1].1.forward_env, ["CI_KEY"]);
    let stored = serde_json::to_string(coder).expect("a spec always encodes");
    assert_eq!(serde_json::from_str::<AgentSpec>(&stored).expect("what was stored"), *coder);
}
