//! One part of a pattern against one name: `*`, `?`, `[...]`, `\`. Bytes, not text: names need not be UTF-8. Pure.

#[derive(Clone, Debug)]
pub(super) struct Glob(Vec<Token>);

#[derive(Clone, Debug)]
enum Token {
    Byte(u8),
    /// `?`
    One,
    /// `*`
    Many,
    Class {
        ranges: Vec<(u8, u8)>,
        inside: bool,
    },
}

impl Glob {
    pub(super) fn read(text: &[u8]) -> Result<Self, &'static str> {
        let (mut tokens, mut at) = (Vec::new(), 0);
        while let Some(byte) = text.get(at) {
            at += 1;
            match byte {
                b'*' if matches!(tokens.last(), Some(Token::Many)) => {}
                b'*' => tokens.push(Token::Many),
                b'?' => tokens.push(Token::One),
                b'\\' => {
                    tokens.push(Token::Byte(*text.get(at).ok_or("ends in `\\`, which escapes nothing")?));
                    at += 1;
                }
                b'[' => {
                    let (class, end) = class(text, at)?;
                    tokens.push(class);
                    at = end;
                }
                byte => tokens.push(Token::Byte(*byte)),
            }
        }
        Ok(Self(tokens))
    }
}

/// What stands behind `[`, and where it ends.
fn class(text: &[u8], mut at: usize) -> Result<(Token, usize), &'static str> {
    const OPEN: &str = "has a `[` that is never closed";
    let inside = !matches!(text.get(at), Some(b'!' | b'^'));
    at += usize::from(!inside);
    let (first, mut ranges) = (at, Vec::new());
    loop {
        match text.get(at).ok_or(OPEN)? {
            b']' if at > first => return Ok((Token::Class { ranges, inside }, at + 1)),
            b'[' if text.get(at + 1) == Some(&b':') => {
                let rest = &text[at + 2..];
                let end = rest.windows(2).position(|two| two == b":]").ok_or(OPEN)?;
                ranges.extend(named(&rest[..end])?);
                at += end + 4;
            }
            _ => {
                let low = literal(text, &mut at).ok_or(OPEN)?;
                if text.get(at) == Some(&b'-') && text.get(at + 1).is_some_and(|byte| *byte != b']') {
                    at += 1;
                    ranges.push((low, literal(text, &mut at).ok_or(OPEN)?));
                } else {
                    ranges.push((low, low));
                }
            }
        }
    }
}

fn literal(text: &[u8], at: &mut usize) -> Option<u8> {
    *at += usize::from(text.get(*at) == Some(&b'\\'));
    let byte = *text.get(*at)?;
    *at += 1;
    Some(byte)
}

fn named(name: &[u8]) -> Result<Vec<(u8, u8)>, &'static str> {
    Ok(match name {
        b"alnum" => vec![(b'0', b'9'), (b'A', b'Z'), (b'a', b'z')],
        b"alpha" => vec![(b'A', b'Z'), (b'a', b'z')],
        b"blank" => vec![(b' ', b' '), (b'\t', b'\t')],
        b"digit" => vec![(b'0', b'9')],
        b"lower" => vec![(b'a', b'z')],
        b"punct" => vec![(b'!', b'/'), (b':', b'@'), (b'[', b'`'), (b'{', b'~')],
        b"space" => vec![(b' ', b' '), (b'\t', b'\r')],
        b"upper" => vec![(b'A', b'Z')],
        b"xdigit" => vec![(b'0', b'9'), (b'A', b'F'), (b'a', b'f')],
        _ => return Err("names an unknown class"),
    })
}

/// Goes back to the last `*` only, which is enough: no pattern takes longer than pattern times name.
pub(super) fn matches(glob: &Glob, name: &[u8]) -> bool {
    let (mut at, mut byte, mut back) = (0, 0, None);
    while byte < name.len() {
        let here = match glob.0.get(at) {
            Some(Token::Many) => {
                at += 1;
                back = Some((at, byte));
                continue;
            }
            Some(token) => token.takes(name[byte]),
            None => false,
        };
        if here {
            at += 1;
            byte += 1;
            continue;
        }
        match &mut back {
            Some((again, from)) => {
                *from += 1;
                (at, byte) = (*again, *from);
            }
            None => return false,
        }
    }
    glob.0[at..].iter().all(|token| matches!(token, Token::Many))
}

impl Token {
    fn takes(&self, byte: u8) -> bool {
        match self {
            Token::Byte(other) => *other == byte,
            Token::One => true,
            Token::Many => false,
            Token::Class { ranges, inside } => {
                ranges.iter().any(|(low, high)| (*low..=*high).contains(&byte)) == *inside
            }
        }
    }
}
