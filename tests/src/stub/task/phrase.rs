//! One sentence to one step: filler words are dropped, what is left is matched as a pattern. Pure.

use super::{Question, Step};

/// A word of a sentence. Quoted things keep their text.
#[derive(Clone, PartialEq, Debug)]
enum Token {
    Word(String),
    Quoted(String),
}

const FILLERS: [&str; 22] = [
    "a",
    "an",
    "the",
    "this",
    "that",
    "following",
    "new",
    "file",
    "script",
    "module",
    "called",
    "named",
    "please",
    "then",
    "now",
    "first",
    "finally",
    "next",
    "also",
    "small",
    "text",
    "line",
];

/// The step a sentence asks for. `block` is the fence under it, `last_path` the file spoken of last.
pub(super) fn parse(sentence: &str, block: Option<&str>, last_path: Option<&str>) -> Option<Step> {
    if let Some(question) = question(sentence) {
        return Some(Step::Answer(question));
    }
    let tokens = tokens(sentence);
    let words: Vec<&str> = tokens.iter().map(Token::plain).collect();
    let path = |at: usize| tokens.get(at).and_then(Token::path).or_else(|| it(words.get(at)?, last_path));
    let quoted = |at: usize| tokens.get(at).and_then(Token::quoted);
    let block = block.map(str::to_owned);

    match *words.as_slice() {
        ["write" | "create" | "add", "empty", _] => Some(Step::Write { path: path(2)?, content: String::new() }),
        ["create" | "make", "directory" | "folder", name] => {
            run(format!("mkdir -p -- {}", path_word(&quoted(2).unwrap_or_else(|| name.to_owned()))))
        }
        ["make", _, "executable"] => run(format!("chmod +x -- {}", path_word(&path(1)?))),
        ["write" | "create" | "add", _, "which" | "prints" | "printing" | "to", ..] => prints(path(1)?, sentence),
        ["replace", _, "with" | "by", _, "in", _] => {
            Some(Step::Replace { path: path(5)?, from: quoted(1)?, to: quoted(3)? })
        }
        ["write" | "create" | "add" | "replace" | "overwrite", _, "with" | "containing" | "holding", ..] => {
            let content = block.or_else(|| tokens.last().and_then(Token::quoted).map(|text| text + "\n"))?;
            Some(Step::Write { path: path(1)?, content })
        }
        ["write" | "create", _] => Some(Step::Write { path: path(1)?, content: block? }),
        ["append" | "add", .., "to", _] => {
            let content = block.or_else(|| quoted(1).map(|text| text + "\n"))?;
            Some(Step::Append { path: path(words.len() - 1)?, content })
        }
        ["in", _, "replace", _, "with" | "by", _] => {
            Some(Step::Replace { path: path(1)?, from: quoted(3)?, to: quoted(5)? })
        }
        ["read" | "show", _] => Some(Step::Read { path: path(1)? }),
        ["delete" | "remove", _] => run(format!("rm -r -- {}", path_word(&path(1)?))),
        ["list", "files" | "all", ..] => run("ls -A".to_owned()),
        ["wait", seconds, "second" | "seconds"] => {
            run(format!("timeout {} tail -f /dev/null || true", seconds.parse::<u32>().ok()?))
        }
        ["initialise" | "initialize" | "init" | "create", "git", "repository" | "repo", ..] => {
            run("git init -q".to_owned())
        }
        ["commit", .., "message", _] => run(commit(&tokens.last()?.quoted()?)),
        ["run" | "execute", ..] => {
            run(tokens.iter().skip(1).find_map(Token::quoted).or_else(|| path(1).map(|path| start(&path)))?)
        }
        ["say" | "reply" | "answer", ..] => Some(Step::Answer(Question::Say(tokens.iter().find_map(Token::quoted)?))),
        _ => None,
    }
}

