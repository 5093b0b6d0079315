//! `holdfast checkpoint`: what is kept and why, whether it is whole, names that keep it, and giving up the rest. Each
//! command may be stopped and given again.

use clap::Subcommand;
use holdfast_protocol::CheckpointId;
use holdfast_shared::db::checkpoints::{Move, TagError, Tagged};
use serde_json::json;

use crate::context::Context;
use crate::printer;
use crate::resolve;
use crate::stop::Stop;

mod gc;
mod list;
mod rekey;
mod verify;

#[derive(Subcommand)]
pub enum CheckpointCommand {
    /// List checkpoints, newest first
    Ls(list::ListArgs),
    /// Show a checkpoint
    Show {
        /// A checkpoint id, its first digits, or a tag
        checkpoint: String,
    },
    /// Check that checkpoints are whole
    Verify(verify::VerifyArgs),
    /// Give up what nothing keeps, and free what no checkpoint needs
    Gc(gc::GcArgs),
    /// Give a checkpoint a name, which also keeps it
    #[command(after_help = "Examples:\n  holdfast checkpoint tag ckp_0199f2 before-refactoring\n  \
        holdfast checkpoint tag ckp_0199f2 stable --move\n  holdfast checkpoint tag --remove before-refactoring")]
    Tag {
        /// A checkpoint id, its first digits, or another tag of it
        #[arg(required_unless_present = "remove")]
        checkpoint: Option<String>,
        #[arg(required_unless_present = "remove")]
        tag: Option<String>,
        /// Take the tag from the checkpoint that has it now
        #[arg(long = "move")]
        moving: bool,
        /// Take a tag away; the checkpoint is kept only if something else keeps it
        #[arg(long, value_name = "TAG", conflicts_with_all = ["checkpoint", "tag", "moving"])]
        remove: Option<String>,
    },
    /// Seal everything in the store with the newest key
    Rekey(rekey::RekeyArgs),
}

pub async fn run(context: &Context, command: CheckpointCommand) -> Result<(), Stop> {
    match command {
        CheckpointCommand::Ls(args) => list::run(context, args).await,
        CheckpointCommand::Show { checkpoint } => list::show(context, &checkpoint).await,
        CheckpointCommand::Verify(args) => verify::run(context, args).await,
        CheckpointCommand::Gc(args) => gc::run(context, args).await,
        CheckpointCommand::Tag { remove: Some(tag), .. } => untag(context, &tag).await,
        CheckpointCommand::Tag { checkpoint, tag, moving, .. } => {
            let moving = if moving { Move::Allowed } else { Move::Refused };
            self::tag(context, &checkpoint.unwrap_or_default(), &tag.unwrap_or_default(), moving).await
        }
        CheckpointCommand::Rekey(args) => rekey::run(context, args).await,
    }
}

async fn tag(context: &Context, checkpoint: &str, tag: &str, moving: Move) -> Result<(), Stop> {
    let checkpoint = resolve::checkpoint(context, None, checkpoint).await?.checkpoint();
    let done = context.db().await?.tag_checkpoint(context.namespace(), checkpoint, tag, moving).await;
    let done = done.map_err(|error| {
        let text = error.to_string();
        match error {
            TagError::Db(error) => error.into(),
            TagError::Taken { .. } => Stop::bad(text).hint("move it with --move"),
            TagError::Collected(_) => Stop::failed(text),
            _ => Stop::bad(text),
        }
    })?;
    told(
        context,
        tag,
        checkpoint,
        match done {
            Tagged::New => format!("{checkpoint} is now `{tag}` and is kept"),
            Tagged::Unchanged => format!("{checkpoint} was `{tag}` already"),
            Tagged::Moved(from) => format!("`{tag}` moved from {from} to {checkpoint}"),
        },
    );
    Ok(())
}

async fn untag(context: &Context, tag: &str) -> Result<(), Stop> {
    match context.db().await?.untag(context.namespace(), tag).await? {
        Some(checkpoint) => {
            told(context, tag, checkpoint, format!("{checkpoint} is not `{tag}` any more"));
            Ok(())
        }
        None => Err(Stop::bad(format!("unknown tag `{tag}`")).hint("`holdfast checkpoint ls` shows the tags")),
    }
}

fn told(context: &Context, tag: &str, checkpoint: CheckpointId, text: String) {
    if context.json {
        printer::json(&json!({ "tag": tag, "checkpoint": checkpoint }));
    } else {
        printer::say(text);
    }
}
