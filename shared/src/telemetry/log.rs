//! Logs: to stderr, for a person on a terminal and as JSON lines otherwise. Stdout stays for data.
//!
//! Lines that were written are with the terminal or the collector; a crash loses none of them.

use std::io::IsTerminal;
use std::str::FromStr;

use tracing_subscriber::EnvFilter;

/// lapin logs every failure that it also returns; ours are logged once, where they are handled.
const DEFAULT_FILTER: &str = "info,lapin=off,sqlx=warn";

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    /// Human on a terminal, JSON otherwise.
    #[default]
    Auto,
    Human,
    Json,
}

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("`{0}` is not a log format (auto, human or json)")]
    Format(String),
    #[error("`{filter}` is not a log filter (for example `info,holdfast_worker=debug`)")]
    Filter {
        filter: String,
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    #[error("logging was set up twice")]
    Twice,
}

impl FromStr for LogFormat {
    type Err = LogError;

    fn from_str(text: &str) -> Result<Self, LogError> {
        match text {
            "" | "auto" => Ok(Self::Auto),
            "human" => Ok(Self::Human),
            "json" => Ok(Self::Json),
            other => Err(LogError::Format(other.to_owned())),
        }
    }
}

/// Once per process, first of all. `filter` is what HOLDFAST_LOG or RUST_LOG says, if anything.
pub fn init(format: LogFormat, filter: Option<&str>) -> Result<(), LogError> {
    let filter = filter.filter(|filter| !filter.is_empty()).unwrap_or(DEFAULT_FILTER);
    let parsed = EnvFilter::try_new(filter).map_err(|source| LogError::Filter { filter: filter.to_owned(), source })?;
    let terminal = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt().with_env_filter(parsed).with_writer(std::io::stderr);
    let human = match format {
        LogFormat::Auto => terminal,
        LogFormat::Human => true,
        LogFormat::Json => false,
    };
    let done = if human {
        lines.with_target(false).with_ansi(terminal).try_init()
    } else {
        lines.json().flatten_event(true).with_current_span(true).with_span_list(false).try_init()
    };
    done.map_err(|_| LogError::Twice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_settings_are_named() {
        assert_eq!("json".parse::<LogFormat>().ok(), Some(LogFormat::Json));
        assert_eq!(
            "xml".parse::<LogFormat>().expect_err("no such format").to_string(),
            "`xml` is not a log format (auto, human or json)"
        );
        let error = init(LogFormat::Json, Some("info,=what=")).expect_err("no such filter");
        assert_eq!(error.to_string(), "`info,=what=` is not a log filter (for example `info,holdfast_worker=debug`)");
    }
}
