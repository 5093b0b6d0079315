//! `holdfast checkpoint rekey`: everything in the store is sealed with the first of the given keys. A pack at a time, safe
//! beside running turns, to be given again when it was stopped.

use clap::Args;
use holdfast_shared::store::rekey::rekey;
use serde_json::json;

use crate::context::Context;
use crate::printer;
use crate::stop::Stop;
use crate::text;

#[derive(Args)]
#[command(
    after_help = "To change the key: put a new one in front of the old one in HOLDFAST_STORE_KEYS_FILE on every host,\n\
    restart the workers, run this, then take the old key out.\n\
    To seal what lies unsealed: give a first key and run this. To unseal: run this with --unseal."
)]
pub struct RekeyArgs {
    /// Write everything without a seal; the keys are needed to read it
    #[arg(long)]
    unseal: bool,
}

pub async fn run(context: &Context, args: RekeyArgs) -> Result<(), Stop> {
    let store = context.store().await?;
    let store = if args.unseal { store.unsealing() } else { store };
    let key = store.sealing().map(str::to_owned);
    if key.is_none() && !args.unseal {
        return Err(Stop::bad("no key is given to seal with")
            .hint("set HOLDFAST_STORE_KEYS_FILE, or say --unseal to write everything without a seal"));
    }
    let bar = printer::bar(0, "packs written anew");
    let done = rekey(&store, context.namespace(), &mut |done| bar.set_position(done.packs)).await;
    bar.finish_and_clear();
    let done = done?;
    if context.json {
        printer::json(&json!({ "key": key, "packs": done.packs, "bytes": done.bytes }));
    } else {
        let how = key.map_or("unsealed".to_owned(), |key| format!("sealed with `{key}`"));
        printer::say(format!(
            "{}, {} written anew; all is {how}",
            text::count(done.packs, "pack"),
            text::bytes(done.bytes)
        ));
    }
    Ok(())
}
