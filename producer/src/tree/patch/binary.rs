//! Content that is no text, as git's patches carry it: a zlib stream in base 85, at most 52 bytes a line. The stream is not
//! compressed: a patch is made once and read once. Pure.

const ALPHABET: &[u8; 85] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";
const LINE: usize = 52;
/// Most bytes of a block that is not compressed.
const BLOCK: usize = 65_535;

/// A whole content.
pub fn literal(content: &[u8]) -> String {
    let mut out = format!("literal {}\n", content.len());
    for line in stored(content).chunks(LINE) {
        let len = line.len() as u8;
        out.push(char::from(if len <= 26 { b'A' + len - 1 } else { b'a' + len - 27 }));
        for group in line.chunks(4) {
            let mut word = [0; 4];
            word[..group.len()].copy_from_slice(group);
            let mut value = u32::from_be_bytes(word);
            let mut digits = [0; 5];
            for digit in digits.iter_mut().rev() {
                *digit = ALPHABET[(value % 85) as usize];
                value /= 85;
            }
            out.extend(digits.map(char::from));
        }
        out.push('\n');
    }
    out.push('\n');
    out
}

/// A zlib stream of blocks as they are.
fn stored(content: &[u8]) -> Vec<u8> {
    let mut out = vec![0x78, 0x01];
    let last = content.len().div_ceil(BLOCK).max(1) - 1;
    for (number, block) in
        (0..=last).map(|number| (number, &content[number * BLOCK..content.len().min((number + 1) * BLOCK)]))
    {
        out.push(u8::from(number == last));
        let len = block.len() as u16;
        out.extend(len.to_le_bytes());
        out.extend((!len).to_le_bytes());
        out.extend_from_slice(block);
    }
    out.extend(adler(content).to_be_bytes());
    out
}

fn adler(content: &[u8]) -> u32 {
    let (mut a, mut b) = (1u32, 0u32);
    // As many bytes as cannot overflow before the remainder is taken.
    for part in content.chunks(5_552) {
        for byte in part {
            a += u32::from(*byte);
            b += a;
        }
        (a, b) = (a % 65_521, b % 65_521);
    }
    b << 16 | a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_lines_are_as_they_must_be() {
        assert_eq!(adler(b"Wikipedia"), 0x11e6_0398);
        assert_eq!(stored(b""), [0x78, 1, 1, 0, 0, 0xff, 0xff, 0, 0, 0, 1]);
        let long = vec![7; 2 * BLOCK + 1];
        assert_eq!(stored(&long).len(), long.len() + 2 + 3 * 5 + 4);
        assert!(literal(&long).lines().skip(1).all(|line| line.len() <= 66));
    }
}
