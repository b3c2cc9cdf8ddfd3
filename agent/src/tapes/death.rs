//! How a process ended, judged by its tape and the kernel's counters.
//!
//! An orderly exit seals the tape; the kernel's counters of OOM kills show kills. They do not say
//! *which* process a kill hit, so an [`Evidence`] states the observation. `liveness.rs` checks
//! whether a process lives.

use std::fmt;

use crate::node::ends;

/// Sightings without lock and seal before a process counts as dead: a recorder makes its file
/// before it can lock it.
const ABSENT_SIGHTINGS: u32 = 2;

/// A process that is ending releases its lock first and its GPU memory after it. After this time
/// without lock and seal a process counts as dead, whatever the kernel reports, in nanoseconds. A
/// coordinator compares all deaths of a job 10 s after it has heard of the first.
const ENDING_NS_MAX: i64 = 5_000_000_000;

/// A killed process holds its lock until the kernel has released its memory: a counter that rose
/// within this time before the process was last seen alive may have risen for it.
const DYING_NS: i64 = 1_000_000_000;

const SIGKILL: i32 = 9;

/// Counters of OOM kills; absent where they cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OomKills {
    /// OOM kills in the process's cgroup.
    pub(crate) cgroup: Option<u64>,
    /// OOM kills on the whole host.
    pub(crate) host: Option<u64>,
}

/// Why a process is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The process exited: its tape is sealed.
    Exited,
    /// The process exited with a status other than 0.
    Failed,
    /// The tape is not sealed.
    Killed,
    /// As `Killed`, and a counter of OOM kills rose.
    OomKilled,
    /// The recorder had turned itself off before, so the tape would not have been sealed.
    Unknown,
}

/// The end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Death {
    /// Evidence of the end.
    pub(crate) evidence: Evidence,
    /// Time when it was first seen to be gone; for a process found dead, its last sign of life.
    pub(crate) wall_ns: i64,
}

/// Evidence of how a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// The process exited, with this status where it is known: its tape is sealed, or the kernel
    /// reported the status.
    Exited(Option<i32>),
    /// The recorder had turned itself off, so the tape would not have been sealed.
    RecorderOff,
    /// The process was gone when the agent first saw its unsealed tape.
    FoundDead,
    /// The process vanished, its tape not sealed.
    Vanished,
    /// A signal ended it.
    Signalled(i32),
    /// It vanished, and a counter of OOM kills rose.
    OomKillsRose {
        /// Scope of the counter.
        of: Counter,
        /// Before the end.
        before: u64,
        /// After the end.
        after: u64,
    },
    /// The tape was gone when the agent came back.
    TapeGone,
}

/// A counter of OOM kills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counter {
    /// Counter of the process's cgroup.
    Cgroup,
    /// Counter of the whole host.
    Host,
}

impl Death {
    /// The status with which the process exited, or the signal that ended it as a negative number,
    /// where it is known.
    pub(crate) fn exit_status(&self) -> Option<i32> {
        match self.evidence {
            Evidence::Exited(status) => status,
            Evidence::Signalled(signal) => Some(-signal),
            _ => None,
        }
    }

    /// Why the process is gone.
    pub(crate) fn cause(&self) -> Cause {
        match self.evidence {
            Evidence::Exited(None | Some(0)) => Cause::Exited,
            Evidence::Exited(Some(_)) => Cause::Failed,
            Evidence::FoundDead | Evidence::Vanished | Evidence::Signalled(_) => Cause::Killed,
            Evidence::OomKillsRose { .. } => Cause::OomKilled,
            Evidence::RecorderOff | Evidence::TapeGone => Cause::Unknown,
        }
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exited(None) => "the process sealed its tape before it ended",
            Self::Exited(Some(status)) => {
                return write!(f, "the process exited with status {status}");
            }
            Self::Signalled(signal) => return write!(f, "signal {signal} ended the process"),
            Self::RecorderOff => {
                "the process is gone, and its recorder had turned itself off before that"
            }
            Self::FoundDead => {
                "the process was gone, without an orderly exit, when the agent first saw the tape"
            }
            Self::Vanished => "the process is gone and did not exit in order",
            Self::TapeGone => "its tape was gone when the agent came back",
            Self::OomKillsRose { of, before, after } => {
                let of = match of {
                    Counter::Cgroup => "cgroup",
                    Counter::Host => "host",
                };
                return write!(
                    f,
                    "the process is gone and did not exit in order, and the OOM kills of its {of} \
                     rose from {before} to {after}"
                );
            }
        })
    }
}

/// Observation of one process at one time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sighting {
    /// Unix time.
    pub(crate) wall_ns: i64,
    /// True if the lock is held.
    pub(crate) held: bool,
    /// True if the tape is sealed.
    pub(crate) sealed: bool,
    /// The exit status on the tape.
    pub(crate) exit_status: Option<i32>,
    /// The recorder turned itself off.
    pub(crate) disabled: bool,
    /// End of the last step, or start of recording.
    pub(crate) last_sign_wall_ns: i64,
    /// Counters now.
    pub(crate) oom_kills: OomKills,
    /// State of the process, as the kernel reports it.
    pub(crate) process: ends::State,
}