fn question(sentence: &str) -> Option<Question> {
    let lower = sentence.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    if !(lower.starts_with("what") || lower.starts_with("which") || lower.starts_with("how many")) {
        return None;
    }
    if lower.starts_with("how many") && has(&["task", "turn", "question", "time"]) {
        return Some(Question::HowManyTasks);
    }
    if has(&["file"]) && has(&["create", "write", "written", "made", "make"]) {
        return Some(Question::FilesCreated);
    }
    if has(&["ask", "task", "request", "prompt"]) && has(&["first"]) {
        return Some(Question::FirstPrompt);
    }
    has(&["did you do", "have you done", "was done", "happened"]).then_some(Question::WhatWasDone)
}

impl Token {
    /// For matching: words in lower case, anything quoted as it is never spelled in a pattern.
    fn plain(&self) -> &str {
        match self {
            Token::Word(word) => word,
            Token::Quoted(_) => "`",
        }
    }

    fn quoted(&self) -> Option<String> {
        match self {
            Token::Quoted(text) => Some(text.clone()),
            Token::Word(_) => None,
        }
    }

    /// A word counts as a path only if it looks like one.
    fn path(&self) -> Option<String> {
        match self {
            Token::Quoted(text) => Some(text.clone()),
            Token::Word(word) => word.contains(['.', '/']).then(|| word.clone()),
        }
    }
}

/// Fillers are dropped, other words are kept in their case where they may be a path, in lower case where not.
fn tokens(sentence: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let mut rest = sentence.trim_start();
    while let Some(first) = rest.chars().next() {
        let closed = matches!(first, '`' | '"').then(|| rest[1..].find(first)).flatten();
        let length = match closed {
            Some(length) => {
                found.push(Token::Quoted(rest[1..=length].to_owned()));
                length + 2
            }
            None => {
                let length = rest.find(char::is_whitespace).unwrap_or(rest.len());
                let word = rest[..length].trim_matches([',', ':', ';', '(', ')']);
                let word = if word.contains(['.', '/']) { word.to_owned() } else { word.to_lowercase() };
                if !word.is_empty() && !FILLERS.contains(&word.as_str()) {
                    found.push(Token::Word(word));
                }
                length
            }
        };
        rest = rest[length..].trim_start();
    }
    found
}

fn it(word: &str, last_path: Option<&str>) -> Option<String> {
    (word == "it").then(|| last_path.map(str::to_owned)).flatten()
}

fn run(command: String) -> Option<Step> {
    Some(Step::Run { command })
}

/// "Write PATH that prints WORDS": the words as they stand, or what is quoted.
fn prints(path: String, sentence: &str) -> Option<Step> {
    let marks = [" prints ", " printing ", " print "];
    let (at, mark) = marks.iter().find_map(|mark| Some((sentence.find(mark)?, mark)))?;
    let words = sentence[at + mark.len()..].trim();
    let text = match words.chars().next() {
        Some(mark @ ('`' | '"')) => words.strip_prefix(mark)?.strip_suffix(mark)?,
        _ => words,
    };
    let content = match path.rsplit('.').next() {
        Some("py") => format!("print({text:?})\n"),
        Some("js") => format!("console.log({text:?})\n"),
        Some("sh") => format!("#!/bin/sh\necho {}\n", word(text)),
        _ => format!("{text}\n"),
    };
    (!text.is_empty()).then_some(Step::Write { path, content })
}

/// How a file is run.
fn start(path: &str) -> String {
    let program = match path.rsplit('.').next() {
        Some("py") => "python3 ",
        Some("js") => "node ",
        Some("sh") => "sh ",
        _ if path.starts_with('/') => "",
        _ => "./",
    };
    format!("{program}{}", path_word(path))
}

/// Works in a computer where git knows nobody yet.
fn commit(message: &str) -> String {
    let who = "-c user.name='Coding agent' -c user.email=agent@localhost.invalid";
    format!("git add -A && git {who} commit -q -m {} && git log --oneline -1", word(message))
}

fn path_word(path: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    if path.chars().all(plain) { path.to_owned() } else { word(path) }
}

/// One word of the shell.
pub(in crate::stub) fn word(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
