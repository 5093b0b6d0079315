//! Reads a batch file once into a private temporary file and checks every line: form, agent, queue, session, key. Nothing
//! is accepted before all of it is known to be right. The temporary file is gone with the process.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

use holdfast_shared::db::submit::Wish;
use holdfast_shared::domain::input::TurnInputs;
use holdfast_shared::domain::repository::Repository;
use holdfast_shared::domain::sandbox::hex;
use sha2::{Digest, Sha256};

use super::lines::Line;
use super::source::{Format, Source};
use crate::context::Context;
use crate::inputs::Files;
use crate::resolve;
use crate::schedule::LineDefaults;
use crate::stop::{Code, Stop};

/// A checked file.
pub struct Spool {
    file: File,
    /// SHA-256 (hex) of the good lines and of what the flags said for them.
    pub digest: String,
    pub lines: u64,
    pub bad: Vec<(u64, String)>,
    /// Turns per queue.
    pub queues: BTreeMap<String, u64>,
    wishes: Wishes,
}

/// Agents and queues of the file, each looked up once.
pub struct Wishes {
    agent: Option<String>,
    queue: String,
    known: HashMap<(Option<String>, String), Result<Wish, String>>,
    max_depth: HashMap<String, u64>,
    defaults: LineDefaults,
    /// The repository of each agent.
    repositories: HashMap<String, Option<Repository>>,
    files: Files,
    /// Of the lines that have any, by their numbers.
    inputs: HashMap<u64, TurnInputs>,
}

impl Wishes {
    /// `base` is where the relative paths of the lines begin.
    pub fn new(agent: Option<String>, queue: String, base: &Path) -> Self {
        Self {
            agent,
            queue,
            known: HashMap::new(),
            max_depth: HashMap::new(),
            defaults: LineDefaults::default(),
            repositories: HashMap::new(),
            files: Files::beside(base),
            inputs: HashMap::new(),
        }
    }

    /// What lines get that do not say otherwise.
    pub fn otherwise(mut self, defaults: LineDefaults) -> Self {
        self.defaults = defaults;
        self
    }

    /// Reads what goes into a line's turn, and keeps it for the load.
    fn inputs_of(&mut self, number: u64, line: &Line, wish: &Wish) -> Result<TurnInputs, String> {
        if line.inputs.is_empty() {
            return Ok(TurnInputs::default());
        }
        let repository = self.repositories.get(&wish.agent).and_then(Option::as_ref);
        let inputs = self.files.inputs(&line.inputs, repository)?;
        self.inputs.insert(number, inputs.clone());
        Ok(inputs)
    }

    async fn of(&mut self, context: &Context, line: &Line) -> Result<Result<Wish, String>, Stop> {
        let agent = line.agent.clone().or_else(|| self.agent.clone());
        let queue = line.queue.clone().unwrap_or_else(|| self.queue.clone());
        let key = (agent, queue);
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let found = self.look_up(context, &key).await;
        let found = match found {
            Ok(wish) => Ok(wish),
            Err(stop) if stop.code == Code::BadInput => {
                Err(stop.hint.as_ref().map_or_else(|| stop.to_string(), |hint| format!("{stop}; {hint}")))
            }
            Err(stop) => return Err(stop),
        };
        self.known.insert(key, found.clone());
        Ok(found)
    }

    async fn look_up(&mut self, context: &Context, key: &(Option<String>, String)) -> Result<Wish, Stop> {
        let agent = match &key.0 {
            Some(name) => resolve::agent(context, name).await?,
            None => resolve::default_agent(context, None).await?,
        };
        let queue = resolve::queue(context, &key.1).await?;
        self.max_depth.insert(queue.name.clone(), queue.policy.max_depth);
        self.repositories.insert(agent.name.clone(), agent.spec.start.repository.clone());
        Ok(resolve::wish(&agent, &queue))
    }
}

