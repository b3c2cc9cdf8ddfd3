//! The code blocks of a Markdown page, by the words around them, so that a page and the test that
//! runs it cannot differ.
//!
//! - A block behind a line `` `NAME`: `` is the file of that name.
//! - A block of `sh` is run, unless the line before it says `Not run by the tests: REASON.`
//! - A block of `text` is what the `sh` block before it prints: each of its lines, in this order,
//!   with any others between. `…` stands for anything, and any number of bytes for any other.

use std::path::{Path, PathBuf};

/// How a page says that a block is not run, and why.
pub const NOT_RUN: &str = "Not run by the tests: ";

/// A code block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    /// A file of this name with this text.
    File(String, String),
    /// Commands, and the lines that the page shows of what they print.
    Commands(String, Vec<String>),
    /// Commands that are not run, and the reason.
    NotRun(String, String),
}

/// Why the code blocks of a page cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// The page cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Unreadable {
        /// Path of the page.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A block breaks the rules.
    #[error("{}: {fault}", path.display())]
    Faulty {
        /// Path of the page.
        path: PathBuf,
        /// The block and the rule.
        fault: BlockFault,
    },
}

/// A block that breaks the rules.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockFault {
    /// A block is not run, and no reason is given.
    #[error("say why {0:?} is not run")]
    NoReason(String),
    /// A block of `text` follows no commands, or a second one follows the same commands.
    #[error("no command prints {0:?}")]
    NotPrinted(String),
    /// A block of another language is the file of no name.
    #[error("a block of {0:?} needs a line `NAME`: before it")]
    NoName(String),
}

/// The code blocks of a page, in its order.
/// Fails when the page cannot be read, and when a block breaks the rules.
pub fn blocks(page: &Path) -> Result<Vec<Block>, PageError> {
    let path = || page.to_path_buf();
    let text = std::fs::read_to_string(page)
        .map_err(|source| PageError::Unreadable { path: path(), source })?;
    read(&text).map_err(|fault| PageError::Faulty { path: path(), fault })
}

fn read(text: &str) -> Result<Vec<Block>, BlockFault> {
    let mut blocks = Vec::new();
    let mut before = "";
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(language) = line.strip_prefix("```") else {
            before = if line.is_empty() { before } else { line };
            continue;
        };
        let inner: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        let code = inner.join("\n") + "\n";
        let name = before.strip_prefix('`').and_then(|rest| rest.strip_suffix("`:"));
        let reason = before.strip_prefix(NOT_RUN).map(|reason| reason.trim_end_matches('.'));
        match (language, name, reason) {
            (_, Some(name), _) => blocks.push(Block::File(name.to_string(), code)),
            (_, None, Some("")) => return Err(BlockFault::NoReason(code)),
            (_, None, Some(reason)) => blocks.push(Block::NotRun(code, reason.to_string())),
            ("sh", ..) => blocks.push(Block::Commands(code, Vec::new())),
            ("text", ..) => match blocks.last_mut() {
                Some(Block::Commands(_, shown)) if shown.is_empty() => {
                    shown.extend(inner.iter().map(|line| line.to_string()));
                }
                _ => return Err(BlockFault::NotPrinted(code)),
            },
            _ => return Err(BlockFault::NoName(language.to_string())),
        }
        before = "";
    }
    Ok(blocks)
}

/// The first line of those shown that was not printed.
pub fn missing<'a>(shown: &'a [String], printed: &str) -> Option<&'a str> {
    let printed: Vec<String> = printed.lines().map(plain).collect();
    let mut rest = printed.iter();
    let is_missing = |line: &&String| !rest.any(|printed| is_like(&plain(line), printed));
    shown.iter().find(is_missing).map(String::as_str)
}

/// The line with single spaces, and `N` for each number of bytes.
fn plain(line: &str) -> String {
    let mut words: Vec<&str> = line.split_whitespace().collect();
    for at in 1..words.len() {
        let unit = words[at].trim_end_matches([',', ';', ')']);
        if matches!(unit, "B" | "KiB" | "MiB" | "GiB") {
            words[at - 1] = "N";
        }
    }
    words.join(" ")
}

/// The parts between the `…` stand in the printed line, in this order; what does not begin or end
/// with `…` begins or ends the line.
fn is_like(shown: &str, printed: &str) -> bool {
    let mut parts = shown.split('…').map(str::trim);
    let Some(rest) = printed.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut rest = rest;
    let parts: Vec<&str> = parts.collect();
    let Some((last, inner)) = parts.split_last() else { return rest.is_empty() };
    for part in inner {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read() {
        let page = "`a.py`:\n```python\nprint(1)\n```\n\n\
                    ```sh\npython a.py\n```\n\n```text\n1\n```\n\
                    Not run by the tests: it needs a cluster.\n```sh\nsbatch a.py\n```\n";
        let expected = [
            Block::File("a.py".into(), "print(1)\n".into()),
            Block::Commands("python a.py\n".into(), vec!["1".into()]),
            Block::NotRun("sbatch a.py\n".into(), "it needs a cluster".into()),
        ];
        assert_eq!(read(page).as_deref(), Ok(&expected[..]));
        let printed = || BlockFault::NotPrinted("1\n".into());
        for (bad, fault) in [
            ("```python\nprint(1)\n```\n", BlockFault::NoName("python".into())),
            ("```text\n1\n```\n", printed()),
            ("```sh\na\n```\n```text\n1\n```\n```text\n1\n```\n", printed()),
            ("Not run by the tests: .\n```sh\na\n```\n", BlockFault::NoReason("a\n".into())),
        ] {
            assert_eq!(read(bad), Err(fault), "{bad}");
        }
    }

    #[test]
    fn shown_text_must_have_been_printed() {
        let printed = "title\nrank 1  keeps 1.5 MiB more, at a.py:7 in f; since step 12\nend\n";
        let is_there = |lines: &[&str]| {
            let shown: Vec<String> = lines.iter().map(|line| line.to_string()).collect();
            missing(&shown, printed).is_none()
        };
        assert!(is_there(&["title", "end"]));
        assert!(is_there(&["rank 1 keeps 2 MiB more, at a.py:7 in f; since step 12"]));
        assert!(is_there(&["rank 1 keeps 2 MiB more, …; since step …"]));
        assert!(is_there(&["… at a.py:7 …", "…"]));
        assert!(!is_there(&["end", "title"]));
        assert!(!is_there(&["rank 1 keeps 2 MiB more"]));
        assert!(!is_there(&["… at a.py:8 …"]));
        assert!(!is_there(&["rank 2 …"]));
    }
}
