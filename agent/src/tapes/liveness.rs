//! Is the process behind a tape alive, and how did it end?
//!
//! The recorder holds a POSIX write lock on its tape; the kernel drops it with the process, no
//! matter how that ends, and names the holder's pid in the *asker's* pid namespace. So one
//! question tells life and pid. A program that closes descriptors it does not know loses that lock
//! and lives on: a second one, of the tape's mapping, names nobody but lasts.
//!
//! How it ended comes from the tape (an orderly exit seals it) and from the kernel's counters of
//! OOM kills. Nothing here is certain about *which* process an OOM kill hit: [`Death::detail`] says
//! what was seen.
//!
//! This is the one file of the agent with `unsafe`: the safe wrappers of the question panic in
//! debug builds when the holder has no pid.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Sightings without lock and seal before a process counts as dead: a recorder makes its file
/// before it can lock it.
const ABSENT_SIGHTINGS: u32 = 2;

/// A process that was killed holds its lock until its memory is torn down: a counter that rose
/// within this time before the last sight of life may have risen for it.
const DYING_NS: i64 = 1_000_000_000;

/// Who holds the lock of a tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// A process that the agent can name.
    Process(u32),
    /// A process in a pid namespace that the agent cannot see.
    Hidden,
    /// Nobody: the process is gone.
    Nobody,
}

/// Counters of OOM kills; absent where they cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OomKills {
    /// In the process's cgroup.
    pub(crate) cgroup: Option<u64>,
    /// On the whole host.
    pub(crate) host: Option<u64>,
}

/// Why a process is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Its tape is sealed.
    Exited,
    /// Its tape is not sealed.
    Killed,
    /// As killed, and a counter of OOM kills rose.
    OomKilled,
    /// Its recorder had turned itself off before, so nothing would have sealed the tape.
    Unknown,
}

/// The end of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Death {
    /// Why.
    pub(crate) cause: Cause,
    /// One sentence on how this is known.
    pub(crate) detail: String,
    /// When it was first seen to be gone; for one found dead, its last sign of life.
    pub(crate) wall_ns: i64,
}

/// What is seen of one process at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sighting {
    /// Unix time.
    pub(crate) wall_ns: i64,
    /// The lock is held.
    pub(crate) held: bool,
    /// The tape is sealed.
    pub(crate) sealed: bool,
    /// The recorder turned itself off.
    pub(crate) disabled: bool,
    /// End of the last step, or start of recording.
    pub(crate) last_sign_wall_ns: i64,
    /// Counters now.
    pub(crate) oom_kills: OomKills,
}

/// The life of one process, from its sightings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Life {
    seen_alive: bool,
    absent: u32,
    absent_since_wall_ns: i64,
    /// Counters at two sights of life, at least [`DYING_NS`] apart once there are two such, and
    /// the newer one not much older than that.
    recent: Counted,
    before: Counted,
    death: Option<Death>,
}

/// Counters at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    wall_ns: i64,
    oom_kills: OomKills,
}

impl Life {
    /// The end, once it is known.
    pub(crate) fn death(&self) -> Option<&Death> {
        self.death.as_ref()
    }

    /// True when the agent has seen the process alive, and so on this boot of the kernel.
    pub(crate) fn seen_alive(&self) -> bool {
        self.seen_alive
    }

    /// Takes note of a sighting.
    pub(crate) fn sight(&mut self, now: Sighting) {
        if now.held {
            let counted = Counted { wall_ns: now.wall_ns, oom_kills: now.oom_kills };
            let (recent, before) = if !self.seen_alive {
                (counted, counted)
            } else if now.wall_ns.abs_diff(self.recent.wall_ns) < DYING_NS.unsigned_abs() {
                (self.recent, self.before)
            } else {
                (counted, self.recent)
            };
            // A lock that comes back was taken late; the process was never dead.
            *self = Self { seen_alive: true, recent, before, ..Self::default() };
            return;
        }
        if self.death.is_some() {
            return;
        }
        if self.absent == 0 {
            self.absent_since_wall_ns = now.wall_ns;
        }
        self.absent += 1;
        if now.sealed || self.absent >= ABSENT_SIGHTINGS {
            self.death = Some(self.end(now));
        }
    }