impl Spool {
    /// Reads and checks `input` line by line; empty lines are skipped.
    pub async fn read(context: &Context, input: impl Read, format: Format, mut wishes: Wishes) -> Result<Self, Stop> {
        let mut out = BufWriter::new(tempfile::tempfile()?);
        let (mut source, mut hash) = (Source::new(input, format)?, Sha256::new());
        hash.update(wishes.defaults.text());
        let (mut lines, mut bad) = (0, Vec::new());
        let (mut queues, mut keys) = (BTreeMap::new(), HashMap::new());
        while let Some((number, text)) = source.next()? {
            let text = match text {
                Ok(text) => text,
                Err(why) => {
                    bad.push((number, why));
                    continue;
                }
            };
            match check(context, &mut wishes, &mut keys, number, &text).await? {
                Err(why) => bad.push((number, why)),
                Ok(wish) => {
                    lines += 1;
                    *queues.entry(wish.queue.clone()).or_default() += 1;
                    let head = format!("{number} ");
                    out.write_all(head.as_bytes())?;
                    out.write_all(&text)?;
                    out.write_all(b"\n")?;
                    for part in [head.as_str(), &wish.agent, &wish.queue] {
                        hash.update(part);
                        hash.update([0]);
                    }
                    hash.update(&text);
                }
            }
        }
        let file = out.into_inner().map_err(std::io::IntoInnerError::into_error)?;
        Ok(Self { file, digest: hex(&hash.finalize()), lines, bad, queues, wishes })
    }

    /// What goes into the turn of a line that has been checked.
    pub fn inputs(&self, number: u64) -> TurnInputs {
        self.wishes.inputs.get(&number).cloned().unwrap_or_default()
    }

    /// The files of all lines.
    pub fn files(&self) -> Files {
        self.wishes.files.clone()
    }

    pub fn max_depth(&self, queue: &str) -> u64 {
        self.wishes.max_depth.get(queue).copied().unwrap_or(u64::MAX)
    }

    /// The checked lines from the beginning, with their numbers in the file.
    pub fn lines(&self) -> Result<impl Iterator<Item = Result<(u64, Line), Stop>> + use<>, Stop> {
        (&self.file).seek(SeekFrom::Start(0))?;
        let file = self.file.try_clone()?;
        let defaults = self.wishes.defaults.clone();
        Ok(BufReader::new(file).split(b'\n').map(move |line| {
            let line = line?;
            let space = line.iter().position(|&byte| byte == b' ').unwrap_or(line.len());
            let number = std::str::from_utf8(&line[..space]).ok().and_then(|text| text.parse().ok());
            match (number, Line::parse(&line[space..])) {
                (Some(number), Ok(line)) => Ok((number, defaults.fill(line))),
                _ => Err(Stop::failed("the temporary copy of the file was changed")),
            }
        }))
    }

    /// The wish of a line that has been checked.
    pub fn wish(&self, line: &Line) -> Option<Wish> {
        let agent = line.agent.clone().or_else(|| self.wishes.agent.clone());
        let queue = line.queue.clone().unwrap_or_else(|| self.wishes.queue.clone());
        self.wishes.known.get(&(agent, queue))?.clone().ok()
    }
}

async fn check(
    context: &Context,
    wishes: &mut Wishes,
    keys: &mut HashMap<String, u64>,
    number: u64,
    text: &[u8],
) -> Result<Result<Wish, String>, Stop> {
    let line = match Line::parse(text) {
        Ok(line) => wishes.defaults.fill(line),
        Err(why) => return Ok(Err(why)),
    };
    if let Some(key) = &line.key
        && let Some(first) = keys.insert(key.clone(), number)
    {
        keys.insert(key.clone(), first);
        return Ok(Err(format!("key `{key}` is on line {first} already")));
    }
    let wish = match wishes.of(context, &line).await? {
        Ok(wish) => wish,
        Err(why) => return Ok(Err(why)),
    };
    let inputs = match wishes.inputs_of(number, &line, &wish) {
        Ok(inputs) => inputs,
        Err(why) => return Ok(Err(why)),
    };
    let turn = super::load::turn(context.namespace(), "x", number, line, wish.clone(), inputs);
    Ok(match turn.problem() {
        Some(why) => Err(why),
        None => Ok(wish),
    })
}
