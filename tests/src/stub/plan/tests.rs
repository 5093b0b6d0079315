//! The plan over whole conversations.

use super::*;

fn call(name: &str, input: Value, result: Option<(&str, bool)>) -> ToolCall {
    let result = result.map(|(text, is_error)| ToolResult { text: text.into(), is_error });
    ToolCall { id: "t".into(), name: name.into(), input, result }
}

fn conversation(exchanges: &[(&str, Vec<ToolCall>)]) -> Conversation {
    let exchanges = exchanges.iter().map(|(prompt, calls)| Exchange { prompt: (*prompt).into(), calls: calls.clone() });
    Conversation { exchanges: exchanges.collect() }
}

fn after(prompt: &str, calls: Vec<ToolCall>) -> Next {
    next(&conversation(&[(prompt, calls)]), prompt, &["Write", "Read", "Edit", "Bash"])
}

const HELLO: &str = "Write hello.py that prints hello and run it.";

#[test]
fn steps_follow_the_results() {
    let written = call("Write", json!({"file_path": "hello.py"}), Some(("File created", false)));
    assert!(matches!(after(HELLO, vec![]), Next::Call { tool: "Write", .. }));
    assert!(matches!(after(HELLO, vec![written.clone()]), Next::Call { tool: "Bash", .. }));
    let ran = call("Bash", json!({"command": "python3 hello.py"}), Some(("hello", false)));
    let Next::Say(text) = after(HELLO, vec![written, ran]) else { panic!("a last word") };
    assert_eq!(text, "Done.\n- wrote hello.py\n- ran `python3 hello.py`: hello");
}

#[test]
fn a_file_that_was_not_read_is_read_and_written_again() {
    let refused = call("Write", json!({}), Some(("File has not been read yet. Read it first", true)));
    assert!(matches!(after(HELLO, vec![refused.clone()]), Next::Call { tool: "Read", .. }));
    let read = call("Read", json!({}), Some(("old", false)));
    assert!(matches!(after(HELLO, vec![refused, read]), Next::Call { tool: "Write", .. }));
}

#[test]
fn a_cut_call_is_made_again_and_a_failed_one_ends_the_turn() {
    let cut = call("Write", json!({}), Some(("[Tool call interrupted: outcome unknown]", true)));
    assert!(matches!(after(HELLO, vec![cut]), Next::Call { tool: "Write", .. }));
    let failed = call("Bash", json!({}), Some(("Exit code 2\nno such thing", true)));
    let Next::Say(text) = after("Run `false`. Run `ls`.", vec![failed]) else { panic!("a last word") };
    assert_eq!(text, "I stopped at step 1, run `false`: Exit code 2\nno such thing");
}

#[test]
fn questions_are_answered_from_the_conversation() {
    let written = call("Write", json!({"file_path": "hello.py"}), Some(("File created", false)));
    let failed = call("Write", json!({"file_path": "no.py"}), Some(("denied", true)));
    for (question, expected) in [
        ("What file did you create in this session?", "In this session I created hello.py."),
        ("What did I ask you first?", "You first asked me: Write hello.py that prints hello and run it."),
        ("How many tasks did I give you?", "You gave me 2 tasks, this one included."),
    ] {
        let both = conversation(&[(HELLO, vec![written.clone(), failed.clone()]), (question, vec![])]);
        assert_eq!(next(&both, question, &[]), Next::Say(expected.into()));
        let blank = conversation(&[(question, vec![])]);
        assert_ne!(next(&blank, question, &[]), Next::Say(expected.into()));
    }
}

#[test]
fn it_says_that_it_is_no_model() {
    let Next::Say(text) = after("Explain monads.", vec![]) else { panic!("a last word") };
    assert!(text.contains("stand-in") && text.contains("Explain monads"), "{text}");
}

#[test]
fn a_tool_that_is_not_offered_is_not_called() {
    let said = next(&conversation(&[(HELLO, vec![])]), HELLO, &["Bash"]);
    assert_eq!(said, Next::Say("I cannot write hello.py: the tool Write is not offered to me.".into()));
}

#[test]
fn an_answer_with_a_schema_is_given_by_its_tool_once() {
    let prompt = "Say `{\"name\":\"ada\"}`.";
    let asked = |calls| next(&conversation(&[(prompt, calls)]), prompt, &["Bash", "StructuredOutput"]);
    let Next::Call { tool: "StructuredOutput", input, .. } = asked(vec![]) else { panic!("a call") };
    assert_eq!(input, json!({"name": "ada"}));
    let given = call("StructuredOutput", input, Some(("Structured output provided", false)));
    assert_eq!(asked(vec![given]), Next::Say("{\"name\":\"ada\"}".into()));
    assert_eq!(after(prompt, vec![]), Next::Say("{\"name\":\"ada\"}".into()), "without the tool it is said");
}