    fn end(&self, now: Sighting) -> Death {
        let (cause, detail) = if now.sealed {
            (Cause::Exited, "the process sealed its tape before it ended".to_string())
        } else if now.disabled {
            let why = "the process is gone, and its recorder had turned itself off before that";
            (Cause::Unknown, why.to_string())
        } else if !self.seen_alive {
            let why =
                "the process was gone, its tape not sealed, when the agent first saw the tape";
            (Cause::Killed, why.to_string())
        } else if let Some((place, before, after)) = self.rise(now.oom_kills) {
            let what = format!("the OOM kills of its {place} rose from {before} to {after}");
            (Cause::OomKilled, format!("the process vanished without sealing its tape, and {what}"))
        } else {
            (Cause::Killed, "the process vanished without sealing its tape".to_string())
        };
        let wall_ns = if self.seen_alive {
            self.absent_since_wall_ns
        } else {
            now.last_sign_wall_ns.min(now.wall_ns)
        };
        Death { cause, detail, wall_ns }
    }

    /// The counter that rose since shortly before the process was last seen alive. The cgroup's is
    /// the more telling one; the host's also counts kills elsewhere, so it is asked only where the
    /// cgroup's cannot be read (it is often gone together with the process).
    fn rise(&self, now: OomKills) -> Option<(&'static str, u64, u64)> {
        let rose = |place, before: Option<u64>, after: Option<u64>| {
            let (before, after) = (before?, after?);
            Some((place, before, after))
        };
        let before = self.before.oom_kills;
        rose("cgroup", before.cgroup, now.cgroup)
            .or(rose("host", before.host, now.host))
            .filter(|(_, before, after)| after > before)
    }
}

/// The byte that the lock of the mapping is on, and the end of the process's own.
const LOCKED_BYTE: libc::off_t = 1 << 62;

/// Asks the kernel who holds the write lock of a tape.
///
/// # Errors
/// Those of `fcntl`: a file system without locks.
pub(crate) fn holder(file: &File) -> io::Result<Holder> {
    match holder_of(file, 0, LOCKED_BYTE)? {
        Holder::Nobody => holder_of(file, LOCKED_BYTE, 1),
        holder => Ok(holder),
    }
}

