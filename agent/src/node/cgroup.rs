//! The memory controller of a process's cgroup, version 2 or 1.
//!
//! The paths of the files depend on the version, on the mounts and on the cgroup namespace; a
//! missing file is an absent reading, never a zero. Only a process's own mount tells its own cgroup
//! for sure: for other processes no guess is made.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use memtape_proto::readings;

use crate::node::process;

/// Version 1 says "no limit" with the largest multiple of the page size; anything near it is none.
const LIMIT_BYTES_MAX: u64 = 1 << 60;

/// The folder of one memory cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cgroup {
    mount: PathBuf,
    folder: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Cgroup {
    /// The agent's own cgroup.
    pub(crate) fn of_self(root: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
        let (version, path) = parse_membership(&text)?;
        let mount = root.join(version.files().mount);
        // In a container the mount may begin at the container's own cgroup while the path is the
        // machine's (version 1 without a cgroup namespace).
        [below(&mount, path), Some(mount.clone())]
            .into_iter()
            .flatten()
            .map(|folder| Self { mount: mount.clone(), folder, version })
            .find(|cgroup| cgroup.number(version.files().usage).is_some())
    }

    /// The cgroup of another process; none when the agent cannot see it.
    pub(crate) fn of_process(root: &Path, pid: u32) -> Option<Self> {
        let text = process::read(root, pid, "cgroup")?;
        let (version, path) = parse_membership(&text)?;
        let mount = root.join(version.files().mount);
        let cgroup = Self { folder: below(&mount, path)?, mount, version };
        cgroup.oom_kills().is_some().then_some(cgroup)
    }

    /// Processes killed in it for want of memory since it was made.
    pub(crate) fn oom_kills(&self) -> Option<u64> {
        self.events().oom_kills
    }

    /// Events of the cgroup and its descendants since it was made. Version 1 counts only kills.
    fn events(&self) -> readings::Cgroup {
        let path = self.folder.join(self.version.files().events);
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let count = |name| parse_count(&text, name);
        readings::Cgroup {
            highs: count("high "),
            ooms: count("oom "),
            oom_kills: count("oom_kill "),
            ..readings::Cgroup::default()
        }
    }

    /// Use and limit of the nearest cgroup upward that has a limit; without any, its own use.
    pub(crate) fn memory(&self) -> readings::Cgroup {
        let Files { usage, limit, .. } = self.version.files();
        let mut cgroup = self.clone();
        loop {
            let limit_bytes = cgroup.number(limit);
            if limit_bytes.is_some() {
                let bytes = cgroup.number(usage);
                let inode = cgroup.folder.metadata().ok().map(|folder| folder.ino());
                return readings::Cgroup { bytes, limit_bytes, inode, ..cgroup.events() };
            }
            if cgroup.folder == cgroup.mount || !cgroup.folder.pop() {
                return readings::Cgroup { bytes: self.number(usage), ..self.events() };
            }
        }
    }

    fn number(&self, name: &str) -> Option<u64> {
        let text = std::fs::read_to_string(self.folder.join(name)).ok()?;
        text.trim().parse::<u64>().ok().filter(|bytes| *bytes < LIMIT_BYTES_MAX)
    }
}

/// Paths of one cgroup version: the folder below the root, and the names of the files.
struct Files {
    mount: &'static str,
    usage: &'static str,
    limit: &'static str,
    events: &'static str,
}

impl Version {
    fn files(self) -> Files {
        match self {
            Self::One => Files {
                mount: "sys/fs/cgroup/memory",
                usage: "memory.usage_in_bytes",
                limit: "memory.limit_in_bytes",
                events: "memory.oom_control",
            },
            Self::Two => Files {
                mount: "sys/fs/cgroup",
                usage: "memory.current",
                limit: "memory.max",
                events: "memory.events",
            },
        }
    }
}

/// The value of the line `oom_kill N` in `memory.events`, `memory.oom_control` or `vmstat`.
pub(crate) fn parse_oom_kills(text: &str) -> Option<u64> {
    parse_count(text, "oom_kill ")
}

fn parse_count(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)).and_then(|n| n.trim().parse().ok())
}

/// Version and path of the memory controller in a `/proc/PID/cgroup`. A memory controller that
/// is attached to version 1 cannot be attached to version 2 at the same time.
fn parse_membership(text: &str) -> Option<(Version, &str)> {
    let fields = |line| {
        let mut parts = str::splitn(line, 3, ':');
        Some((parts.next()?, parts.next()?, parts.next()?))
    };
    let one = text.lines().filter_map(fields).find_map(|(_, controllers, path)| {
        controllers.split(',').any(|name| name == "memory").then_some((Version::One, path))
    });
    let two = text.lines().filter_map(fields).find_map(|(number, controllers, path)| {
        (number == "0" && controllers.is_empty()).then_some((Version::Two, path))
    });
    one.or(two)
}

