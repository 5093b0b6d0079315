//! What can be made to go wrong, by a bracketed line in the prompt or by a control call. Pure.
//!
//! ```text
//! [stub: status 529]                     any HTTP status, with an error body of the usual shape
//! [stub: status 429 retry-after 5]
//! [stub: cut]                            the stream breaks off after its first words
//! [stub: hang]                           the stream starts and says nothing more
//! [stub: silent]                         not even headers
//! [stub: hold]                           answers once somebody calls POST /stub/release
//! [stub: delay 2s]                       waits before every piece of the answer
//! [stub: limited 90s]                    a limit, told with the time after which it ends
//! [stub: overflow] [stub: refusal] [stub: max tokens] [stub: overloaded]
//! ```
//!
//! Each takes `times N` (it strikes N times only) and `at step N` (it strikes while exactly N tool results are there).

use std::str::FromStr;
use std::time::Duration;

/// One way to misbehave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    Status { code: u16, retry_after: Option<u64> },
    Cut,
    Hang,
    Silent,
    Hold,
    Delay(Duration),
    Overflow,
    Refusal,
    MaxTokens,
    Overloaded,
    Limited(Duration),
}

/// A fault with its conditions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Directive {
    pub fault: Fault,
    pub times: Option<u32>,
    pub step: Option<usize>,
}

/// Takes the directives out of a prompt; what is left is the task. A bracket that cannot be read stays in the text, where
/// the answer will name it as not understood.
pub fn take(prompt: &str) -> (String, Vec<Directive>) {
    let (mut rest, mut text, mut found) = (prompt, String::new(), Vec::new());
    while let Some(start) = rest.find("[stub:") {
        let Some(length) = rest[start..].find(']') else { break };
        let inside = &rest[start + "[stub:".len()..start + length];
        text.push_str(&rest[..start]);
        match inside.parse() {
            Ok(directive) => found.push(directive),
            Err(_) => text.push_str(&rest[start..=start + length]),
        }
        rest = &rest[start + length + 1..];
    }
    text.push_str(rest);
    (text, found)
}

impl FromStr for Directive {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let lower = text.trim().to_ascii_lowercase();
        let mut words: Vec<&str> = lower.split_whitespace().collect();
        let step = take_number(&mut words, &["at", "step"]);
        let times = take_number(&mut words, &["times"]);
        let fault = fault(&words).ok_or_else(|| format!("`{}` is no fault of the stand-in", text.trim()))?;
        Ok(Self { fault, times: times.map(|n| n as u32), step: step.map(|n| n as usize) })
    }
}

fn fault(words: &[&str]) -> Option<Fault> {
    Some(match *words {
        ["status", code] => Fault::Status { code: status(code)?, retry_after: None },
        ["status", code, "retry-after", seconds] => {
            Fault::Status { code: status(code)?, retry_after: Some(seconds.parse().ok()?) }
        }
        ["cut"] => Fault::Cut,
        ["hang"] => Fault::Hang,
        ["silent"] => Fault::Silent,
        ["hold"] => Fault::Hold,
        ["delay", span] => Fault::Delay(duration(span)?),
        ["overflow"] => Fault::Overflow,
        ["refusal"] => Fault::Refusal,
        ["max", "tokens"] => Fault::MaxTokens,
        ["overloaded"] => Fault::Overloaded,
        ["limited", span] => Fault::Limited(duration(span)?),
        _ => return None,
    })
}

fn status(code: &str) -> Option<u16> {
    code.parse().ok().filter(|code| (400..600).contains(code))
}

fn duration(span: &str) -> Option<Duration> {
    if let Some(milliseconds) = span.strip_suffix("ms") {
        return milliseconds.parse().ok().map(Duration::from_millis);
    }
    span.strip_suffix('s')?.parse().ok().map(Duration::from_secs)
}

/// Removes `name N` from the words.
fn take_number(words: &mut Vec<&str>, name: &[&str]) -> Option<u64> {
    let at = words.windows(name.len() + 1).position(|window| window.starts_with(name))?;
    let number = words[at + name.len()].parse().ok()?;
    words.drain(at..=at + name.len());
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_leave_the_prompt() {
        let (text, found) = take("[stub: status 429 retry-after 5 times 2 at step 1] Run `ls`. [stub: delay 20ms]");
        assert_eq!(text.trim(), "Run `ls`.");
        let limited = Fault::Status { code: 429, retry_after: Some(5) };
        assert_eq!(found[0], Directive { fault: limited, times: Some(2), step: Some(1) });
        assert_eq!(found[1].fault, Fault::Delay(Duration::from_millis(20)));
    }

    #[test]
    fn an_unknown_directive_stays_to_be_seen() {
        for prompt in ["[stub: explode] hi", "[stub: status 200] hi", "[stub: hang"] {
            assert_eq!(take(prompt), (prompt.to_owned(), vec![]));
        }
    }
}