fn holder_of(file: &File, start: libc::off_t, bytes: libc::off_t) -> io::Result<Holder> {
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: bytes,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and the kernel writes
    // nothing but the struct, which lives on this stack frame.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) };
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    // A read lock is somebody else's: the recorder's lock would have kept it out.
    if i32::from(lock.l_type) != libc::F_WRLCK {
        return Ok(Holder::Nobody);
    }
    // 0: not in our namespace; -1: a lock of an open file, which belongs to no process.
    Ok(u32::try_from(lock.l_pid)
        .ok()
        .filter(|&pid| pid > 0)
        .map_or(Holder::Hidden, Holder::Process))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALIVE: Sighting = Sighting {
        wall_ns: 100,
        held: true,
        sealed: false,
        disabled: false,
        last_sign_wall_ns: 42,
        oom_kills: OomKills { cgroup: Some(3), host: Some(9) },
    };

    fn gone(wall_ns: i64, cgroup: Option<u64>, host: Option<u64>) -> Sighting {
        Sighting { wall_ns, held: false, oom_kills: OomKills { cgroup, host }, ..ALIVE }
    }

    fn check(sightings: &[Sighting], expected: Option<(Cause, i64, &str)>) {
        let mut life = Life::default();
        sightings.iter().for_each(|sighting| life.sight(*sighting));
        let death = life.death();
        assert_eq!(
            death.map(|death| (death.cause, death.wall_ns)),
            expected.map(|(cause, wall_ns, _)| (cause, wall_ns)),
            "{sightings:?}"
        );
        if let (Some(death), Some((_, _, words))) = (death, expected) {
            assert!(death.detail.contains(words), "{:?} says nothing of {words:?}", death.detail);
        }
    }

    #[test]
    fn lives_and_deaths() {
        let quiet = |wall_ns| gone(wall_ns, Some(3), Some(9));
        let sealed = |wall_ns| Sighting { sealed: true, ..quiet(wall_ns) };
        check(&[], None);
        check(&[ALIVE, ALIVE], None);
        check(&[ALIVE, sealed(200)], Some((Cause::Exited, 200, "sealed")));
        check(&[ALIVE, Sighting { sealed: true, ..ALIVE }], None);
        check(&[ALIVE, quiet(200)], None);
        check(&[ALIVE, quiet(200), quiet(300)], Some((Cause::Killed, 200, "without sealing")));
        check(&[ALIVE, quiet(200), ALIVE], None);
        // The lock was taken only after the agent had seen the file.
        check(&[quiet(50), ALIVE], None);
        check(&[quiet(50), quiet(60), ALIVE], None);
        // Found dead.
        check(&[quiet(500), quiet(600)], Some((Cause::Killed, 42, "first saw")));
        check(&[sealed(500)], Some((Cause::Exited, 42, "sealed")));
        let off = Sighting { disabled: true, ..quiet(300) };
        check(&[ALIVE, off, off], Some((Cause::Unknown, 300, "turned itself off")));
    }

    #[test]
    fn oom_kills_are_told_from_kills() {
        let dead = |cgroup, host| [ALIVE, gone(200, cgroup, host), gone(300, cgroup, host)];
        let oom = |words| Some((Cause::OomKilled, 200, words));
        let killed = Some((Cause::Killed, 200, ""));
        check(&dead(Some(4), Some(10)), oom("cgroup rose from 3 to 4"));
        check(&dead(None, Some(10)), oom("host rose from 9 to 10"));
        // Somebody else's kill: the own cgroup counted none.
        check(&dead(Some(3), Some(10)), killed);
        check(&dead(None, None), killed);
        check(&dead(Some(0), Some(0)), killed);
        // The counter rose while the process was still being torn down, not long before that.
        let alive = |wall_ns, cgroup| {
            let oom_kills = OomKills { cgroup: Some(cgroup), host: None };
            Sighting { wall_ns, oom_kills, ..ALIVE }
        };
        let end = |wall_ns| [gone(wall_ns, Some(4), None), gone(wall_ns + 1, Some(4), None)];
        let second = DYING_NS;
        let dying = [alive(0, 3), alive(second, 3), alive(2 * second, 4)];
        let [first, last] = end(3 * second);
        let killed_at = |cause, words| Some((cause, 3 * second, words));
        let seen = [&dying[..], &[first, last]].concat();
        check(&seen, killed_at(Cause::OomKilled, "cgroup rose from 3 to 4"));
        let quick = [alive(0, 3), alive(10, 4), alive(20, 4), first, last];
        check(&quick, killed_at(Cause::OomKilled, "from 3 to 4"));
        let long_ago = [alive(-second, 3), alive(0, 4), alive(second, 4), alive(2 * second, 4)];
        check(&[&long_ago[..], &[first, last]].concat(), killed_at(Cause::Killed, ""));
        // The counter rose only after the first sighting without the lock.
        check(&[ALIVE, gone(200, Some(3), None), gone(300, Some(4), None)], oom("from 3 to 4"));
    }

    #[test]
    fn a_file_without_lock_is_nobodys() {
        let file = tempfile::tempfile().expect("file");
        assert_eq!(holder(&file).expect("answer"), Holder::Nobody);
    }
}
