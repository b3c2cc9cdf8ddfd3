//! A process and everything it started: who they are, and an end for all of them.
//!
//! Asked when a step does not end by itself. Processes whose parent has ended belong to init then
//! and are not found.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

/// A running process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) id: u32,
    /// Its command line, cut to what fits a line.
    pub(crate) command: String,
}

/// Characters of a command line that are shown.
const COMMAND_CHARS_MAX: usize = 160;

/// The process and its descendants, parents first.
pub(crate) fn tree(root: u32) -> Vec<Process> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        if let Some(parent) = parent(&stat) {
            children.entry(parent).or_default().push(id);
        }
    }
    let mut ids = vec![root];
    let mut at = 0;
    while let Some(id) = ids.get(at) {
        ids.extend(children.remove(id).unwrap_or_default());
        at += 1;
    }
    ids.into_iter().map(|id| Process { id, command: command_line(id) }).collect()
}

/// SIGKILL for each of them.
pub(crate) fn kill(processes: &[Process]) {
    // A child of a dead process cannot be told from other processes: all at once, by one program.
    let mut kill = Command::new("kill");
    kill.arg("-KILL").args(processes.iter().map(|process| process.id.to_string()));
    let _ = kill.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

/// The parent, from a line of `/proc/PID/stat`. The name before it may hold anything, so the last
/// bracket counts.
fn parent(stat: &str) -> Option<u32> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

fn command_line(id: u32) -> String {
    let bytes = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
    let words = String::from_utf8_lossy(&bytes).replace('\0', " ");
    words.trim_end().chars().take(COMMAND_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_are_read() {
        assert_eq!(parent("12 (sleep) S 7 12 12 0"), Some(7));
        assert_eq!(parent("12 (a) b) (c) R 8 1"), Some(8));
        assert_eq!(parent("12 (sleep"), None);
        assert_eq!(parent(""), None);
    }
}
