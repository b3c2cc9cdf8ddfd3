//! The corpus as plain files, for other detectors and other programs.
//!
//! ```text
//! DIR/index.json                     every scenario, its folder and its label
//! DIR/FAMILY-SEED/label.json         the same of one scenario
//! DIR/FAMILY-SEED/rankR.csv.gz       one row a step
//! DIR/FAMILY-SEED/rankR.T.pickle.gz  the allocator at the end of step T, as PyTorch writes it
//! DIR/SUMS                           BLAKE3 of each file as it is unpacked, and its path
//! ```
//!
//! The same families, seeds and version make the same bytes on every machine. Sums are of the
//! unpacked files, because how a file is packed differs with the packer.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use memtape_core::pickle::torch_snapshot;
use serde_json::{Value, json};
use strum::VariantArray as _;

use crate::families::{Family, families};
use crate::job::{Expect, Layer};
use crate::scenario::Scenario;

/// Ranks of a scenario that are written: those with the fault first, up to a total.
const RANKS_MAX: usize = 16;

/// Ranks whose allocator is written.
const SNAPSHOT_RANKS: usize = 2;

/// Steps from the onset to the second snapshot, where the job is that long, and between the two.
const SNAPSHOT_STEPS: u64 = 256;

/// The sample that lies in the repository: family, seed.
pub const SAMPLE: [(&str, u64); 7] = [
    ("leak_one_rank", 5),
    ("deferred_frees", 6),
    ("fragmentation", 6),
    ("worker_growth", 4),
    ("recorded_injected", 5),
    ("variable_length", 1),
    ("cache_fill", 5),
];

/// Ranks of its jobs at most.
pub const SAMPLE_RANKS_MAX: u32 = 2;

/// The scenarios of the sample.
pub fn sample() -> Vec<(Family, u64, Scenario)> {
    let all = families();
    let of = |&(name, seed): &(&str, u64)| {
        let family = *all.iter().find(|family| family.name == name)?;
        Some((family, seed, family.scenario(seed, SAMPLE_RANKS_MAX)?))
    };
    SAMPLE.iter().filter_map(of).collect()
}

/// The columns of a series, after the step.
const COLUMNS: [&str; 15] = [
    "floor_allocated",
    "peak_allocated",
    "end_allocated",
    "floor_reserved",
    "end_reserved",
    "deferred",
    "blocks",
    "retries",
    "non_torch",
    "other",
    "host",
    "pinned",
    "shared",
    "workers",
    "lost",
];

/// Files by path, unpacked.
pub type Files = BTreeMap<String, Vec<u8>>;

/// The files of one scenario.
pub fn files(family: &Family, seed: u64, scenario: &Scenario) -> Files {
    let folder = folder(family, seed);
    let mut files = Files::new();
    let label = format!("{:#}\n", label(family, seed, scenario));
    files.insert(format!("{folder}/label.json"), label.into_bytes());
    let ranks = ranks(scenario);
    for &rank in &ranks {
        files.insert(format!("{folder}/rank{rank}.csv"), series(scenario, rank).into_bytes());
    }
    let (from, to) = snapshot_steps(scenario);
    for &rank in ranks.iter().take(SNAPSHOT_RANKS) {
        for step in [from, to] {
            if let Some(snapshot) = scenario.snapshot(rank, 0, step) {
                let path = format!("{folder}/rank{rank}.{step}.pickle");
                files.insert(path, torch_snapshot(&snapshot));
            }
        }
    }
    files
}

fn folder(family: &Family, seed: u64) -> String {
    format!("{}-{seed}", family.name)
}

/// Ranks that are written: some with the fault, some without.
fn ranks(scenario: &Scenario) -> Vec<u32> {
    let mut ranks: Vec<u32> = Vec::new();
    let mut known = BTreeSet::new();
    let faulty = scenario.fault.iter().flat_map(|fault| fault.ranks.iter().copied());
    for rank in faulty.take(RANKS_MAX / 2).chain(0..scenario.ranks) {
        if known.insert(rank) {
            ranks.push(rank);
        }
    }
    ranks.truncate(RANKS_MAX);
    // The first with the fault and the first without are the two whose allocator is written.
    if let Some(fault) = &scenario.fault
        && let Some(at) = ranks.iter().position(|rank| !fault.ranks.contains(rank))
        && at > 1
    {
        ranks.swap(1, at);
    }
    ranks
}

/// The steps of the two snapshots.
fn snapshot_steps(scenario: &Scenario) -> (u64, u64) {
    let begin = scenario.fault.as_ref().map_or(scenario.steps / 2, |fault| fault.onset);
    let to = (begin + SNAPSHOT_STEPS).min(scenario.steps);
    (to.saturating_sub(SNAPSHOT_STEPS).max(1), to)
}