/// `path` below the mount; none when it leads out of it, as it does when the cgroup lies outside
/// of the agent's cgroup namespace.
fn below(mount: &Path, path: &str) -> Option<PathBuf> {
    let path = Path::new(path.strip_prefix('/')?);
    let inside = path.components().all(|part| matches!(part, Component::Normal(_)));
    inside.then(|| mount.join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("folder");
        std::fs::write(path, text).expect("file");
    }

    fn check(files: &[(&str, &str)], memory: Option<readings::Cgroup>, oom_kills: Option<u64>) {
        let root = tempfile::tempdir().expect("folder");
        for (path, text) in files {
            write(root.path(), path, text);
        }
        let own = Cgroup::of_self(root.path());
        // The inode is the machine's choice.
        let inode = own.as_ref().and_then(|own| own.memory().inode);
        assert_eq!(inode.is_some(), memory.is_some_and(|memory| memory.limit_bytes.is_some()));
        let memory = memory.map(|memory| readings::Cgroup { inode, ..memory });
        assert_eq!(own.as_ref().map(Cgroup::memory), memory, "{files:?}");
        let other = Cgroup::of_process(root.path(), 7);
        assert_eq!(other.and_then(|cgroup| cgroup.oom_kills()), oom_kills, "{files:?}");
    }

    #[test]
    fn both_versions() {
        let limited = |bytes, limit_bytes| {
            let bytes = Some(bytes);
            readings::Cgroup { bytes, limit_bytes, ..readings::Cgroup::default() }
        };
        check(&[], None, None);
        check(&[("proc/self/cgroup", "0::/\n")], None, None);
        check(
            &[
                ("proc/self/cgroup", "0::/kube/pod\n"),
                ("proc/7/cgroup", "0::/kube/pod\n"),
                ("sys/fs/cgroup/kube/pod/memory.current", "1000\n"),
                ("sys/fs/cgroup/kube/pod/memory.max", "4000\n"),
                ("sys/fs/cgroup/kube/pod/memory.events", "low 0\nhigh 7\noom 3\noom_kill 2\n"),
            ],
            Some(readings::Cgroup {
                highs: Some(7),
                ooms: Some(3),
                oom_kills: Some(2),
                ..limited(1000, Some(4000))
            }),
            Some(2),
        );
        // The limit stands further up: use and limit are both of that cgroup.
        check(
            &[
                ("proc/self/cgroup", "0::/a/b\n"),
                ("sys/fs/cgroup/a/b/memory.current", "10\n"),
                ("sys/fs/cgroup/a/b/memory.max", "max\n"),
                ("sys/fs/cgroup/a/memory.current", "25\n"),
                ("sys/fs/cgroup/a/memory.max", "90\n"),
                ("sys/fs/cgroup/a/memory.events", "high 0\nmax 5\noom 1\noom_kill 0\n"),
            ],
            Some(readings::Cgroup {
                highs: Some(0),
                ooms: Some(1),
                oom_kills: Some(0),
                ..limited(25, Some(90))
            }),
            None,
        );
        // Version 1, unlimited, in a container whose mount begins at its own cgroup.
        check(
            &[
                ("proc/self/cgroup", "4:cpu,memory:/docker/x\n0::/\n"),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "77\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ("proc/7/cgroup", "4:memory:/\n"),
                ("sys/fs/cgroup/memory/memory.oom_control", "under_oom 0\noom_kill 5\n"),
            ],
            Some(readings::Cgroup { oom_kills: Some(5), ..limited(77, None) }),
            Some(5),
        );
        // A cgroup outside of the agent's cgroup namespace is not guessed at.
        check(
            &[
                ("proc/7/cgroup", "0::/../other\n"),
                ("sys/fs/cgroup/other/memory.events", "oom_kill 5\n"),
                ("sys/fs/cgroup/memory.events", "oom_kill 5\n"),
            ],
            None,
            None,
        );
    }

    #[test]
    fn oom_kill_lines() {
        for (text, expected) in [
            ("oom_kill 3\n", Some(3)),
            ("oom 9\noom_kill 0\noom_group_kill 4\n", Some(0)),
            ("oom_kill_disable 1\nunder_oom 0\n", None),
            ("oom_kill -1\n", None),
            ("", None),
        ] {
            assert_eq!(parse_oom_kills(text), expected, "{text:?}");
        }
    }
}
