//! The processes below each rank, such as a DataLoader's workers: their number and their memory.
//!
//! Finding descendants takes a scan of every process of the node. The private memory of a worker,
//! without pages still shared after a fork, takes the kernel a walk over all its pages. So both run
//! on a thread of their own that rests many times as long as it works; the agent's loop takes the
//! newest sums, and none when they are too old. Files below `/proc` that this reads never wait for
//! the process that they are about.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use memtape_core::limits::{PROCESSES_PER_NODE_MAX, PROCESSES_PER_RANK_MAX};
use memtape_proto::readings;
use tokio::sync::watch;

use crate::node::clock::{self, Now};
use crate::node::process::{self, Process};

/// Time between two scans, at least …
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// … and this multiple of the last scan's duration: 2 % of one core.
const REST_FACTOR: u32 = 50;

/// Walks over pages take this part of the time: 2 % of one core.
const WALK_PART: u32 = 50;

/// Time for walks that may be saved up.
const WALK_CREDIT_MAX: Duration = Duration::from_secs(1);

/// Sums are used for this long after the next ones were due.
const LATE_MAX: Duration = Duration::from_secs(10);

/// The thread's sums, and the ranks that it samples.
#[derive(Debug)]
pub(crate) struct Workers {
    wanted: watch::Sender<Vec<Process>>,
    newest: watch::Receiver<Newest>,
}

#[derive(Clone, Debug, Default)]
struct Newest {
    until_mono_ns: u64,
    sums: Arc<BTreeMap<Process, readings::Workers>>,
    members: Arc<BTreeMap<Process, Vec<Process>>>,
}

impl Workers {
    /// Starts the thread; it ends by itself after this value is dropped.
    pub(crate) fn start(root: &Path) -> std::io::Result<Self> {
        let (wanted, ranks) = watch::channel(Vec::new());
        let (sender, newest) = watch::channel(Newest::default());
        let root = root.to_path_buf();
        std::thread::Builder::new()
            .name("memtape-workers".to_string())
            .spawn(move || work(&root, &ranks, &sender))?;
        Ok(Self { wanted, newest })
    }

    /// Sets the ranks whose descendants are sampled from now on.
    pub(crate) fn watch(&self, ranks: Vec<Process>) {
        self.wanted.send_if_modified(|known| {
            let is_news = *known != ranks;
            *known = ranks;
            is_news
        });
    }

    /// The processes below a rank, largest first; empty when the newest sample is too old.
    pub(crate) fn processes_below(&self, now: Now, rank: Process) -> Vec<Process> {
        let newest = self.newest.borrow();
        let members = newest.members.get(&rank).filter(|_| newest.until_mono_ns > now.mono_ns);
        members.cloned().unwrap_or_default()
    }

    /// Memory of the processes below a rank; none when the newest sums are too old.
    pub(crate) fn below(&self, now: Now, rank: Process) -> Option<readings::Workers> {
        let newest = self.newest.borrow();
        let is_new = newest.until_mono_ns > now.mono_ns;
        newest.sums.get(&rank).copied().filter(|_| is_new)
    }
}

/// The thread's loop: scans processes, and walks pages in between.
fn work(root: &Path, ranks: &watch::Receiver<Vec<Process>>, sender: &watch::Sender<Newest>) {
    let mut look = Look::new(root);
    let mut credit = Duration::ZERO;
    while !sender.is_closed() {
        let begun = clock::now();
        let ranks = ranks.borrow().clone();
        if !ranks.is_empty() {
            look.look(&ranks);
        }
        let rest = LOOK_INTERVAL.max(clock::now().since(begun) * REST_FACTOR);
        credit = (credit + rest / WALK_PART).min(WALK_CREDIT_MAX);
        // Each worker once at most.
        for _ in 0..look.turns.len() {
            if credit.is_zero() || sender.is_closed() {
                break;
            }
            let begun = clock::now();
            look.walk();
            credit = credit.saturating_sub(clock::now().since(begun));
        }
        let until_mono_ns = clock::now().after_ns(rest + LATE_MAX);
        let (sums, members) = (Arc::new(look.sums()), Arc::new(look.members()));
        sender.send_replace(Newest { until_mono_ns, sums, members });
        clock::sleep_while(|| !sender.is_closed(), rest);
    }
}

/// State of the thread; reads no clock.
#[derive(Debug, Default)]
struct Look {
    root: PathBuf,
    ranks: BTreeMap<Process, Family>,
    /// Private bytes of each worker, from the last walk over its pages.
    parts: BTreeMap<Process, u64>,
    /// Workers in the order of the walks to come.
    turns: VecDeque<Process>,
}

/// The processes below one rank.
#[derive(Debug, Default)]
struct Family {
    sums: readings::Workers,
    /// The largest first.
    members: Vec<Process>,
}

impl Look {
    fn new(root: &Path) -> Self {
        Self { root: root.to_path_buf(), ..Self::default() }
    }

