//! When and how the processes of ranks ended, as the kernel tells it.
//!
//! A launcher ends all ranks within milliseconds of the first, sooner than tapes are scanned again.
//! So the agent holds a descriptor of each process (pidfd), which the kernel makes readable when
//! the process has ended. Until its parent has fetched its status, `/proc` still has it. A process
//! that is ending releases its files, and with them the lock of its tape, before that.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::node::clock;
use crate::node::fence::Fence;
use crate::node::process::{self, Process};

/// Bits of a wait status that hold the signal.
const SIGNAL_BITS: i32 = 0x7f;

/// Time after which the thread takes up processes that are newly watched, in nanoseconds.
const POLL_NS: i64 = 100_000_000;

/// The end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Unix time.
    pub(crate) wall_ns: i64,
    /// Its exit status, or its signal as a negative number; none where its parent fetched it first,
    /// or where the agent may not read it.
    pub(crate) status: Option<i32>,
}

/// State of a process, as the kernel reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// The process is not watched.
    #[default]
    Unknown,
    /// The process has not ended; it may be ending.
    Running,
    /// The process has ended.
    Ended(Ended),
}

/// The processes that are watched, and the thread that waits for their ends.
#[derive(Debug)]
pub(crate) struct Ends {
    watched: Arc<Mutex<Watched>>,
}

type Watched = BTreeMap<Process, Watch>;

/// One process.
#[derive(Debug)]
enum Watch {
    Running(Arc<Fence>),
    Ended(Ended),
}

impl Ends {
    /// Starts the thread; it ends by itself after this value is dropped.
    pub(crate) fn start(root: &Path) -> std::io::Result<Self> {
        let watched = Arc::default();
        let (known, root) = (Arc::downgrade(&watched), root.to_path_buf());
        std::thread::Builder::new()
            .name("memtape-ends".to_string())
            .spawn(move || wait(&root, &known))?;
        Ok(Self { watched })
    }

    /// Watches these processes from now on, and no others. Each call opens the
    /// descriptors that are missing.
    pub(crate) fn watch(&self, root: &Path, processes: &[Process]) {
        let mut watched = locked(&self.watched);
        let mut before = std::mem::take(&mut *watched);
        for process in processes {
            let known = before.remove(process);
            let hold = || Some(Watch::Running(Arc::new(Fence::of(root, *process).ok()?)));
            if let Some(watch) = known.or_else(hold) {
                watched.insert(*process, watch);
            }
        }
    }

    /// State of a process.
    pub(crate) fn of(&self, process: Process) -> State {
        match locked(&self.watched).get(&process) {
            None => State::Unknown,
            Some(Watch::Running(_)) => State::Running,
            Some(Watch::Ended(ended)) => State::Ended(*ended),
        }
    }
}

fn locked(watched: &Mutex<Watched>) -> MutexGuard<'_, Watched> {
    watched.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread: waits for the next end of any.
fn wait(root: &Path, watched: &Weak<Mutex<Watched>>) {
    while let Some(known) = watched.upgrade() {
        let running = |(of, watch): (&Process, &Watch)| match watch {
            Watch::Running(hold) => Some((*of, Arc::clone(hold))),
            Watch::Ended(_) => None,
        };
        let running: Vec<_> = locked(&known).iter().filter_map(running).collect();
        drop(known);
        let fds = running.iter().map(|(_, hold)| PollFd::new(&**hold, PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = fds.collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: POLL_NS };
        if poll(&mut fds, Some(&timeout)).is_err() {
            std::thread::sleep(Duration::from_nanos(POLL_NS.unsigned_abs()));
            continue;
        }
        let wall_ns = clock::now().wall_ns;
        let Some(known) = watched.upgrade() else { return };
        for ((of, _), fd) in running.iter().zip(&fds) {
            if !fd.revents().is_empty()
                && let Some(watch) = locked(&known).get_mut(of)
            {
                *watch = Watch::Ended(Ended { wall_ns, status: status(root, *of) });
            }
        }
    }
}

/// How a process ended that its parent has not asked for yet.
fn status(root: &Path, of: Process) -> Option<i32> {
    // The kernel shows 0 to those who may not trace the process. It refuses them this link, too.
    // The link first: the parent may fetch the status at any time, and then both are gone.
    let exe = root.join("proc").join(of.pid.to_string()).join("exe").read_link();
    let is_refused = exe.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
    let stat = process::read(root, of.pid, "stat")?;
    let is_same = process::start_ticks(&stat) == Some(of.start_ticks());
    let code = process::wait_status(&stat).filter(|code| is_same && (*code != 0 || !is_refused))?;
    Some(match code & SIGNAL_BITS {
        0 => code >> 8,
        signal => -signal,
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn ends_are_known_with_their_time_and_signal() {
        let root = Path::new("/");
        let children = ["kill -TERM $$", "exit 3", "exit 0"].map(|end| {
            let script = format!("read go; {end}");
            let mut child = Command::new("sh");
            child.args(["-c", &script]).stdin(std::process::Stdio::piped());
            child.spawn().expect("a process")
        });
        let known = children.each_ref().map(|child| {
            let stat = process::read(root, child.id(), "stat").expect("it runs");
            Process::known(child.id(), process::start_ticks(&stat).expect("a start"))
        });
        let ends = Ends::start(root).expect("a thread");
        ends.watch(root, &known);
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(known.map(|of| ends.of(of)), [State::Running; 3]);
        let mut times = Vec::new();
        let mut reaped = Vec::new();
        for (mut child, (of, status)) in
            children.into_iter().zip(known.into_iter().zip([-15, 3, 0]))
        {
            drop(child.stdin.take());
            let ended = loop {
                if let State::Ended(ended) = ends.of(of) {
                    break ended;
                }
                std::thread::sleep(Duration::from_millis(5));
            };
            assert_eq!(ended.status, Some(status));
            times.push(ended.wall_ns);
            reaped.push(child);
        }
        assert!(times.is_sorted(), "{times:?}");
        reaped.iter_mut().for_each(|child| drop(child.wait()));
        ends.watch(root, &[]);
        assert_eq!(ends.of(known[0]), State::Unknown);
    }
}
