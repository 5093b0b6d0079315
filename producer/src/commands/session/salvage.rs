//! `holdfast session salvage`: what turns without success left in their workspace, listed, written out, gone on with.
//! Reads only, but for what an export writes and the session that a fork makes.

use std::path::PathBuf;

use clap::Subcommand;
use holdfast_protocol::{SalvageId, SessionId};
use holdfast_shared::db::fork::Origin;

use super::files::write;
use super::history::forked;
use crate::batch::report::changes;
use crate::context::Context;
use crate::printer;
use crate::resolve::{self, Point};
use crate::stop::Stop;
use crate::table::{Rows, or_dash};
use crate::text;
use crate::tree::Snapshot;

#[derive(Subcommand)]
pub enum SalvageCommand {
    /// List the workspaces that failed and cancelled turns left
    Ls {
        /// Only of this session
        #[arg(long, value_name = "NAME")]
        session: Option<String>,
    },
    /// Write the files of one out
    #[command(after_help = "Example: holdfast session salvage export slv_0199f2 --dir ./salvaged")]
    Export {
        salvage: String,
        /// Write a tar file, `-` for stdout
        #[arg(short = 'o', long, value_name = "FILE", required_unless_present = "dir")]
        tar: Option<String>,
        /// Write a directory that is not there yet
        #[arg(long, value_name = "DIR", conflicts_with = "tar")]
        dir: Option<PathBuf>,
    },
    /// Make a session that goes on from one
    #[command(after_help = "Example: holdfast session salvage fork slv_0199f2 --as s1-salvaged")]
    Fork {
        salvage: String,
        /// Name of the new session
        #[arg(long = "as", value_name = "NAME")]
        name: String,
    },
}

pub async fn run(context: &Context, command: SalvageCommand) -> Result<(), Stop> {
    match command {
        SalvageCommand::Ls { session } => list(context, session).await,
        SalvageCommand::Export { salvage, tar, dir } => {
            let point = Point::Salvage(Box::new(resolve::salvage(context, &salvage).await?));
            write(&Snapshot::of(context, &point).await?, tar.as_deref(), dir.as_deref()).await
        }
        SalvageCommand::Fork { salvage, name } => {
            let id = SalvageId(resolve::salvage(context, &salvage).await?.id);
            forked(context, Origin::Salvage(id), &name, &id.to_string()).await
        }
    }
}

async fn list(context: &Context, session: Option<String>) -> Result<(), Stop> {
    let session = match session {
        Some(name) => Some(SessionId(resolve::session(context, &name).await?.id)),
        None => None,
    };
    let salvages = context.db().await?.list_salvages(context.namespace(), session).await?;
    if context.json {
        printer::json(&salvages);
        return Ok(());
    }
    let mut rows = Rows::new(&["salvage", "session", "seq", "class", "files", "made", "kept until"]);
    for salvage in &salvages {
        rows.row([
            SalvageId(salvage.id).to_string(),
            salvage.session.clone(),
            or_dash(salvage.seq),
            salvage.class.clone(),
            changes(Some(&salvage.stats)),
            text::at(salvage.created_at),
            text::at(salvage.expires_at),
        ]);
    }
    rows.print("no salvage: no failed or cancelled turn left a workspace, or their time is over");
    Ok(())
}
