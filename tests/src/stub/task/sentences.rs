//! Cuts a prompt into sentences, minding backticks, quotation marks, lists and fences. Pure.

/// One sentence without its full stop, and the fenced block under it.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Sentence {
    pub(super) text: String,
    pub(super) block: Option<String>,
    /// It ends with a colon: without a block it only leads over to what follows.
    pub(super) leads_over: bool,
}

pub(super) fn split(prompt: &str) -> Vec<Sentence> {
    let mut found = Vec::new();
    let mut paragraph = String::new();
    let mut lines = prompt.lines();
    while let Some(line) = lines.next() {
        let trimmed = line.trim();
        if let Some(fence) = fence(trimmed) {
            flush(&mut paragraph, &mut found);
            let indent = line.len() - line.trim_start().len();
            let block: String = lines
                .by_ref()
                .take_while(|inside| !(inside.trim().starts_with(fence) && inside.trim().trim_matches('`').is_empty()))
                .map(|inside| format!("{}\n", unindent(inside, indent)))
                .collect();
            if let Some(last) = found.last_mut().filter(|last: &&mut Sentence| last.block.is_none()) {
                last.block = Some(block);
            }
            continue;
        }
        let item = list_item(trimmed);
        if trimmed.is_empty() || item.is_some() {
            flush(&mut paragraph, &mut found);
        }
        if !paragraph.is_empty() {
            paragraph.push(' ');
        }
        paragraph.push_str(item.unwrap_or(trimmed));
    }
    flush(&mut paragraph, &mut found);
    found
}

/// Every place where a sentence may be two: "A and B", "A, then B".
pub(super) fn joints(text: &str) -> Vec<(&str, &str)> {
    const WORDS: [&str; 5] = [", and then ", ", then ", " and then ", ", and ", " and "];
    let outside = outside_quotes(text);
    let mut found = Vec::new();
    let mut from = 0;
    while from < text.len() {
        let hit = text
            .is_char_boundary(from)
            .then(|| WORDS.iter().find(|word| outside[from] && text[from..].starts_with(**word)))
            .flatten();
        if let Some(word) = hit {
            found.push((&text[..from], &text[from + word.len()..]));
            from += word.len() - 1;
        } else {
            from += 1;
        }
    }
    found
}

/// The run of backticks that opens a fence.
fn fence(line: &str) -> Option<&str> {
    let ticks = line.len() - line.trim_start_matches('`').len();
    (ticks >= 3 && !line[ticks..].contains('`')).then(|| &line[..ticks])
}

fn unindent(line: &str, indent: usize) -> &str {
    let blank = line.len() - line.trim_start_matches(' ').len();
    &line[blank.min(indent)..]
}

fn list_item(line: &str) -> Option<&str> {
    if let Some(rest) = line.strip_prefix("- ").or_else(|| line.strip_prefix("* ")) {
        return Some(rest.trim_start());
    }
    let digits = line.len() - line.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let rest = line[digits..].strip_prefix(". ").or_else(|| line[digits..].strip_prefix(") "))?;
    (digits > 0).then(|| rest.trim_start())
}

fn flush(paragraph: &mut String, found: &mut Vec<Sentence>) {
    let text = std::mem::take(paragraph);
    let outside = outside_quotes(&text);
    let mut start = 0;
    for (at, c) in text.char_indices() {
        let ends = matches!(c, '.' | '!' | '?' | ';') && outside[at];
        let next = text[at + c.len_utf8()..].chars().next();
        if ends && next.is_none_or(char::is_whitespace) {
            push(&text[start..at], found);
            start = at + c.len_utf8();
        }
    }
    push(&text[start..], found);
}

fn push(text: &str, found: &mut Vec<Sentence>) {
    let leads_over = text.trim_end().ends_with(':');
    let text = text.trim().trim_end_matches(':').trim_end();
    if text.chars().any(char::is_alphanumeric) {
        found.push(Sentence { text: text.to_owned(), block: None, leads_over });
    }
}

/// For every byte: is it outside of backticks and double quotes? A mark that is never closed opens nothing.
fn outside_quotes(text: &str) -> Vec<bool> {
    let mut outside = vec![true; text.len()];
    let mut rest = 0;
    while let Some(start) = text[rest..].find(['`', '"']).map(|at| at + rest) {
        let mark = text.as_bytes()[start] as char;
        match text[start + 1..].find(mark) {
            Some(length) => {
                outside[start..=start + 1 + length].fill(false);
                rest = start + length + 2;
            }
            None => rest = start + 1,
        }
    }
    outside
}
