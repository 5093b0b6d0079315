//! The English that the stand-in understands. Every sentence is one that a real model can follow as well, so the same
//! tasks run against both. Pure.
//!
//! ```text
//! Write hello.py that prints hello and run it.        also .sh and .js; any other file just holds the text
//! Create the file PATH with this content: + fence     also Write, Add, Replace PATH with ...
//! Create an empty file PATH. Create the directory PATH. Delete PATH. Make PATH executable.
//! Append this to PATH: + fence                        also Append `TEXT` to PATH.
//! In PATH replace `A` with `B`.                       also Replace `A` with `B` in PATH.
//! Read PATH.                                          also Show PATH.
//! Run `CMD`.  Run PATH.  Run it.  Run the tests with `CMD`.
//! List the files.  Wait 5 seconds.
//! Initialise a git repository.  Commit everything with the message "TEXT".
//! Say "TEXT".                                         also Reply with "TEXT".
//! What file did you create in this session?  What did I ask you first?  What did you do before?
//! How many tasks did I give you?
//! ```
//!
//! A sentence that ends with a colon and has no fence leads over to what follows and is skipped. Sentences stand alone, in numbered lists, or joined by "and" and "then". A fence belongs to the sentence before it.

mod phrase;
mod sentences;

use phrase::parse;
pub(super) use phrase::word as shell_word;

/// What a prompt asks for, in order.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Task {
    pub steps: Vec<Step>,
    /// Sentences that mean nothing to the stand-in.
    pub unknown: Vec<String>,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Step {
    Write { path: String, content: String },
    Append { path: String, content: String },
    Read { path: String },
    Replace { path: String, from: String, to: String },
    Run { command: String },
    Answer(Question),
}

/// What is answered from the conversation, without a tool.
#[derive(Clone, PartialEq, Debug)]
pub enum Question {
    FilesCreated,
    FirstPrompt,
    WhatWasDone,
    HowManyTasks,
    Say(String),
}

impl Task {
    /// Reads a prompt whose `[stub: ...]` directives are gone.
    pub fn read(prompt: &str) -> Self {
        let mut task = Self::default();
        let mut last_path = None;
        for sentence in sentences::split(prompt) {
            for part in parts(&sentence.text, sentence.block.as_deref(), last_path.as_deref()) {
                match part {
                    Ok(step) => {
                        last_path = step.path().map(str::to_owned).or(last_path);
                        task.steps.push(step);
                    }
                    Err(_) if sentence.leads_over && sentence.block.is_none() => {}
                    Err(text) => task.unknown.push(text),
                }
            }
        }
        task
    }
}

impl Step {
    fn path(&self) -> Option<&str> {
        match self {
            Step::Write { path, .. } | Step::Append { path, .. } | Step::Read { path } | Step::Replace { path, .. } => {
                Some(path)
            }
            Step::Run { .. } | Step::Answer(_) => None,
        }
    }
}

/// A sentence as one step, or cut at "and" or "then" where what follows is a step as well.
fn parts(text: &str, block: Option<&str>, last_path: Option<&str>) -> Vec<Result<Step, String>> {
    for (left, right) in sentences::joints(text) {
        let Some(first) = parse(left, None, last_path) else { continue };
        let path = first.path().or(last_path);
        let rest = parts(right, block, path);
        if rest.iter().all(Result::is_ok) {
            return std::iter::once(Ok(first)).chain(rest).collect();
        }
    }
    vec![parse(text, block, last_path).ok_or_else(|| text.to_owned())]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(command: &str) -> Step {
        Step::Run { command: command.into() }
    }

    fn write(path: &str, content: &str) -> Step {
        Step::Write { path: path.into(), content: content.into() }
    }

    fn steps(prompt: &str) -> Vec<Step> {
        let task = Task::read(prompt);
        assert_eq!(task.unknown, Vec::<String>::new(), "{prompt}");
        task.steps
    }

    #[test]
    fn the_first_task_of_all() {
        assert_eq!(
            steps("Write hello.py that prints hello and run it."),
            [write("hello.py", "print(\"hello\")\n"), run("python3 hello.py")]
        );
        assert_eq!(
            steps("Create the script a.sh which prints \"This and that\"."),
            [write("a.sh", "#!/bin/sh\necho 'This and that'\n")]
        );
    }

    #[test]
    fn numbered_steps_with_a_fence() {
        let prompt = "Please do this:\n\n1. Create the file `src/a.py` with this content:\n\n   ```python\n   def f():\n       \
                      return 1\n   ```\n2. Then run the tests with `python3 -m unittest -v`.\n\
                      3. Initialise a git repository and commit everything with the message \"first. and last\".";
        let steps = Task::read(prompt).steps;
        assert_eq!(steps[0], write("src/a.py", "def f():\n    return 1\n"));
        assert_eq!(steps[1], run("python3 -m unittest -v"));
        assert_eq!(steps[2], run("git init -q"));
        assert!(matches!(&steps[3], Step::Run { command } if command.contains("-m 'first. and last'")), "{steps:?}");
        assert_eq!(steps.len(), 4);
    }

    #[test]
    fn changes_to_files() {
        assert_eq!(
            steps("In a.py replace `x = 1` with `x = 2`."),
            [Step::Replace { path: "a.py".into(), from: "x = 1".into(), to: "x = 2".into() }]
        );
        assert_eq!(
            steps("Append this to notes.txt:\n```\nb\n```"),
            [Step::Append { path: "notes.txt".into(), content: "b\n".into() }]
        );
        assert_eq!(
            steps("Read notes.txt, then delete it."),
            [Step::Read { path: "notes.txt".into() }, run("rm -r -- notes.txt")]
        );
    }

    #[test]
    fn questions() {
        for (prompt, question) in [
            ("What file did you create in this session?", Question::FilesCreated),
            ("Which files have you written?", Question::FilesCreated),
            ("What did I ask you first?", Question::FirstPrompt),
            ("What did you do before?", Question::WhatWasDone),
            ("How many tasks did I give you?", Question::HowManyTasks),
            ("Reply with \"pong\".", Question::Say("pong".into())),
        ] {
            assert_eq!(steps(prompt), [Step::Answer(question)], "{prompt}");
        }
    }

    #[test]
    fn what_is_not_understood_is_named() {
        let task = Task::read("Prove that P is not NP. Run `ls`.");
        assert_eq!(task.unknown, ["Prove that P is not NP"]);
        assert_eq!(task.steps, [run("ls")]);
    }
}
