//! Settings of an agent as they reach the real CLI, and answers that must fit a schema.

use holdfast_protocol::harness::{ClaudeSettings, CommandSettings, Harness};

use crate::matrix::columns;
use crate::matrix::lab::Lab;

const PERSON: &str = r#"{"type":"object","required":["name"],"properties":{"name":{"type":"string"}}}"#;

/// Claude gives the answer by a tool of its own and checks it there; the worker trusts neither.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_claude_fits_its_schema_or_the_turn_fails() {
    let mut lab = Lab::new(columns::claude()).await;
    let once = lab.queue_of(|policy| policy.retry_on.clear()).await;
    let agent = || {
        let settings = ClaudeSettings { output_schema: Some(PERSON.to_owned()), ..ClaudeSettings::default() };
        Harness::Claude(Box::new(settings))
    };
    let good = lab.turn_of(agent(), &[], &once, "good", r#"Say `{"name":"ada"}`."#).await;
    let none = lab.turn_of(agent(), &[], &once, "none", "Run `true`.").await;
    let bad = lab.turn_of(agent(), &[], &once, "bad", r#"Say `{"name":3}`."#).await;
    assert_eq!(lab.class_of(good).await, "succeeded", "{}", lab.why(good).await);
    assert_eq!(lab.outcome(good).await["structured_output"], r#"{"name":"ada"}"#);
    assert_eq!(lab.class_of(none).await, "verify_failed", "{}", lab.why(none).await);
    assert!(lab.why(none).await.contains("the answer does not fit the output schema: there is none"));
    assert_eq!(lab.class_of(bad).await, "verify_failed", "{}", lab.why(bad).await);
    assert!(lab.why(bad).await.contains("/name: 3 is not of type"), "{}", lab.why(bad).await);
    assert_eq!(lab.outcome(bad).await["structured_output"], r#"{"name":3}"#, "the answer is kept");
    lab.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_a_program_fits_its_schema_or_the_turn_fails() {
    let mut lab = Lab::new(columns::command()).await;
    let once = lab.queue_of(|policy| policy.retry_on.clear()).await;
    let answers = |answer: &str| {
        let program = format!(
            "cat > \"$HOLDFAST_NATIVE_DIR/$HOLDFAST_CONVERSATION.jsonl\"; test -s \"$HOLDFAST_OUTPUT_SCHEMA\" || exit 1
             printf '{{\"type\":\"conversation\",\"id\":\"%s\"}}\\n' \"$HOLDFAST_CONVERSATION\"
             echo '{{\"type\":\"result\",\"text\":\"done\",\"structured_output\":{answer}}}'"
        );
        let argv = ["sh", "-c", &program].map(str::to_owned).to_vec();
        Harness::Command(Box::new(CommandSettings {
            argv,
            output_schema: Some(PERSON.to_owned()),
            ..CommandSettings::default()
        }))
    };
    let good = lab.turn_of(answers(r#"{"name":"ada"}"#), &[], &once, "good", "x").await;
    let bad = lab.turn_of(answers(r#"{"nam":"ada"}"#), &[], &once, "bad", "x").await;
    assert_eq!(lab.class_of(good).await, "succeeded", "{}", lab.why(good).await);
    assert_eq!(lab.class_of(bad).await, "verify_failed", "{}", lab.why(bad).await);
    assert!(lab.why(bad).await.contains("is a required property"), "{}", lab.why(bad).await);
    lab.close().await;
}

/// All of them at once: an option that the pinned CLI does not take ends it at its start.
#[tokio::test(flavor = "multi_thread")]
async fn the_pinned_claude_takes_every_setting() {
    let lab = Lab::new(columns::claude()).await;
    let text = |text: &str| Some(text.to_owned());
    let list = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let settings = ClaudeSettings {
        model: text("claude-sonnet-4-5"),
        fallback_model: text("claude-haiku-4-5"),
        permission_mode: text("bypassPermissions"),
        allowed_tools: list(&["Bash(git *)"]),
        disallowed_tools: list(&["WebFetch"]),
        tools: list(&["Bash", "Read", "Write", "Edit"]),
        append_system_prompt: text("be brief"),
        max_turns: Some(20),
        max_budget_usd: Some(5.0),
        mcp_servers: [("none".to_owned(), r#"{"command":"true"}"#.to_owned())].into(),
        settings: text(r#"{"includeCoAuthoredBy":false}"#),
        add_dirs: list(&["/workspace"]),
        max_model_retries: Some(1),
        max_thinking_tokens: Some(2000),
        effort: text("high"),
        task_budget: Some(100_000),
        agent: text("reviewer"),
        agents: [("reviewer".to_owned(), r#"{"description":"reviews","prompt":"You review."}"#.to_owned())].into(),
        plugin_dirs: list(&["/workspace"]),
        skills: Some(false),
        setting_sources: Some(list(&["project", "local"])),
        betas: list(&["context-1m-2025-08-07"]),
        strict_mcp_config: Some(true),
        forward_subagent_text: Some(true),
        refresh_system_prompt: Some(true),
        ..ClaudeSettings::default()
    };
    let harness = Harness::Claude(Box::new(settings));
    let turn = lab.turn_of(harness, &[], &lab.house.queue, "all", "Write hello.py that prints hello and run it.").await;
    assert_eq!(lab.class_of(turn).await, "succeeded", "{}", lab.why(turn).await);
    let thinking = ClaudeSettings {
        thinking: text("disabled"),
        verbatim_prompts: Some(true),
        system_prompt: text("be brief"),
        bare: true,
        ..ClaudeSettings::default()
    };
    let harness = Harness::Claude(Box::new(thinking));
    let turn = lab.turn_of(harness, &[], &lab.house.queue, "bare", "Run `true`.").await;
    assert_eq!(lab.class_of(turn).await, "succeeded", "{}", lab.why(turn).await);
    lab.close().await;
}
