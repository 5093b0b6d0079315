//! How the files that came with a turn are given to an agent program: pictures as their bytes, other files by name.
//!
//! Reads the staged files back, as the agent's own tools would, without following a link; writes nothing.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use holdfast_protocol::input::{InputKind, StagedInput};
use holdfast_protocol::message::StartTurn;

use crate::settings::Place;
use crate::stage;

/// A picture as model endpoints take it.
pub struct Picture {
    pub media_type: String,
    pub base64: String,
}

/// The pictures of the turn, in order.
pub fn pictures(turn: &StartTurn, place: &Place) -> Result<Vec<Picture>, String> {
    let images = turn.inputs.iter().filter(|input| input.kind == InputKind::Image);
    images
        .map(|image| {
            let bytes = stage::read(&place.workspace, &image.path, image.size)
                .filter(|bytes| bytes.len() as u64 == image.size)
                .ok_or_else(|| format!("the image {} is not as it was staged", image.path))?;
            Ok(Picture { media_type: image.media_type.clone(), base64: STANDARD.encode(bytes) })
        })
        .collect()
}

/// What the prompt says of the files, where there are any.
pub fn note(inputs: &[StagedInput]) -> Option<String> {
    let line = |input: &StagedInput| format!("- {} ({}, {} bytes)", input.path, input.media_type, input.size);
    let lines: Vec<String> = inputs.iter().map(line).collect();
    (!lines.is_empty()).then(|| format!("Attached files, in the workspace:\n{}", lines.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_where_there_are_any() {
        assert_eq!(note(&[]), None);
        let input = StagedInput {
            path: ".holdfast/inputs/a.csv".to_owned(),
            media_type: "text/plain".to_owned(),
            size: 3,
            kind: InputKind::File,
        };
        assert_eq!(
            note(&[input]).unwrap(),
            "Attached files, in the workspace:\n- .holdfast/inputs/a.csv (text/plain, 3 bytes)"
        );
    }
}
