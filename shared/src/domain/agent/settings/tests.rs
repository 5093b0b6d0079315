//! Each setting with a value that it takes and one that it refuses, and the words of the refusal.

use holdfast_protocol::harness::Harness;

use super::super::read::read_agents;

fn agent(harness: &str, settings: &str) -> Result<Harness, String> {
    let text = format!("[agent.a]\nharness = \"{harness}\"\n[agent.a.settings]\n{settings}\n");
    match read_agents("f", &text) {
        Ok(mut agents) => Ok(agents.remove(0).1.harness),
        Err(problems) => Err(problems.to_string().replace("f: agent.a.settings", "").replace("f: agent.a", "")),
    }
}

#[test]
fn every_setting_of_claude_is_taken() {
    for (line, stored) in [
        (r#"model = "opus""#, r#""model":"opus""#),
        (r#"fallback_model = "sonnet,haiku""#, r#""fallback_model":"sonnet,haiku""#),
        (r#"permission_mode = "plan""#, r#""permission_mode":"plan""#),
        (r#"allowed_tools = ["Bash(git *)"]"#, r#""allowed_tools":["Bash(git *)"]"#),
        (r#"disallowed_tools = ["WebFetch"]"#, r#""disallowed_tools":["WebFetch"]"#),
        (r#"tools = ["Bash"]"#, r#""tools":["Bash"]"#),
        (r#"system_prompt = "x""#, r#""system_prompt":"x""#),
        (r#"append_system_prompt = "x""#, r#""append_system_prompt":"x""#),
        ("refresh_system_prompt = true", r#""refresh_system_prompt":true"#),
        ("max_turns = 3", r#""max_turns":3"#),
        ("max_budget_usd = 0.5", r#""max_budget_usd":0.5"#),
        (r#"mcp_servers.d = { command = "d" }"#, r#""mcp_servers":{"d":"{\"command\":\"d\"}"}"#),
        ("strict_mcp_config = false", r#""strict_mcp_config":false"#),
        (r#"settings = { hooks = {} }"#, r#""settings":"{\"hooks\":{}}""#),
        (r#"setting_sources = ["project"]"#, r#""setting_sources":["project"]"#),
        (r#"add_dirs = ["lib"]"#, r#""add_dirs":["lib"]"#),
        ("bare = true", r#""bare":true"#),
        ("max_model_retries = 0", r#""max_model_retries":0"#),
        ("max_thinking_tokens = 0", r#""max_thinking_tokens":0"#),
        (r#"thinking = "adaptive""#, r#""thinking":"adaptive""#),
        ("task_budget = 50000", r#""task_budget":50000"#),
        (r#"effort = "max""#, r#""effort":"max""#),
        (r#"agent = "reviewer""#, r#""agent":"reviewer""#),
        (r#"agents.r = { description = "d", prompt = "p" }"#, r#"\"description\":\"d\""#),
        (r#"plugin_dirs = ["/workspace/plugins"]"#, r#""plugin_dirs":["/workspace/plugins"]"#),
        ("skills = false", r#""skills":false"#),
        (r#"betas = ["context-1m-2025-08-07"]"#, r#""betas":["context-1m-2025-08-07"]"#),
        ("forward_subagent_text = false", r#""forward_subagent_text":false"#),
        ("verbatim_prompts = true", r#""verbatim_prompts":true"#),
        (r#"output_schema = { type = "object" }"#, r#""output_schema":"{\"type\":\"object\"}""#),
    ] {
        let json = serde_json::to_string(&agent("claude", line).unwrap_or_else(|e| panic!("{line}: {e}"))).unwrap();
        assert!(json.contains(stored), "{line}: {json}");
    }
}

#[test]
fn every_bad_value_names_its_field_and_what_it_may_be() {
    for (line, says) in [
        ("model = 3", ".model: must be text"),
        (r#"model = "-x""#, ".model: is not a name of a model"),
        ("model = \"a\"\nfallback_model = \"a\"", ".fallback_model: is the model itself"),
        (
            r#"permission_mode = "bypass""#,
            ".permission_mode: unknown value `bypass`; did you mean `bypassPermissions`?",
        ),
        (
            "permission_mode = true",
            ".permission_mode: must be one of acceptEdits, auto, bypassPermissions, manual, dontAsk, plan",
        ),
        (r#"effort = "extreme""#, ".effort: unknown value `extreme`; known: low, medium, high, xhigh, max"),
        (r#"allowed_tools = "Bash""#, ".allowed_tools: must be a list of texts"),
        ("max_turns = 0", ".max_turns: must be a whole number between 1 and 100000"),
        ("max_budget_usd = -1", ".max_budget_usd: must be a number above 0"),
        (r#"bare = "yes""#, ".bare: must be true or false"),
        (r#"setting_sources = ["user"]"#, ".setting_sources: unknown value `user`; known: project, local"),
        ("setting_sources = 1", ".setting_sources: must be a list of project, local"),
        (r#"plugin_dirs = ["/opt/p"]"#, ".plugin_dirs: `/opt/p` is not inside /workspace"),
        (r#"agents.r = { description = "d" }"#, ".agents.r: lacks `prompt`"),
        (r#"mcp_servers.d = "nope""#, ".mcp_servers: d: is not JSON: expected ident at line 1 column 2"),
        (r#"output_schema = { type = "strnig" }"#, ".output_schema: is no JSON Schema: "),
        (r#"output_schema = "[1]""#, ".output_schema: must be a JSON object"),
        (r#"system_prompt = "a\u0000b""#, ".system_prompt: holds a zero byte"),
        (r#"modle = "x""#, ": unknown setting `modle`; did you mean `model`?"),
        (r#"permision_mode = "plan""#, ": unknown setting `permision_mode`; did you mean `permission_mode`?"),
        ("maxturns = 3", ": unknown setting `maxturns`; did you mean `max_turns`?"),
        ("strict_persistence = true", ": `strict_persistence` is on for every turn; remove it"),
    ] {
        let refused = agent("claude", line).expect_err(line);
        assert!(refused.starts_with(says), "{line}: {refused}");
    }
}

#[test]
fn host_settings_are_refused_together_whatever_the_harness() {
    let settings = "cwd = \"/x\"\nenv = { A = \"b\" }\nretries = 3\ncli_path = \"/c\"\ncodex_bin = \"/c\"\nuser = \"me\"\n\
                    db = \"sqlite:///agent.db\"\nsession_id = \"s\"\nhooks = {}";
    for harness in ["claude", "command", "scripted"] {
        let refused = agent(harness, settings).unwrap_err();
        assert!(
            refused.contains(
                ": not supported in a sandbox: cli_path, codex_bin, cwd, db, env, hooks, retries, session_id, user; the \
                 sandbox owns the workspace, process and local files; configure retries on the queue"
            ),
            "{harness}: {refused}"
        );
    }
}

#[test]
fn a_command_is_a_program_with_a_conversation_of_its_own() {
    let good = "argv = [\"agent\"]\nresume_args = [\"--resume\", \"{conversation}\"]\nnative_dir = \"home/.agent\"\n\
                transcript = \"session-{conversation}.json\"\noutput_schema = { type = \"object\" }";
    let Harness::Command(settings) = agent("command", good).unwrap() else { panic!("not a command") };
    assert_eq!((settings.native_dir(), settings.transcript_name()), ("home/.agent", ("session-", ".json")));
    for (line, says) in [
        ("", ".argv: names no program; for example argv = [\"python3\", \"/opt/agent.py\"]"),
        ("argv = [\"\"]", ".argv: names no program"),
        ("argv = [\"a\"]\nnative_dir = \"../x\"", ".native_dir: must be a path below /runtime"),
        ("argv = [\"a\"]\nnative_dir = \"/etc\"", ".native_dir: must be a path below /runtime"),
        ("argv = [\"a\"]\nnative_dir = \"home\"", ".native_dir: `home` is not the program's own"),
        ("argv = [\"a\"]\nnative_dir = \"claude/x\"", ".native_dir: `claude/x` is not the program's own"),
        (
            "argv = [\"a\"]\ntranscript = \"log.json\"",
            ".transcript: must be the name of a file that holds {conversation}",
        ),
        ("argv = [\"a\"]\nresume = true", ": not supported in a sandbox: resume;"),
        ("argv = [\"a\"]\nresume_arg = []", ": unknown setting `resume_arg`; did you mean `resume_args`?"),
    ] {
        let refused = agent("command", line).expect_err(line);
        assert!(refused.starts_with(says), "{line}: {refused}");
    }
}
