//! The command line: words, and the few options that some commands have.

use std::collections::BTreeMap;

/// Options: the name, whether a number follows, and the commands that have it; an empty command
/// stands for all of them.
const OPTIONS: [(&str, bool, &str); 10] = [
    ("--events", true, "bench analyze"),
    ("--json", false, ""),
    ("--first", true, "sim"),
    ("--mutations", false, "sim"),
    // Reads well before the names; they are words like any other.
    ("--only", false, "programs"),
    ("--ranks", true, "bench cluster"),
    ("--runs", true, "bench analyze"),
    ("--seed", true, "sim"),
    ("--seeds", true, "sim"),
    ("--storm", false, "bench cluster"),
];

/// A command line that makes sense as far as its options go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    /// The command and what it is about.
    pub(crate) words: Vec<String>,
    options: BTreeMap<&'static str, u64>,
    asks_for_help: bool,
}

impl Line {
    /// Understands the arguments.
    ///
    /// # Errors
    /// One line on the option that makes no sense.
    pub(crate) fn of(arguments: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut line = Self::default();
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            if argument == "--help" || argument == "-h" {
                line.asks_for_help = true;
            } else if !argument.starts_with('-') {
                line.words.push(argument);
            } else if let Some((name, has_value, _)) =
                OPTIONS.iter().find(|(name, _, _)| *name == argument)
            {
                let value = if *has_value { number(name, arguments.next())? } else { 1 };
                line.options.insert(name, value);
            } else {
                return Err(format!("there is no option {argument}"));
            }
        }
        line.asks_for_help |= line.words.first().is_some_and(|word| word == "help");
        let command = line.words.join(" ");
        for (name, _, of) in OPTIONS.iter().filter(|(name, _, _)| line.has(name)) {
            if !line.asks_for_help && !command.starts_with(of) {
                return Err(format!("{name} is an option of {of:?}"));
            }
        }
        Ok(line)
    }

    /// Help was asked for.
    pub(crate) fn asks_for_help(&self) -> bool {
        self.asks_for_help
    }

    /// This option was given.
    pub(crate) fn has(&self, option: &str) -> bool {
        self.options.contains_key(option)
    }

    /// The number behind this option, if it was given.
    pub(crate) fn number(&self, option: &str) -> Option<u64> {
        self.options.get(option).copied()
    }
}

fn number(name: &str, text: Option<String>) -> Result<u64, String> {
    let number = text.as_ref().and_then(|text| text.parse().ok()).filter(|number| *number > 0);
    number.ok_or_else(|| format!("{name} needs a number above 0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_belong_to_commands() {
        let check = |line: &str, expected: Result<(&str, Option<u64>), &str>| {
            let found = Line::of(line.split_whitespace().map(String::from));
            match (found, expected) {
                (Ok(found), Ok((words, ranks))) => {
                    assert_eq!(found.words.join(" "), words, "{line}");
                    assert_eq!(found.number("--ranks"), ranks, "{line}");
                }
                (Err(why), Err(part)) => assert!(why.contains(part), "{why:?} has no {part:?}"),
                (found, _) => panic!("{line}: {found:?}"),
            }
        };
        check("test", Ok(("test", None)));
        check("--json test", Ok(("test", None)));
        check("bench cluster --ranks 512 --json", Ok(("bench cluster", Some(512))));
        check("bench --ranks 512 cluster", Ok(("bench cluster", Some(512))));
        check("bench cluster --ranks", Err("needs a number"));
        check("bench cluster --ranks none", Err("needs a number"));
        check("bench cluster --ranks 0", Err("needs a number"));
        check("test --ranks 8", Err("bench cluster"));
        check("test --fast", Err("no option --fast"));
        check("programs --only ema", Ok(("programs ema", None)));
        check("test --only ema", Err("programs"));
        check("help --ranks 8", Ok(("help", Some(8))));
        check("--help", Ok(("", None)));
    }
}