    /// Finds the descendants of these ranks, and their memory.
    fn look(&mut self, ranks: &[Process]) {
        self.ranks.clear();
        let mut children: BTreeMap<u32, Vec<Process>> = BTreeMap::new();
        let mut present = BTreeSet::new();
        for (process, parent) in list(&self.root) {
            children.entry(parent).or_default().push(process);
            present.insert(process);
        }
        let pids: BTreeSet<u32> = ranks.iter().map(|rank| rank.pid).collect();
        for rank in ranks.iter().filter(|rank| present.contains(*rank)) {
            let family = self.family(below(rank.pid, &children, &pids));
            self.ranks.insert(*rank, family);
        }
        let members: BTreeSet<Process> =
            self.ranks.values().flat_map(|family| family.members.iter().copied()).collect();
        self.parts.retain(|worker, _| members.contains(worker));
        self.turns.retain(|worker| members.contains(worker));
        let waiting: BTreeSet<Process> = self.turns.iter().copied().collect();
        // Those that were not walked over yet come first.
        for worker in members.difference(&waiting) {
            self.turns.push_front(*worker);
        }
    }

    fn family(&self, members: Vec<Process>) -> Family {
        let mut family = Family::default();
        let mut bytes_of = BTreeMap::new();
        let too_many = members.len().saturating_sub(PROCESSES_PER_RANK_MAX);
        family.sums.left_out = u32::try_from(too_many).unwrap_or(u32::MAX);
        for member in members.into_iter().take(PROCESSES_PER_RANK_MAX) {
            let memory = member.memory(&self.root);
            // Gone meanwhile, or a zombie, which holds nothing.
            let Some((memory, anon)) = memory.and_then(|memory| Some((memory, memory.anon?)))
            else {
                continue;
            };
            let sums = &mut family.sums;
            sums.count += 1;
            sums.anon_bytes = sums.anon_bytes.saturating_add(anon);
            sums.shmem_bytes = sums.shmem_bytes.saturating_add(memory.shmem.unwrap_or(0));
            family.members.push(member);
            bytes_of.insert(member, anon);
        }
        family.members.sort_by_key(|member| std::cmp::Reverse(bytes_of.get(member).copied()));
        family
    }

    /// Walks over the pages of the next worker in the queue.
    fn walk(&mut self) {
        let Some(worker) = self.turns.pop_front() else { return };
        let parts = worker.anon_parts_bytes(&self.root);
        match parts {
            Some(bytes) => self.parts.insert(worker, bytes),
            None => self.parts.remove(&worker),
        };
        self.turns.push_back(worker);
    }

    fn members(&self) -> BTreeMap<Process, Vec<Process>> {
        self.ranks.iter().map(|(rank, family)| (*rank, family.members.clone())).collect()
    }

    fn sums(&self) -> BTreeMap<Process, readings::Workers> {
        let with_parts = |family: &Family| {
            let parts = family.members.iter().map(|member| self.parts.get(member).copied());
            let sum = parts.reduce(|sum, part| Some(sum?.saturating_add(part?)));
            readings::Workers { anon_parts_bytes: sum.unwrap_or(Some(0)), ..family.sums }
        };
        self.ranks.iter().map(|(rank, family)| (*rank, with_parts(family))).collect()
    }
}

/// All descendants of a process, nearest first, without other ranks and their descendants.
fn below(pid: u32, children: &BTreeMap<u32, Vec<Process>>, ranks: &BTreeSet<u32>) -> Vec<Process> {
    let mut found: Vec<Process> = Vec::new();
    let mut parents = VecDeque::from([pid]);
    // Parents are read one by one while they change: a pid that is given away again could close
    // a circle.
    let mut seen = BTreeSet::from([pid]);
    while let Some(parent) = parents.pop_front() {
        for child in children.get(&parent).into_iter().flatten() {
            if !ranks.contains(&child.pid) && seen.insert(child.pid) {
                found.push(*child);
                parents.push_back(child.pid);
            }
        }
    }
    found
}

