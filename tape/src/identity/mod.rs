//! Reads job, attempt and rank from the environment of a process.
//!
//! Launchers disagree on names, and several may be set at once (torchrun inside Slurm). The order
//! of belief is: the user's variables (`MEMTAPE_…`), torchrun, Slurm, MPI. Nothing here reads the
//! environment; it is passed in as a function.

pub mod accounts;
pub mod end;
pub mod ids;
pub mod owner;
pub mod planned_end;

use crate::limits::{ALLOCATOR_SETTINGS_BYTES_MAX, NAME_BYTES_MAX, ROLE_BYTES_MAX};

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use planned_end::PlannedEnd;

/// Identity of one rank process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Unique over processes and reboots; empty until the tape is made.
    pub tape_id: String,
    /// Name of the job.
    pub job: String,
    /// Role of the rank in the job's parallelism, in the job's own words (`pp0`): ranks of one role
    /// do the same work. Empty when it is not set.
    pub role: String,
    /// Which attempt at the job, as the launcher counts; 0 is the first.
    pub attempt: u32,
    /// Global rank.
    pub rank: u32,
    /// Number of ranks; 0 is unknown.
    pub world_size: u32,
    /// Rank on this node.
    pub local_rank: u32,
    /// Name of the host.
    pub host: String,
    /// Process id in the process's own pid namespace.
    pub pid: u32,
    /// Command line, cut to [`crate::limits::COMMAND_BYTES_MAX`].
    pub command: String,
    /// Settings of PyTorch's allocator, as the environment has them; none where it was not
    /// recorded, and empty where it has none.
    pub allocator: Option<String>,
    /// Allocator settings that `memtape run --apply-hints` set; empty where it set none.
    pub hints: String,
    /// Planned end of the job.
    pub planned_end: PlannedEnd,
}

impl Identity {
    /// Reads job, attempt and ranks from environment variables, as `lookup` finds them.
    pub fn from_environment(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let text = |names: &[&str]| {
            names.iter().find_map(|name| lookup(name).filter(|value| !value.trim().is_empty()))
        };
        let wide = |names: &[&str]| text(names).and_then(|value| value.trim().parse::<u64>().ok());
        let number = |names: &[&str]| wide(names).and_then(|value| u32::try_from(value).ok());
        // torchrun says "none" when no rendezvous id was given, and makes one up for --standalone.
        let one_node = number(&["GROUP_WORLD_SIZE"]) == Some(1);
        let torchrun =
            text(&["TORCHELASTIC_RUN_ID"]).filter(|id| id != "none" && !(one_node && is_uuid(id)));
        let job = text(&["MEMTAPE_JOB"])
            .or(torchrun)
            .or_else(|| text(&["SLURM_JOB_ID", "JOB_NAME", "MEMTAPE_RUN", "TORCHELASTIC_RUN_ID"]))
            .unwrap_or_else(|| "unnamed".to_string());
        Self {
            job: cut(&job, NAME_BYTES_MAX).to_string(),
            role: cut(text(&["MEMTAPE_ROLE"]).unwrap_or_default().trim(), ROLE_BYTES_MAX)
                .to_string(),
            attempt: number(&[
                "MEMTAPE_ATTEMPT",
                "TORCHELASTIC_RESTART_COUNT",
                "SLURM_RESTART_COUNT",
            ])
            .unwrap_or(0),
            rank: number(&[
                "MEMTAPE_RANK",
                "RANK",
                "SLURM_PROCID",
                "OMPI_COMM_WORLD_RANK",
                "PMI_RANK",
            ])
            .unwrap_or(0),
            world_size: number(&[
                "MEMTAPE_WORLD_SIZE",
                "WORLD_SIZE",
                "SLURM_NTASKS",
                "OMPI_COMM_WORLD_SIZE",
                "PMI_SIZE",
            ])
            .unwrap_or(0),
            local_rank: number(&["LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"])
                .unwrap_or(0),
            allocator: Some(allocator_settings(&lookup)),
            hints: cut(text(&["MEMTAPE_HINTS"]).unwrap_or_default().trim(), SETTINGS_MAX)
                .to_string(),
            planned_end: PlannedEnd::from_numbers(wide),
            ..Self::default()
        }
    }
}

/// Variables with the settings of PyTorch's allocator. Which of them PyTorch takes where both are
/// set depends on its version.
pub const ALLOCATOR_VARIABLES: [&str; 2] = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];

const SETTINGS_MAX: usize = ALLOCATOR_SETTINGS_BYTES_MAX;

/// Settings of PyTorch's allocator in the environment, from both variables.
fn allocator_settings(lookup: impl Fn(&str) -> Option<String>) -> String {
    let texts = ALLOCATOR_VARIABLES.iter().filter_map(|name| lookup(name));
    let texts: Vec<String> = texts.filter(|text| !text.trim().is_empty()).collect();
    cut(texts.join(",").trim(), SETTINGS_MAX).to_string()
}

