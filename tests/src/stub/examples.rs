//! What lies in `deploy` must fit the code: the stand-in can do the demo's tasks to the last sentence, and the docs
//! name every failure class. Test only.

use holdfast_protocol::FailureClass;

use super::task::Task;

#[test]
fn every_sentence_of_the_demo_is_understood() {
    let lines = read("examples/tasks.jsonl");
    for line in lines.lines() {
        let task: serde_json::Value = serde_json::from_str(line).expect("a line is JSON");
        let prompt = task["prompt"].as_str().expect("a task has a prompt");
        let read = Task::read(prompt);
        assert!(read.unknown.is_empty() && !read.steps.is_empty(), "{:?} of {prompt}", read.unknown);
    }
}

#[test]
fn the_docs_name_every_failure_class_once() {
    let page = read("docs/failure-classes.md");
    for class in FailureClass::ALL {
        assert_eq!(page.matches(&format!("| `{class}` |")).count(), 1, "{class}");
    }
}

fn read(name: &str) -> String {
    let path = format!("{}/../deploy/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}
