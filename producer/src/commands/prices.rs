//! `holdfast prices`: what a million tokens of each model cost. A file is applied whole or not at all.

use clap::Subcommand;
use holdfast_shared::db::budget::Price;
use holdfast_shared::domain::budget::Usd;
use holdfast_shared::domain::problem::Problems;
use toml::{Table, Value};

use super::read_file;
use crate::context::Context;
use crate::printer;
use crate::stop::Stop;
use crate::table::Rows;

const FIELDS: &[&str] = &["input", "output", "cache_read", "cache_write"];

#[derive(Subcommand)]
pub enum PricesCommand {
    /// Store the prices of a TOML file; models that it does not name keep theirs
    #[command(
        after_help = "Example file, dollars for a million tokens:\n  [price.\"gpt-5.3-codex\"]\n  input = 1.25\n  \
        output = 10.0\n  cache_read = 0.125   # unset: as input\n  cache_write = 1.25   # unset: as input\n\n  \
        [price.\"gpt-5*\"]      # all names that begin so; the longest fits first\n  input = 1.5\n  output = 12.0\n\n\
        Claude Code reports what a turn cost by itself; the table is used for its tokens until then."
    )]
    Apply {
        /// The file, `-` for stdin
        file: String,
    },
    /// List the prices
    Ls,
}

pub async fn run(context: &Context, command: PricesCommand) -> Result<(), Stop> {
    match command {
        PricesCommand::Apply { file } => {
            let prices = read(&file, &read_file(&file)?)?;
            context.db().await?.apply_prices(&prices).await?;
            print(context, &prices);
            Ok(())
        }
        PricesCommand::Ls => {
            let prices = context.db().await?.prices().await?;
            print(context, &prices);
            Ok(())
        }
    }
}

fn print(context: &Context, prices: &[Price]) {
    if context.json {
        printer::json(&prices);
        return;
    }
    let mut rows = Rows::new(&["model", "input", "output", "cache read", "cache write"]).right(&[
        "input",
        "output",
        "cache read",
        "cache write",
    ]);
    for price in prices {
        let amounts = [price.input, price.output, price.cache_read, price.cache_write];
        rows.row(std::iter::once(price.model.clone()).chain(amounts.map(|usd| usd.to_string())));
    }
    rows.print("no price yet; run `holdfast prices apply prices.toml`");
}

/// The prices of a file; everything wrong with it at once.
fn read(file: &str, text: &str) -> Result<Vec<Price>, Problems> {
    let mut problems = Problems::new(file);
    let table: Table = match text.parse() {
        Ok(table) => table,
        Err(error) => {
            problems.add("", format!("not TOML: {}", error.to_string().lines().next().unwrap_or_default()));
            return Err(problems);
        }
    };
    let mut prices = Vec::new();
    for (key, value) in &table {
        match value {
            Value::Table(models) if key == "price" => {
                prices.extend(models.iter().filter_map(|(model, value)| price(&mut problems, model, value)));
            }
            _ if key == "price" => problems.add("price", "must be tables: [price.\"MODEL\"]"),
            _ => problems.unknown("", "table", key, ["price"]),
        }
    }
    if prices.is_empty() && problems.list.is_empty() {
        problems.add("", "names no price; begin with [price.\"MODEL\"] and input = 1.25");
    }
    problems.or(prices)
}

fn price(problems: &mut Problems, model: &str, value: &Value) -> Option<Price> {
    let place = format!("price.\"{model}\"");
    let Value::Table(table) = value else {
        problems.add(&place, "must be a table");
        return None;
    };
    for name in table.keys().filter(|name| !FIELDS.contains(&name.as_str())) {
        problems.unknown(&place, "field", name, FIELDS.iter().copied());
    }
    let mut amount = |name: &str| {
        let value = table.get(name)?;
        let dollars = value.as_float().or_else(|| value.as_integer().map(|number| number as f64));
        let usd = dollars.and_then(Usd::from_dollars);
        if usd.is_none() {
            problems.add(format!("{place}.{name}"), "must be dollars for a million tokens, 0 or more");
        }
        usd
    };
    let (input, output) = (amount("input"), amount("output"));
    let (cache_read, cache_write) = (amount("cache_read"), amount("cache_write"));
    for name in ["input", "output"].iter().filter(|name| !table.contains_key(**name)) {
        problems.add(format!("{place}.{name}"), "is missing");
    }
    let (input, output) = (input?, output?);
    Some(Price {
        model: model.to_owned(),
        input,
        output,
        cache_read: cache_read.unwrap_or(input),
        cache_write: cache_write.unwrap_or(input),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_read_or_refused_with_all_that_is_wrong() {
        let text = "[price.\"gpt-5*\"]\ninput = 1.25\noutput = 10\n";
        let prices = read("p.toml", text).expect("right");
        assert_eq!((prices[0].model.as_str(), prices[0].cache_read), ("gpt-5*", prices[0].input));
        let wrong = "[price.a]\ninput = -1\noutputs = 2\n[prices.b]\n[price.c]\ninput = \"1\"\noutput = 1\n";
        insta::assert_snapshot!(read("p.toml", wrong).expect_err("wrong").to_string(), @r#"
        p.toml: 5 problems
          price."a": unknown field `outputs`; did you mean `output`?
          price."a".input: must be dollars for a million tokens, 0 or more
          price."a".output: is missing
          price."c".input: must be dollars for a million tokens, 0 or more
          unknown table `prices`; did you mean `price`?
        "#);
        assert!(read("p.toml", "").expect_err("empty").to_string().contains("names no price"));
    }
}
