//! Values on the command line, and what is wrong with one, in a line.

use std::time::Duration;

use anyhow::Context;
use clap::error::{ContextKind, ErrorKind};

use crate::output::one_line;

/// Settings or a command line that make no sense, one line each; the exit code is 64.
#[derive(Debug)]
pub(crate) struct Mistakes(pub(crate) Vec<String>);

impl std::fmt::Display for Mistakes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

impl std::error::Error for Mistakes {}

/// What is wrong with a command line, and what to do, in one line.
pub(crate) fn mistake(error: &clap::Error) -> String {
    let said = |kind| error.get(kind).map(ToString::to_string);
    // `Usage: memtape run [OPTIONS] <CMD>...`
    let usage = said(ContextKind::Usage).unwrap_or_default();
    let is_name = |word: &&str| word.starts_with(|c: char| c.is_ascii_lowercase());
    let names: Vec<&str> = usage.split_whitespace().skip(1).take_while(is_name).collect();
    let command = if names.is_empty() { "memtape".to_string() } else { names.join(" ") };
    let option = said(ContextKind::InvalidArg).filter(|word| word.starts_with('-'));
    let unknown = match (error.kind(), option) {
        (ErrorKind::UnknownArgument, Some(option)) => {
            Some((format!("option {option}"), ContextKind::SuggestedArg))
        }
        (ErrorKind::InvalidSubcommand, _) => {
            let name = said(ContextKind::InvalidSubcommand).unwrap_or_default();
            Some((format!("command {name}"), ContextKind::SuggestedSubcommand))
        }
        _ => None,
    };
    if let Some((what, suggested)) = unknown {
        let near = said(suggested);
        let near = near.map_or(String::new(), |near| format!(" (did you mean {near}?)"));
        return one_line(&format!("unknown {what}{near}; see {command} --help"));
    }
    // clap puts usage and tips into further paragraphs.
    let text = error.to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    one_line(&format!("{}; see {command} --help", first.trim_start_matches("error: ")))
}

/// Reads `60s`, `250ms`, `5m`, `24h`; a number alone is seconds.
pub(crate) fn duration(text: &str) -> anyhow::Result<Duration> {
    const MS: [(&str, u64); 6] =
        [("ms", 1), ("", 1_000), ("s", 1_000), ("m", 60_000), ("min", 60_000), ("h", 3_600_000)];
    let ms = measure(text, &MS).context("it must be a time such as 250ms, 60s, 5m or 24h")?;
    Ok(Duration::from_millis(ms))
}

/// Reads `1048576`, `512KiB`, `8GiB`.
pub(crate) fn byte_count(text: &str) -> anyhow::Result<u64> {
    const BYTES: [(&str, u64); 6] =
        [("", 1), ("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];
    measure(text, &BYTES).context("it must be a size such as 512MiB or 8GiB")
}

/// A whole number and one of these units.
fn measure(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let (_, size) = units.iter().find(|(name, _)| *name == unit.trim())?;
    number.parse::<u64>().ok()?.checked_mul(*size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes() {
        let ms = |text: &str| duration(text).ok().map(|time| time.as_millis());
        for (text, expected) in [
            ("60s", Some(60_000)),
            ("60", Some(60_000)),
            ("250ms", Some(250)),
            ("5m", Some(300_000)),
            ("24h", Some(86_400_000)),
            ("", None),
            ("s", None),
            ("1.5s", None),
            ("-3s", None),
            ("99999999999999999999s", None),
            ("18446744073709551615h", None),
        ] {
            assert_eq!(ms(text), expected, "{text}");
        }
        for (text, expected) in [
            ("0", Some(0)),
            ("512KiB", Some(524_288)),
            ("8GiB", Some(8 << 30)),
            ("8GB", None),
            ("99999999999TiB", None),
        ] {
            assert_eq!(byte_count(text).ok(), expected, "{text}");
        }
    }
}
