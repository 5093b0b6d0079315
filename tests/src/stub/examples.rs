//! The tasks of the demo must be ones that the stand-in can do to the last sentence. Test only.

use super::task::Task;

#[test]
fn every_sentence_of_the_demo_is_understood() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/examples/tasks.jsonl");
    let lines = std::fs::read_to_string(path).expect("the demo has tasks");
    for line in lines.lines() {
        let task: serde_json::Value = serde_json::from_str(line).expect("a line is JSON");
        let prompt = task["prompt"].as_str().expect("a task has a prompt");
        let read = Task::read(prompt);
        assert!(read.unknown.is_empty() && !read.steps.is_empty(), "{:?} of {prompt}", read.unknown);
    }
}