/// All processes of the node that can be seen, and their parents.
fn list(root: &Path) -> Vec<(Process, u32)> {
    let Ok(entries) = std::fs::read_dir(root.join("proc")) else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let listed = |pid: u32| {
        let (parent, start_ticks) = process::parse_stat(&process::read(root, pid, "stat")?)?;
        Some((Process::known(pid, start_ticks), parent))
    };
    pids.take(PROCESSES_PER_NODE_MAX).filter_map(listed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A `/proc` of processes `(pid, parent, anon KiB, parts KiB)`; processes without memory are
    /// zombies, processes without parts cannot be walked over.
    fn root(processes: &[(u32, u32, Option<u64>, Option<u64>)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("folder");
        for (pid, parent, anon, parts) in processes {
            let folder = root.path().join("proc").join(pid.to_string());
            std::fs::create_dir_all(&folder).expect("folder");
            let write = |name: &str, text: String| {
                std::fs::write(folder.join(name), text).expect("file");
            };
            let middle = "0 ".repeat(17);
            write("stat", format!("{pid} (a) b)) S {parent} {middle}{} 0\n", u64::from(*pid) * 10));
            let memory = anon.map(|kib| format!("RssAnon: {kib} kB\nRssShmem: 2 kB\n"));
            write("status", format!("NSpid: {pid}\n{}", memory.unwrap_or_default()));
            if let Some(parts) = parts {
                write("smaps_rollup", format!("Pss: 1 kB\nPss_Anon: {parts} kB\n"));
            }
        }
        // What is no process, or none any more.
        std::fs::create_dir_all(root.path().join("proc/31337")).expect("folder");
        std::fs::write(root.path().join("proc/meminfo"), "MemTotal: 1 kB\n").expect("file");
        root
    }

    fn rank(pid: u32) -> Process {
        Process::known(pid, u64::from(pid) * 10)
    }

    fn looked(
        root: &tempfile::TempDir,
        ranks: &[u32],
        walks: usize,
    ) -> BTreeMap<Process, readings::Workers> {
        let mut look = Look::new(root.path());
        look.look(&ranks.iter().copied().map(rank).collect::<Vec<_>>());
        (0..walks).for_each(|_| look.walk());
        look.sums()
    }

    #[test]
    fn everybody_below_a_rank_is_counted_once() {
        let some = Some;
        let processes = [
            (1, 0, some(1), None),
            (10, 1, some(1000), None),
            // Two workers, a child of one of them, and a zombie.
            (11, 10, some(8), some(4)),
            (12, 10, some(16), some(2)),
            (13, 12, some(32), some(1)),
            (14, 10, None, None),
            // Another rank below the first, with a worker of its own.
            (20, 10, some(1000), None),
            (21, 20, some(64), None),
            // A rank without workers, and a circle.
            (30, 1, some(1000), None),
            (40, 41, some(1), None),
            (41, 40, some(1), some(1)),
        ];
        let root = root(&processes);
        let all = looked(&root, &[10, 20, 30, 40, 99], 99);
        let below = |pid: u32| all.get(&rank(pid)).copied();
        let family = |count, anon: u64, parts: Option<u64>| readings::Workers {
            count,
            anon_bytes: anon << 10,
            shmem_bytes: u64::from(count) << 11,
            anon_parts_bytes: parts.map(|kib| kib << 10),
            left_out: 0,
        };
        assert_eq!(below(10), Some(family(3, 56, Some(7))));
        // One that cannot be walked over: the sum is not known.
        assert_eq!(below(20), Some(family(1, 64, None)));
        assert_eq!(below(30), Some(family(0, 0, Some(0))));
        assert_eq!(below(40), Some(family(1, 1, Some(1))));
        assert_eq!(below(99), None, "it is gone");
        let mut look = Look::new(root.path());
        look.look(&[rank(10), rank(20)]);
        let pids = look.members().into_values().flatten().map(|process| process.pid);
        assert_eq!(pids.collect::<Vec<_>>(), [13, 12, 11, 21], "the largest first");
        // Before all of them were walked over.
        let few = looked(&root, &[10, 20], 2);
        assert_eq!(few.values().next(), Some(&family(3, 56, None)));
        // The pid was given away again.
        let reused = Process::known(10, 1);
        let mut look = Look::new(root.path());
        look.look(&[reused]);
        assert!(look.sums().is_empty());
    }

    #[test]
    fn processes_beyond_the_bound_are_counted() {
        let workers =
            (1000..1000 + PROCESSES_PER_RANK_MAX as u32 + 7).map(|pid| (pid, 10, Some(1), None));
        let processes: Vec<_> = std::iter::once((10, 1, Some(1), None)).chain(workers).collect();
        let sums = looked(&root(&processes), &[10], 0);
        let below = sums.values().next().expect("the rank");
        assert_eq!((below.count as usize, below.left_out), (PROCESSES_PER_RANK_MAX, 7));
    }

    #[test]
    fn the_thread_sees_real_processes() {
        let workers = Workers::start(Path::new("/")).expect("thread");
        let mut child = std::process::Command::new("sleep").arg("600").spawn().expect("sleep");
        let me = Process::of_self();
        assert_eq!(workers.below(clock::now(), me), None, "not asked for yet");
        workers.watch(vec![me]);
        let begun = clock::now();
        let found = loop {
            let below = workers.below(clock::now(), me);
            let below = below.filter(|below| below.count >= 1 && below.anon_bytes > 0);
            if let Some(below) = below {
                break below;
            }
            let waited = clock::now().since(begun);
            assert!(waited < Duration::from_secs(30), "{:?}", workers.below(clock::now(), me));
            std::thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(found.left_out, 0);
        let pids = workers.processes_below(clock::now(), me);
        assert!(pids.iter().any(|process| process.pid == child.id()), "{pids:?}");
        child.kill().expect("kill");
        child.wait().expect("wait");
    }
}