/// The life of one process, from its sightings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Life {
    seen_alive: bool,
    absent: u32,
    absent_since_wall_ns: i64,
    /// Counters at two sightings alive, at least [`DYING_NS`] apart once there are two such, and
    /// the newer one not much older than that.
    recent: Counted,
    before: Counted,
    death: Option<Death>,
    /// The process had not ended yet when its death was noted: its status comes later.
    awaits_status: bool,
}

/// Counters at one time.
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

    /// True while the kernel may still tell how the process ended.
    pub(crate) fn may_change(&self) -> bool {
        self.death.is_none() || self.awaits_status
    }

    /// True when the agent has seen the process alive, and so on this boot of the kernel.
    pub(crate) fn seen_alive(&self) -> bool {
        self.seen_alive
    }

    /// Records a sighting.
    pub(crate) fn note(&mut self, now: Sighting) {
        if now.held {
            let counted = Counted { wall_ns: now.wall_ns, oom_kills: now.oom_kills };
            let (recent, before) = if !self.seen_alive {
                (counted, counted)
            } else if now.wall_ns.abs_diff(self.recent.wall_ns) < DYING_NS.unsigned_abs() {
                (self.recent, self.before)
            } else {
                (counted, self.recent)
            };
            // A lock that is back was taken late: the process was never dead.
            *self = Self { seen_alive: true, recent, before, ..Self::default() };
            return;
        }
        let is_running = now.process == ends::State::Running;
        if let Some(death) = self.death {
            self.awaits_status &= is_running;
            let later = self.end(now);
            if !is_running && death.exit_status().is_none() && later.exit_status().is_some() {
                self.death = Some(Death { wall_ns: death.wall_ns, ..later });
            }
            return;
        }
        if self.absent == 0 {
            self.absent_since_wall_ns = now.wall_ns;
        }
        self.absent += 1;
        let is_ending =
            is_running && now.wall_ns.saturating_sub(self.absent_since_wall_ns) < ENDING_NS_MAX;
        if now.sealed || (self.absent >= ABSENT_SIGHTINGS && !is_ending) {
            self.death = Some(self.end(now));
            self.awaits_status = is_running;
        }
    }

    fn end(&self, now: Sighting) -> Death {
        let ended = match now.process {
            ends::State::Ended(ended) => Some(ended),
            ends::State::Unknown | ends::State::Running => None,
        };
        let status = ended.and_then(|ended| ended.status);
        let exited = status.filter(|&status| status >= 0);
        let evidence = if now.sealed || exited.is_some() {
            Evidence::Exited(now.exit_status.or(exited))
        } else if now.disabled {
            Evidence::RecorderOff
        } else if !self.seen_alive {
            Evidence::FoundDead
        } else {
            // The kernel kills for memory with SIGKILL, and with no other signal.
            let rise = self.rise(now.oom_kills);
            let rise = rise.filter(|_| status.is_none_or(|status| status == -SIGKILL));
            let signal = status.map_or(Evidence::Vanished, |status| Evidence::Signalled(-status));
            rise.unwrap_or(signal)
        };
        let wall_ns = if let Some(ended) = ended {
            ended.wall_ns.min(self.absent_since_wall_ns)
        } else if self.seen_alive {
            self.absent_since_wall_ns
        } else {
            now.last_sign_wall_ns.min(now.wall_ns)
        };
        Death { evidence, wall_ns }
    }

    /// The counter that rose since shortly before the process was last seen alive. The host's also
    /// counts kills elsewhere, so it is used only where the cgroup's cannot be read: a cgroup is
    /// often gone together with its process.
    fn rise(&self, now: OomKills) -> Option<Evidence> {
        let before = self.before.oom_kills;
        let of_cgroup = before.cgroup.zip(now.cgroup).map(|counts| (Counter::Cgroup, counts));
        let of_host = before.host.zip(now.host).map(|counts| (Counter::Host, counts));
        let (of, (before, after)) = of_cgroup.or(of_host)?;
        (after > before).then_some(Evidence::OomKillsRose { of, before, after })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALIVE: Sighting = Sighting {
        wall_ns: 100,
        held: true,
        sealed: false,
        exit_status: None,
        disabled: false,
        last_sign_wall_ns: 42,
        oom_kills: OomKills { cgroup: Some(3), host: Some(9) },
        process: ends::State::Unknown,
    };

    fn gone(wall_ns: i64, cgroup: Option<u64>, host: Option<u64>) -> Sighting {
        Sighting { wall_ns, held: false, oom_kills: OomKills { cgroup, host }, ..ALIVE }
    }

    fn check(sightings: &[Sighting], expected: Option<(Cause, i64, &str)>) {
        let mut life = Life::default();
        sightings.iter().for_each(|sighting| life.note(*sighting));
        let death = life.death();
        assert_eq!(
            death.map(|death| (death.cause(), death.wall_ns)),
            expected.map(|(cause, wall_ns, _)| (cause, wall_ns)),
            "{sightings:?}"
        );
        if let (Some(death), Some((_, _, words))) = (death, expected) {
            let text = death.evidence.to_string();
            assert!(text.contains(words), "{text:?} says nothing of {words:?}");
        }
    }

    #[test]
    fn an_end_is_distinguished_from_a_pause() {
        let quiet = |wall_ns| gone(wall_ns, Some(3), Some(9));
        let sealed = |wall_ns| Sighting { sealed: true, ..quiet(wall_ns) };
        check(&[], None);
        check(&[ALIVE, ALIVE], None);
        check(&[ALIVE, sealed(200)], Some((Cause::Exited, 200, "sealed")));
        let exited = |status| Sighting { exit_status: Some(status), ..sealed(200) };
        check(&[ALIVE, exited(0)], Some((Cause::Exited, 200, "exited with status 0")));
        check(&[ALIVE, exited(1)], Some((Cause::Failed, 200, "exited with status 1")));
        check(&[ALIVE, Sighting { sealed: true, ..ALIVE }], None);
        check(&[ALIVE, quiet(200)], None);
        check(
            &[ALIVE, quiet(200), quiet(300)],
            Some((Cause::Killed, 200, "did not exit in order")),
        );
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
    fn the_kernel_says_when_and_how_a_process_ended() {
        let ended = |wall_ns, status| Sighting {
            process: ends::State::Ended(ends::Ended { wall_ns, status }),
            ..gone(200, Some(4), None)
        };
        let end = |status| [ALIVE, ended(150, status), ended(150, status)];
        check(&end(Some(-15)), Some((Cause::Killed, 150, "signal 15 ended the process")));
        check(&end(Some(-9)), Some((Cause::OomKilled, 150, "cgroup rose")));
        check(&end(None), Some((Cause::OomKilled, 150, "cgroup rose")));
        check(&end(Some(3)), Some((Cause::Failed, 150, "exited with status 3")));
        check(&end(Some(0)), Some((Cause::Exited, 150, "exited with status 0")));
        let sealed = Sighting { sealed: true, ..ended(150, Some(1)) };
        check(&[ALIVE, sealed], Some((Cause::Failed, 150, "exited with status 1")));
        // The process gives its GPU memory back, which takes a while; or it lives on without lock.
        let ending =
            |wall_ns| Sighting { process: ends::State::Running, ..gone(wall_ns, Some(3), None) };
        let late = 200 + ENDING_NS_MAX;
        let sightings = [ALIVE, ending(200), ending(300), ending(late - 1)];
        check(&sightings, None);
        let killed = Sighting { wall_ns: late, ..ended(late, Some(-11)) };
        check(&[&sightings[..], &[killed]].concat(), Some((Cause::Killed, 200, "signal 11 ended")));
        check(
            &[&sightings[..], &[ending(late)]].concat(),
            Some((Cause::Killed, 200, "did not exit in order")),
        );
    }

    #[test]
    fn a_status_that_comes_after_the_end_is_taken() {
        let running =
            |wall_ns| Sighting { process: ends::State::Running, ..gone(wall_ns, Some(3), None) };
        let ended = |wall_ns, status| Sighting {
            process: ends::State::Ended(ends::Ended { wall_ns, status }),
            ..running(wall_ns)
        };
        let late = 200 + ENDING_NS_MAX;
        let found = [ALIVE, running(200), running(late)];
        let seen = |of: Sighting| [&found[..], &[of, running(late + 9)]].concat();
        check(&seen(ended(late + 1, Some(-6))), Some((Cause::Killed, 200, "signal 6 ended")));
        check(&seen(ended(late + 1, Some(3))), Some((Cause::Failed, 200, "with status 3")));
        check(&seen(ended(late + 1, None)), Some((Cause::Killed, 200, "did not exit in order")));
        // Its tape is sealed before it has ended.
        let sealed = |of: Sighting| Sighting { sealed: true, ..of };
        let exited = [ALIVE, sealed(running(200)), sealed(ended(300, Some(1)))];
        check(&exited, Some((Cause::Failed, 200, "exited with status 1")));
        let mut life = Life::default();
        let may_change = exited.map(|sighting| {
            life.note(sighting);
            life.may_change()
        });
        assert_eq!(may_change, [true, true, false]);
    }

    #[test]
    fn oom_kills_are_told_from_kills() {
        let dead = |cgroup, host| [ALIVE, gone(200, cgroup, host), gone(300, cgroup, host)];
        let oom = |words| Some((Cause::OomKilled, 200, words));
        let killed = Some((Cause::Killed, 200, ""));
        check(&dead(Some(4), Some(10)), oom("cgroup rose from 3 to 4"));
        check(&dead(None, Some(10)), oom("host rose from 9 to 10"));
        // Another process's kill: the own cgroup counted none.
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
}
