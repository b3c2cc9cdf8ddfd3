//! Values on the command line, and what is wrong with one, in a line.

use std::net::AddrParseError;
use std::num::{IntErrorKind, ParseIntError};

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::output::one_line;

/// Settings or a command line that make no sense, one line each; the exit code is 64.
#[derive(Debug)]
pub(crate) struct Mistakes(pub(crate) Vec<String>);

impl Mistakes {
    /// One line.
    pub(crate) fn one(line: impl Into<String>) -> Self {
        Self(vec![line.into()])
    }
}

impl std::fmt::Display for Mistakes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

impl std::error::Error for Mistakes {}

/// What is wrong with these words of a whole command line, and what to do, in one line.
pub(crate) fn mistake(error: &clap::Error, whole: &clap::Command, words: &[String]) -> String {
    let said = |kind| error.get(kind).map(ToString::to_string);
    let unknown =
        said(ContextKind::InvalidArg).filter(|_| error.kind() == ErrorKind::UnknownArgument);
    let is_unknown = |word: &&String| unknown.as_ref().is_some_and(|name| word.starts_with(name));
    let command = command_in(whole, words.iter().take_while(|word| !is_unknown(word)));
    let near = |kind| best(error.get(kind)).filter(|name| !is_hidden(whole, name));
    let (what, near) = match error.kind() {
        ErrorKind::MissingSubcommand => ("no command is given".to_string(), None),
        ErrorKind::InvalidSubcommand => {
            let name = said(ContextKind::InvalidSubcommand).unwrap_or_default();
            // clap compares the names of commands only.
            let near = match name.as_str() {
                "version" => Some("--version".to_string()),
                _ => near(ContextKind::SuggestedSubcommand),
            };
            (format!("unknown command {name}"), near)
        }
        ErrorKind::UnknownArgument => match said(ContextKind::InvalidArg) {
            Some(option) if option.starts_with('-') => {
                (format!("unknown option {option}"), near(ContextKind::SuggestedArg))
            }
            _ => (first_paragraph(error), None),
        },
        ErrorKind::InvalidValue => (first_paragraph(error), near(ContextKind::SuggestedValue)),
        ErrorKind::ValueValidation => (wrong_value(error), None),
        ErrorKind::MissingRequiredArgument => match said(ContextKind::InvalidArg) {
            Some(names) => (format!("missing: {names}"), None),
            None => (first_paragraph(error), None),
        },
        _ => (first_paragraph(error), None),
    };
    let near = near.map_or(String::new(), |near| format!(" (did you mean {near}?)"));
    one_line(&format!("{what}{near}; see {command} --help"))
}

/// `memtape store check`: the command that the words name, as far as they name one.
fn command_in<'a>(whole: &clap::Command, words: impl Iterator<Item = &'a String>) -> String {
    let mut command = whole;
    let mut names = vec!["memtape"];
    for word in words.skip(1).filter(|word| !word.starts_with('-')) {
        let Some(below) = command.find_subcommand(word) else { continue };
        names.push(below.get_name());
        command = below;
    }
    names.join(" ")
}

/// What clap puts first; usage and tips are in further paragraphs.
fn first_paragraph(error: &clap::Error) -> String {
    let text = error.to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    first.trim_start_matches("error: ").to_string()
}

/// What is wrong with a value: numbers and addresses in plain words, others as their parser says.
fn wrong_value(error: &clap::Error) -> String {
    let cause = std::error::Error::source(error);
    let number = cause.and_then(|cause| cause.downcast_ref::<ParseIntError>());
    let is_address = cause.is_some_and(|cause| cause.is::<AddrParseError>());
    let words = match number.map(ParseIntError::kind) {
        Some(IntErrorKind::PosOverflow) => "the number is too large",
        Some(IntErrorKind::NegOverflow) => "the number is too small",
        Some(IntErrorKind::Zero) => "it must be 1 or more",
        Some(_) => "it must be a whole number",
        None if is_address => "it must be an address and a port, such as 127.0.0.1:7771",
        // A range is written as Rust writes it.
        None => return first_paragraph(error).replace("..=", " to "),
    };
    let context = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let (value, name) = (context(ContextKind::InvalidValue), context(ContextKind::InvalidArg));
    format!("invalid value '{value}' for '{name}': {words}")
}

/// The best of clap's suggestions, which it sorts from the worst to the best.
fn best(suggested: Option<&ContextValue>) -> Option<String> {
    match suggested? {
        ContextValue::String(name) => Some(name.clone()),
        ContextValue::Strings(names) => names.last().cloned(),
        _ => None,
    }
}

fn is_hidden(whole: &clap::Command, name: &str) -> bool {
    whole.find_subcommand(name).is_some_and(clap::Command::is_hide_set)
}

/// Shorter texts are part of too many names.
const PART_LENGTH_MIN: usize = 3;

/// The name that contains the one that was asked for, else the name most like it, if one is.
pub(crate) fn nearest<'a>(asked: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    const LIKENESS_MIN: f64 = 0.6;
    let asked = asked.to_lowercase();
    let likeness =
        |name: &str| strsim::normalized_damerau_levenshtein(&asked, &name.to_lowercase());
    let (parts, others): (Vec<&str>, Vec<&str>) = names
        .partition(|name| asked.len() >= PART_LENGTH_MIN && name.to_lowercase().contains(&asked));
    if let [only] = parts.as_slice() {
        return Some(only);
    }
    let alike = parts.into_iter().chain(others);
    let alike = alike.map(|name| (likeness(name), name)).filter(|(much, _)| *much >= LIKENESS_MIN);
    alike.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_found_or_none() {
        let names = ["inc-0v5ja3z", "inc-0v5jb77", "train-7b"];
        for (asked, expected) in [
            ("inc-0v5ja3x", Some("inc-0v5ja3z")),
            ("Train-7B", Some("train-7b")),
            ("train7b", Some("train-7b")),
            ("train", Some("train-7b")),
            ("inc", None),
            ("eval", None),
        ] {
            assert_eq!(nearest(asked, names.into_iter()), expected, "{asked}");
        }
    }
}
