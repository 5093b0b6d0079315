//! What a turn does in a computer in memory, line by line in its prompt. A line that is no command is text the agent says.
//!
//! ```text
//! wait MS            works for so long
//! say TEXT           one event
//! flood BYTES        one event of so many bytes
//! tokens IN OUT      usage, priced at nothing
//! fail CLASS TEXT    ends with this failure class
//! limited MS TEXT    ends rate limited, retry in MS
//! die                the computer stops in the middle
//! hang               never ends by itself
//! flaky N            fails as `sandbox_lost` in the first N runs of this prompt
//! ```

use std::time::Duration;

use holdfast_protocol::FailureClass;

#[derive(Clone, PartialEq, Debug)]
pub enum Step {
    Wait(Duration),
    Say(String),
    Flood(usize),
    Tokens(u64, u64),
    Fail(FailureClass, String),
    Limited(u64, String),
    Die,
    Hang,
    Flaky(u32),
}

/// The steps of a prompt.
pub fn steps(prompt: &str) -> Vec<Step> {
    prompt.lines().filter(|line| !line.trim().is_empty()).map(step).collect()
}

fn step(line: &str) -> Step {
    let (word, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let known = match word {
        "wait" => number(rest).map(|ms| Step::Wait(Duration::from_millis(ms))),
        "say" => Some(Step::Say(rest.to_owned())),
        "flood" => number(rest).map(|bytes| Step::Flood(bytes as usize)),
        "tokens" => rest.split_once(' ').and_then(|(i, o)| Some(Step::Tokens(number(i)?, number(o)?))),
        "fail" => {
            let (class, text) = rest.split_once(' ').unwrap_or((rest, "as asked"));
            class.parse().ok().map(|class| Step::Fail(class, text.to_owned()))
        }
        "limited" => {
            let (ms, text) = rest.split_once(' ').unwrap_or((rest, "as asked"));
            number(ms).map(|ms| Step::Limited(ms, text.to_owned()))
        }
        "die" => Some(Step::Die),
        "hang" => Some(Step::Hang),
        "flaky" => number(rest).map(|runs| Step::Flaky(runs as u32)),
        _ => None,
    };
    known.unwrap_or_else(|| Step::Say(line.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_prose() {
        let expected = vec![
            Step::Wait(Duration::from_millis(5)),
            Step::Fail(FailureClass::DiskFull, "no room".to_owned()),
            Step::Say("please wait for me".to_owned()),
        ];
        assert_eq!(steps("wait 5\nfail disk_full no room\n\nplease wait for me"), expected);
    }
}
