//! How each harness is made to do what a row wants.

use holdfast_protocol::harness::{ClaudeSettings, CodexSettings, CommandSettings, Harness, ScriptedSettings};

/// One harness.
#[derive(Clone)]
pub struct Column {
    pub harness: Harness,
    pub memory_mb: u64,
    /// It asks a model over the network.
    pub model: bool,
    /// Where its transcripts lie in the computer.
    pub native: &'static str,
    /// Writes hello.py and remembers it.
    pub begin: &'static str,
    /// Says what was done before.
    pub ask: &'static str,
    /// Says something and works for long.
    pub waits: &'static str,
    /// Says nothing any more.
    pub hangs: &'static str,
    /// The agent's own process takes all memory.
    pub swells: Option<&'static str>,
    /// A tool does.
    pub child_swells: &'static str,
    /// Prompt and class.
    pub errors: &'static [(&'static str, &'static str)],
}

pub fn claude() -> Column {
    let settings = ClaudeSettings { model: Some("claude-sonnet-4-5".to_owned()), ..ClaudeSettings::default() };
    Column {
        harness: Harness::Claude(Box::new(settings)),
        memory_mb: 1536,
        model: true,
        native: "/runtime/claude/projects/-workspace",
        begin: "Write hello.py that prints hello and run it.",
        ask: "What file did you create in this session?",
        waits: "Wait 600 seconds.",
        hangs: "[stub: hang] Say hello.",
        // The CLI cannot be made to; a tool that does is the same to the kernel.
        swells: None,
        child_swells: "Run `python3 -c 'a = [bytearray(10**7) for _ in range(10**4)]'`.",
        errors: &[
            ("[stub: status 401] Say hello.", "auth_failed"),
            ("[stub: status 403] Say hello.", "auth_failed"),
            ("[stub: status 429] Say hello.", "rate_limited"),
            ("[stub: status 500] Say hello.", "model_overloaded"),
            ("[stub: status 529] Say hello.", "model_overloaded"),
            ("[stub: overloaded] Say hello.", "model_overloaded"),
            ("[stub: cut] Say hello.", "model_overloaded"),
            ("[stub: overflow] Say hello.", "context_overflow"),
            ("[stub: refusal] Say hello.", "content_refused"),
            ("[stub: max tokens] Say hello.", "budget_exceeded"),
        ],
    }
}

/// What Codex does with a lost conversation and with each error of its model is in `codex`, where its own wire is.
pub fn codex() -> Column {
    let settings = CodexSettings { model: Some("gpt-6.1-sol".to_owned()), ..CodexSettings::default() };
    Column {
        harness: Harness::Codex(Box::new(settings)),
        memory_mb: 1024,
        model: true,
        native: "/runtime/codex/sessions",
        begin: "Write hello.py that prints hello and run it.",
        ask: "What file did you create in this session?",
        waits: "Wait 600 seconds.",
        hangs: "[stub: hang] Say hello.",
        // The CLI cannot be made to; a tool that does is the same to the kernel.
        swells: None,
        child_swells: "Run `python3 -c 'a = [bytearray(10**7) for _ in range(10**4)]'`.",
        errors: &[],
    }
}

pub fn scripted() -> Column {
    Column {
        harness: Harness::Scripted(ScriptedSettings::default()),
        memory_mb: 512,
        model: false,
        native: "/runtime/scripted",
        begin: "write hello.py print('hello')\nsay I wrote hello.py",
        ask: "recall",
        waits: "say begun\nsleep 600",
        hangs: "say begun\nhang",
        swells: Some("say begun\nallocate 4000"),
        child_swells: "run python3 -c 'a = [bytearray(10**7) for _ in range(10**4)]'\nsay done",
        errors: &[
            ("fail auth_failed", "auth_failed"),
            ("fail rate_limited retry-after 3600", "rate_limited"),
            ("fail model_overloaded", "model_overloaded"),
            ("fail context_overflow", "context_overflow"),
            ("fail content_refused", "content_refused"),
            ("fail max_turns_reached", "max_turns_reached"),
            ("fail budget_exceeded", "budget_exceeded"),
            ("result-error it broke", "harness_error"),
            ("exit 0", "harness_error"),
        ],
    }
}

/// A program of twenty lines; the page about harnesses has one like it.
const PROGRAM: &str = r#"
import json, os, subprocess, sys, time
def out(kind, **fields): print(json.dumps({"type": kind, **fields}), flush=True)
def end(text, **fields): out("result", text=text, proof=run, **fields); sys.exit(0)
run = os.environ["HOLDFAST_RUN"]
path = os.path.join(os.environ["HOLDFAST_NATIVE_DIR"], os.environ["HOLDFAST_CONVERSATION"] + ".jsonl")
out("conversation", id=os.environ["HOLDFAST_CONVERSATION"], model="none")
earlier = [json.loads(line)["prompt"] for line in open(path)] if os.path.exists(path) else []
prompt = sys.stdin.read()
with open(path, "a") as file: file.write(json.dumps({"run": run, "prompt": prompt}) + "\n")
out("usage", model="none", input_tokens=len(prompt), output_tokens=1)
word, _, rest = prompt.partition(" ")
if word == "write": open(rest, "w").write("print('hello')\n"); end("wrote " + rest)
if word == "recall": end(" / ".join(earlier))
if word == "wait": out("text", text="begun"); time.sleep(600)
if word == "hang":
    out("text", text="begun")
    import signal
    for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)
    while True: time.sleep(600)
if word == "swell": a = [bytearray(10**7) for _ in range(10**4)]
if word == "child": out("tool_result", output=str(subprocess.run(["sh", "-c", rest]).returncode), is_error=True); end("done")
if word == "fail": end("as you wish", **{"class": rest, "is_error": True})
if word == "leave": sys.exit(0)
end("what?", is_error=True)
"#;

pub fn command() -> Column {
    let settings =
        CommandSettings { argv: ["python3", "-c", PROGRAM].map(str::to_owned).to_vec(), ..CommandSettings::default() };
    Column {
        harness: Harness::Command(Box::new(settings)),
        memory_mb: 512,
        model: false,
        native: "/runtime/command",
        begin: "write hello.py",
        ask: "recall",
        waits: "wait",
        hangs: "hang",
        swells: Some("swell"),
        child_swells: "child python3 -c 'a = [bytearray(10**7) for _ in range(10**4)]'",
        errors: &[
            ("fail auth_failed", "auth_failed"),
            ("fail rate_limited", "rate_limited"),
            ("fail model_overloaded", "model_overloaded"),
            ("fail context_overflow", "context_overflow"),
            ("fail content_refused", "content_refused"),
            ("fail max_turns_reached", "max_turns_reached"),
            ("fail budget_exceeded", "budget_exceeded"),
            ("nonsense", "harness_error"),
            ("leave", "harness_error"),
        ],
    }
}
