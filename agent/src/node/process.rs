//! One process, parsed from `/proc`.
//!
//! A pid is only a number: it means nothing in another pid namespace, and it is given away again
//! after its process has ended. So a [`Process`] is a pid *and* a start time, and every reading
//! is thrown away unless both still fit.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::node::clock;

/// Most bytes that are read of a file of a process, whose owner decides how long some are.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// A process in the agent's own pid namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Process {
    /// Process id as the agent sees it.
    pub(crate) pid: u32,
    /// Start of the process, in clock ticks since boot.
    start_ticks: u64,
}

/// The used lines of `/proc/PID/status`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Status {
    /// The process's ids, from the namespace of this `/proc` inward; the last is its own.
    pub(crate) pids: Vec<u32>,
    /// User ids of the process: real, effective, saved and of the file system.
    pub(crate) uids: Vec<u32>,
    /// Memory of the process; all absent for kernel threads and zombies.
    pub(crate) memory: Memory,
}

/// Memory of one process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Resident, of all kinds.
    pub(crate) rss: Option<u64>,
    /// Resident and private. Kernels before 4.5 tell no kinds.
    pub(crate) anon: Option<u64>,
    /// Resident pages of files.
    pub(crate) file: Option<u64>,
    /// Resident shared memory. `cudaHostAlloc` memory counts here (a mapping of `/dev/zero`, seen
    /// with driver 580 on an H100); `cudaHostRegister` memory keeps its kind.
    pub(crate) shmem: Option<u64>,
    /// Swapped out, private.
    pub(crate) swap: Option<u64>,
}

/// The process that holds the lock of a tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The process named by the tape, run by the user who owns the tape since before it was made.
    Writer(Process),
    /// Another process, or a process of another user.
    Other,
    /// The process is gone, cannot be read, or began after the tape was made: the lock keeps the
    /// number of the process that took it, even when another process has that number.
    Unproved,
}

impl Holder {
    /// Relation of the process `pid` to a tape that names `own_pid`, belongs to the user `uid` and
    /// was made at the Unix time `made_wall_ns`.
    pub(crate) fn of(root: &Path, pid: u32, own_pid: u32, uid: u32, made_wall_ns: i64) -> Self {
        let read = || {
            let start_ticks = start_ticks(&read(root, pid, "stat")?)?;
            Some((start_ticks, parse_status(&read(root, pid, "status")?)))
        };
        let Some((start_ticks, status)) = read() else { return Self::Unproved };
        if status.pids.last() != Some(&own_pid) || !status.uids.contains(&uid) {
            return Self::Other;
        }
        // File systems keep time by a clock that is up to one tick late.
        match start_ticks <= clock::ticks_at(made_wall_ns).saturating_add(1) {
            true => Self::Writer(Process { pid, start_ticks }),
            false => Self::Unproved,
        }
    }
}

impl Process {
    /// This process.
    #[cfg(test)]
    pub(crate) fn of_self() -> Self {
        let pid = std::process::id();
        let stat = read(Path::new("/"), pid, "stat").expect("own process");
        Self { pid, start_ticks: start_ticks(&stat).expect("own start") }
    }

    /// A process whose start is known already.
    pub(crate) fn known(pid: u32, start_ticks: u64) -> Self {
        Self { pid, start_ticks }
    }

    /// Start of the process, in clock ticks since boot.
    pub(crate) fn start_ticks(&self) -> u64 {
        self.start_ticks
    }

    /// Reads the memory of the process; none when it is gone. The kernel keeps these as counters:
    /// nothing is walked and no lock of the process's memory is taken.
    pub(crate) fn memory(&self, root: &Path) -> Option<Memory> {
        let memory = parse_status(&read(root, self.pid, "status")?).memory;
        // The start is read last: a process that still has it now had it above.
        let start_ticks = start_ticks(&read(root, self.pid, "stat")?)?;
        (start_ticks == self.start_ticks).then_some(memory)
    }

    /// Private memory plus the process's part of shared pages, in bytes; none when it is gone, or
    /// not reported. The kernel walks all its pages for that: some milliseconds a gigabyte.
    pub(crate) fn anon_parts_bytes(&self, root: &Path) -> Option<u64> {
        let text = read(root, self.pid, "smaps_rollup")?;
        let start_ticks = start_ticks(&read(root, self.pid, "stat")?)?;
        parse_anon_parts(&text).filter(|_| start_ticks == self.start_ticks)
    }
}

