//! What `/proc` says about one process, parsed.
//!
//! A pid is only a number: it means nothing in another pid namespace, and it is given away again
//! after its process has ended. So a [`Process`] is a pid *and* a start time, and every reading
//! is thrown away unless both still fit.

use std::path::{Path, PathBuf};

/// A process in the agent's own pid namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// Process id as the agent sees it.
    pub(crate) pid: u32,
    /// When it started, in clock ticks since boot.
    start_ticks: u64,
}

/// The lines of `/proc/PID/status` that are of use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Status {
    /// The process's ids, from the namespace of this `/proc` inward; the last is its own.
    pub(crate) pids: Vec<u32>,
    /// Resident memory; absent for kernel threads and zombies.
    pub(crate) rss_bytes: Option<u64>,
}

impl Process {
    /// The process `pid`, if the last of its ids is the one it says it has itself: what holds a
    /// tape's lock must also be who the tape says it is.
    pub(crate) fn find(root: &Path, pid: u32, own_pid: u32) -> Option<Self> {
        let start_ticks = start_ticks(&read(root, pid, "stat")?)?;
        let status = parse_status(&read(root, pid, "status")?);
        (status.pids.last() == Some(&own_pid)).then_some(Self { pid, start_ticks })
    }

    /// Its resident memory; none when it is gone.
    pub(crate) fn rss_bytes(&self, root: &Path) -> Option<u64> {
        let rss_bytes = parse_status(&read(root, self.pid, "status")?).rss_bytes;
        // The start is read last: a process that still has it now had it above.
        let start_ticks = start_ticks(&read(root, self.pid, "stat")?)?;
        rss_bytes.filter(|_| start_ticks == self.start_ticks)
    }
}

/// True when the agent's pid namespace is the machine's first one, whose pids NVML speaks.
pub(crate) fn is_first_pid_namespace(root: &Path) -> bool {
    // The kernel's fixed inode of the first pid namespace (PROC_PID_INIT_INO).
    std::fs::read_link(root.join("proc/self/ns/pid"))
        .is_ok_and(|link| link == Path::new("pid:[4026531836]"))
}

/// The kernel's boot id, empty when it cannot be read.
pub(crate) fn boot_id(root: &Path) -> String {
    std::fs::read_to_string(root.join("proc/sys/kernel/random/boot_id"))
        .map(|text| text.trim().to_string())
        .unwrap_or_default()
}

/// Parses `/proc/PID/status`.
pub(crate) fn parse_status(text: &str) -> Status {
    let mut status = Status::default();
    for (key, value) in text.lines().filter_map(|line| line.split_once(':')) {
        match key {
            "NSpid" => {
                status.pids = value.split_whitespace().map_while(|pid| pid.parse().ok()).collect();
            }
            // Kernels before 4.1 have no NSpid; what stands here is then overwritten by nothing.
            "Pid" => status.pids = value.trim().parse().into_iter().collect(),
            "VmRSS" => status.rss_bytes = parse_kib(value),
            _ => {}
        }
    }
    status
}

/// `  1234 kB` in bytes.
pub(crate) fn parse_kib(value: &str) -> Option<u64> {
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The 22nd field of `/proc/PID/stat`. The second is the command in brackets and may hold
/// anything, brackets and spaces included, so that counting starts after the last bracket.
pub(crate) fn start_ticks(text: &str) -> Option<u64> {
    let (_, after_command) = text.rsplit_once(')')?;
    after_command.split_whitespace().nth(19)?.parse().ok()
}

fn read(root: &Path, pid: u32, name: &str) -> Option<String> {
    let path: PathBuf = root.join("proc").join(pid.to_string()).join(name);
    std::fs::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_status(text: &str, pids: &[u32], rss_bytes: Option<u64>) {
        assert_eq!(parse_status(text), Status { pids: pids.to_vec(), rss_bytes }, "{text:?}");
    }

    #[test]
    fn status_files() {
        check_status("", &[], None);
        check_status("Name:\tpython\nPid:\t77\nVmRSS:\t  2048 kB\n", &[77], Some(2 << 20));
        check_status("Pid:\t900\nNSpid:\t900\t31\t7\nVmRSS:\t1 kB\n", &[900, 31, 7], Some(1024));
        check_status("Name:\tkworker\nPid:\t9\nNSpid:\t9\n", &[9], None);
        check_status("VmRSS:\t99999999999999999999 kB\nNSpid:\tx\n", &[], None);
        check_status("VmRSS:\t18446744073709551615 kB\n", &[], None);
    }

    #[test]
    fn stat_files() {
        let tail = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21";
        for (text, expected) in [
            (format!("12 (python) {tail}"), Some(4711)),
            (format!("12 (a ) b (c)) {tail}"), Some(4711)),
            ("12 (python) S 1 2".to_string(), None),
            (String::new(), None),
        ] {
            assert_eq!(start_ticks(&text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_process_is_pid_and_start() {
        let root = Path::new("/");
        let me = Process::find(root, std::process::id(), std::process::id()).expect("own process");
        assert!(me.rss_bytes(root).is_some_and(|bytes| bytes > 0));
        let reused = Process { start_ticks: me.start_ticks + 1, ..me };
        assert_eq!(reused.rss_bytes(root), None);
        assert_eq!(Process::find(root, std::process::id(), 1_999_999_999), None);
    }
}