fn series(scenario: &Scenario, rank: u32) -> String {
    let reports = crate::arrival::Reports::of(scenario);
    let mut csv = format!("step,{}\n", COLUMNS.join(","));
    for step in 1..=scenario.steps {
        let Some(of) = scenario.step(rank, step) else { break };
        let outside = &of.outside;
        let values = [
            of.floor,
            of.peak,
            of.end,
            of.floor_reserved,
            of.reserved,
            of.deferred,
            of.blocks,
            u64::from(of.retries),
            outside.non_torch,
            outside.other,
            outside.host,
            outside.pinned,
            outside.shared,
            outside.workers,
            u64::from(reports.is_lost(rank, step)),
        ];
        let _ = write!(csv, "{step}");
        for value in values {
            let _ = write!(csv, ",{value}");
        }
        csv.push('\n');
    }
    csv
}

/// Everything that is known of a scenario.
fn label(family: &Family, seed: u64, scenario: &Scenario) -> Value {
    let (from, to) = snapshot_steps(scenario);
    let fault = scenario.fault.as_ref().map(|fault| {
        let lines = fault.sites.iter().map(|site| {
            json!({ "file": site.frame.file, "line": site.frame.line,
                    "function": site.frame.function })
        });
        json!({
            "class": fault.class,
            "expect": if fault.expect == Expect::Page { "page" } else { "notice" },
            "ranks": fault.ranks,
            "onset_step": fault.onset,
            "layers": fault.layers.iter().map(|layer| layer.as_str()).collect::<Vec<_>>(),
            "lines": lines.collect::<Vec<_>>(),
            "bytes_per_step": fault.rate as u64,
        })
    });
    let arrival = &scenario.arrival;
    json!({
        "family": family.name,
        "set": family.set.name(),
        "seed": seed,
        "ranks": scenario.ranks,
        "map": scenario.map,
        "roles": scenario.roles,
        "roles_known": scenario.roles_known,
        "steps": scenario.steps,
        "first_step": scenario.first_step,
        "step_ns": scenario.step_ns,
        "device_bytes": scenario.device_bytes,
        "host_limit_bytes": scenario.host_limit,
        "behaviours": scenario.notes,
        "oom_step": scenario.oom,
        "lost_ppm": arrival.loss_ppm,
        "clock_error_ns": arrival.clock_error_ns,
        "fault": fault,
        "written_ranks": ranks(scenario),
        "snapshot_steps": [from, to],
    })
}

/// Writes scenarios, packed, with the index and the sums.
///
/// # Errors
/// The folder cannot be written.
pub fn write(folder: &Path, scenarios: &[(Family, u64, Scenario)]) -> io::Result<u64> {
    let mut sums = BTreeMap::new();
    let mut index = Vec::new();
    let mut written = 0;
    for (family, seed, scenario) in scenarios {
        index.push(label(family, *seed, scenario));
        for (path, bytes) in files(family, *seed, scenario) {
            written += put(folder, &path, &bytes, &mut sums)?;
        }
    }
    let layers: Vec<&str> = Layer::VARIANTS.iter().map(|layer| layer.as_str()).collect();
    let index =
        format!("{:#}\n", json!({ "scenarios": index, "columns": COLUMNS, "layers": layers }));
    written += put(folder, "index.json", index.as_bytes(), &mut sums)?;
    fs::write(folder.join("SUMS"), lines(&sums))?;
    Ok(written)
}

/// The sums as they stand in a file.
pub fn lines(sums: &BTreeMap<String, String>) -> String {
    sums.iter().map(|(path, sum)| format!("{sum}  {path}\n")).collect()
}

/// Writes one file; all but JSON are packed.
fn put(
    folder: &Path,
    path: &str,
    bytes: &[u8],
    sums: &mut BTreeMap<String, String>,
) -> io::Result<u64> {
    sums.insert(path.to_string(), blake3::hash(bytes).to_hex().to_string());
    let is_plain = path.ends_with(".json");
    let at = folder.join(if is_plain { path.to_string() } else { format!("{path}.gz") });
    if let Some(parent) = at.parent() {
        fs::create_dir_all(parent)?;
    }
    let packed = if is_plain {
        bytes.to_vec()
    } else {
        let mut packer = GzEncoder::new(Vec::new(), Compression::best());
        packer.write_all(bytes)?;
        packer.finish()?
    };
    fs::write(at, &packed)?;
    Ok(packed.len() as u64)
}