/// A boot id of the kernel, such as `0a1b2c3d-…`, as a tape holds it; a half that is missing is 0.
pub fn boot_id_words(text: &str) -> [u64; 2] {
    let digits = text.replace('-', "");
    let half = |range| digits.get(range).and_then(|part| u64::from_str_radix(part, 16).ok());
    [half(0..16).unwrap_or(0), half(16..32).unwrap_or(0)]
}

/// True for the usual form of a UUID: 8-4-4-4-12 hexadecimal digits.
fn is_uuid(text: &str) -> bool {
    let mut lengths = text.split('-').map(str::len);
    [8, 4, 4, 4, 12].iter().all(|length| lengths.next() == Some(*length))
        && lengths.next().is_none()
        && text.chars().all(|c| c == '-' || c.is_ascii_hexdigit())
}

/// The longest prefix of at most `bytes_max` bytes that ends on a character boundary.
pub fn cut(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(vars: &[(&str, &str)], job: &str, attempt: u32, rank: u32, world: u32) {
        let identity = Identity::from_environment(|name| {
            vars.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
        });
        assert_eq!(
            (identity.job.as_str(), identity.attempt, identity.rank, identity.world_size),
            (job, attempt, rank, world)
        );
    }

    #[test]
    fn launchers_are_understood() {
        check(&[], "unnamed", 0, 0, 0);
        check(
            &[
                ("TORCHELASTIC_RUN_ID", "none"),
                ("MEMTAPE_RUN", "train-7"),
                ("RANK", "3"),
                ("WORLD_SIZE", "8"),
            ],
            "train-7",
            0,
            3,
            8,
        );
        let made_up = ("TORCHELASTIC_RUN_ID", "0ba5f0c2-1d2e-4f3a-8b9c-0123456789ab");
        let run = ("MEMTAPE_RUN", "train-7");
        check(&[made_up, ("GROUP_WORLD_SIZE", "1"), run], "train-7", 0, 0, 0);
        check(&[made_up, ("GROUP_WORLD_SIZE", "2"), run], made_up.1, 0, 0, 0);
        check(&[made_up, ("GROUP_WORLD_SIZE", "1")], made_up.1, 0, 0, 0);
        check(
            &[
                ("TORCHELASTIC_RUN_ID", "exp9"),
                ("TORCHELASTIC_RESTART_COUNT", "2"),
                ("SLURM_JOB_ID", "55"),
            ],
            "exp9",
            2,
            0,
            0,
        );
        check(
            &[("SLURM_JOB_ID", "55"), ("SLURM_PROCID", "12"), ("SLURM_NTASKS", "16")],
            "55",
            0,
            12,
            16,
        );
        check(&[("MEMTAPE_JOB", "mine"), ("SLURM_JOB_ID", "55"), ("RANK", "x")], "mine", 0, 0, 0);
    }

    #[test]
    fn a_role_comes_from_the_environment() {
        let role = |value: Option<&str>| {
            let lookup = |name: &str| value.filter(|_| name == "MEMTAPE_ROLE").map(String::from);
            Identity::from_environment(lookup).role
        };
        assert_eq!((role(None), role(Some(" "))), (String::new(), String::new()));
        assert_eq!(role(Some(" pp0 tp1 ")), "pp0 tp1");
        assert_eq!(role(Some(&"x".repeat(99))).len(), ROLE_BYTES_MAX);
    }

    #[test]
    fn settings_of_the_allocator_come_from_the_environment() {
        let check = |vars: &[(&str, &str)], allocator: &str, hints: &str| {
            let identity = Identity::from_environment(|name| {
                vars.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
            });
            let found = (identity.allocator.as_deref(), identity.hints.as_str());
            assert_eq!(found, (Some(allocator), hints));
        };
        check(&[], "", "");
        let (cuda, any) = (ALLOCATOR_VARIABLES[0], ALLOCATOR_VARIABLES[1]);
        let expand = "expandable_segments:True";
        check(&[(cuda, expand), ("MEMTAPE_HINTS", expand)], expand, expand);
        check(&[(any, "max_split_size_mb:64")], "max_split_size_mb:64", "");
        check(&[(cuda, "a:1"), (any, "b:2")], "a:1,b:2", "");
        check(&[(cuda, &"x".repeat(999))], &"x".repeat(SETTINGS_MAX), "");
    }

    #[test]
    fn boot_ids_are_two_words() {
        let boot_id = "0123456789abcdef-fedc-ba98-7654-3210-0000";
        assert_eq!(boot_id_words(boot_id), [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210]);
        assert_eq!(boot_id_words("no"), [0, 0]);
    }

    #[test]
    fn cutting_keeps_characters_whole() {
        assert_eq!(cut("naïve", 3), "na");
        assert_eq!(cut("abc", 9), "abc");
    }
}