/// True when the agent's pid namespace is the machine's first one, which NVML's pids belong to.
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
            "Uid" => {
                status.uids = value.split_whitespace().map_while(|uid| uid.parse().ok()).collect();
            }
            "VmRSS" => status.memory.rss = parse_kib(value),
            "RssAnon" => status.memory.anon = parse_kib(value),
            "RssFile" => status.memory.file = parse_kib(value),
            "RssShmem" => status.memory.shmem = parse_kib(value),
            "VmSwap" => status.memory.swap = parse_kib(value),
            _ => {}
        }
    }
    status
}

/// The line `Pss_Anon` of `/proc/PID/smaps_rollup` (kernels from 5.4 on).
fn parse_anon_parts(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("Pss_Anon:")).and_then(parse_kib)
}

/// `  1234 kB` in bytes.
pub(crate) fn parse_kib(value: &str) -> Option<u64> {
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The start, which is the 22nd field of `/proc/PID/stat`.
pub(crate) fn start_ticks(text: &str) -> Option<u64> {
    parse_stat(text).map(|(_, start_ticks)| start_ticks)
}

/// The wait status of a process that has ended and waits for its parent; 0 where it may not be
/// read.
pub(crate) fn wait_status(text: &str) -> Option<i32> {
    // The name before it may contain anything. The status is the last of 52 fields.
    let fields = text.rsplit_once(')')?.1;
    let mut fields = fields.split_ascii_whitespace();
    let is_over = matches!(fields.next()?, "Z" | "X");
    fields.nth(48)?.parse().ok().filter(|_| is_over)
}

/// The parent's pid and the start: the 4th and the 22nd field of `/proc/PID/stat`. The second is
/// the command in brackets and may hold anything, brackets and spaces included, so that counting
/// starts after the last bracket.
pub(crate) fn parse_stat(text: &str) -> Option<(u32, u64)> {
    let (_, after_command) = text.rsplit_once(')')?;
    let mut fields = after_command.split_whitespace();
    Some((fields.nth(1)?.parse().ok()?, fields.nth(17)?.parse().ok()?))
}

/// The first 64 KiB of a file of a process, as far as they are text. A process names itself as it
/// likes, and with it its lines; all that is parsed here stands behind that.
pub(crate) fn read(root: &Path, pid: impl ToString, name: &str) -> Option<String> {
    let path: PathBuf = root.join("proc").join(pid.to_string()).join(name);
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_status(text: &str, pids: &[u32], rss: Option<u64>) {
        let memory = Memory { rss, ..Memory::default() };
        let status = Status { pids: pids.to_vec(), uids: Vec::new(), memory };
        assert_eq!(parse_status(text), status, "{text:?}");
    }

    #[test]
    fn kinds_of_memory() {
        let text = "Name:\tpython\nVmRSS:\t 10 kB\nRssAnon:\t 4 kB\nRssFile:\t 5 kB\n\
            RssShmem:\t 1 kB\nVmSwap:\t 2 kB\n";
        let kib = |count: u64| Some(count * 1024);
        let memory =
            Memory { rss: kib(10), anon: kib(4), file: kib(5), shmem: kib(1), swap: kib(2) };
        assert_eq!(parse_status(text).memory, memory);
        // An older kernel tells no kinds: they are absent, not zero.
        assert_eq!(parse_status("VmRSS:\t10 kB\n").memory.anon, None);
        for (text, expected) in [
            ("", None),
            ("0-1 ---p 0 00:00 0 [rollup]\nPss: 9 kB\nPss_Anon:   7 kB\n", kib(7)),
            ("Pss: 9 kB\n", None),
            ("Pss_Anon: many kB\n", None),
        ] {
            assert_eq!(parse_anon_parts(text), expected, "{text:?}");
        }
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
        let (pid, uid) = (std::process::id(), rustix::process::geteuid().as_raw());
        let now = clock::now().wall_ns;
        let of = |pid, own_pid, uid| Holder::of(root, pid, own_pid, uid, now);
        let Holder::Writer(me) = of(pid, pid, uid) else { panic!("own process") };
        assert!(me.memory(root).and_then(|memory| memory.rss).is_some_and(|bytes| bytes > 0));
        let reused = Process { start_ticks: me.start_ticks + 1, ..me };
        assert_eq!((reused.memory(root), reused.anon_parts_bytes(root)), (None, None));
        assert_eq!(of(pid, 1_999_999_999, uid), Holder::Other);
        assert_eq!(of(pid, pid, 4_000_000_000), Holder::Other);
        assert_eq!(of(1_999_999_999, pid, uid), Holder::Unproved);
        // A tape that was made before the process began.
        let before = now - 86_400_000_000_000;
        assert_eq!(Holder::of(root, pid, pid, uid, before), Holder::Unproved);
    }
}
