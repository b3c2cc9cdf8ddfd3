//! `cargo xtask bench recorder`: what recording costs PyTorch, beside what PyTorch's own history
//! costs it, in one process on the fake CUDA runtime.
//!
//! tests/bench/recorder.py measures (its head says how) and hands over the nanoseconds of every
//! round. Here they become figures: the median over rounds of what a mode cost more than no
//! recording did right before it. The spread beside each is the median absolute deviation of those
//! differences. The library is the one that is shipped.
//!
//! The tapes that the run leaves are read afterwards: a mode that did not record what it claims
//! would look cheap.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use memtape_core::tape::layout::{Stacks, Tracker, descriptor, head, header, hooks};
use serde_json::{Value, json};

use super::{folder, only_tape, tapes};
use crate::process::{Steps, built, cargo, command, say};
use crate::python;
use crate::report::{Found, aligned, median, rounded};

const DEPTHS: [&str; 2] = ["6", "28"];

/// The default recorder may cost this part of PyTorch's `stacks="python"`.
const GOAL: f64 = 0.1;

/// Mode → depth → nanoseconds of a pair in each round: with no recording, and with the mode.
type Rounds = BTreeMap<String, BTreeMap<String, Vec<[f64; 2]>>>;

/// Modes: the name in the script and in the figures, and the one in the table.
const MODES: [(&str, &str); 5] = [
    ("tape", "tape"),
    ("tape_stacks", "tape, stacks (default)"),
    ("tape_detail", "tape, stacks, detail"),
    ("torch_python", "PyTorch stacks=\"python\""),
    ("torch_all", "PyTorch stacks=\"all\" (default)"),
];

/// What a tape says about itself after the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tape {
    /// Slots of the device's ring.
    events_held: u64,
    /// Memory it takes.
    bytes: u64,
}

/// One number and how far the rounds lie around it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cell {
    ns: f64,
    spread_ns: f64,
}

pub(super) fn bench(steps: &mut Steps) -> Result<Found> {
    python::fetch_torch(steps, &[])?;
    steps.take("library", library())?;
    let folder = folder()?;
    steps.take("switch", switch(&folder))?;
    let tapes = tapes()?;
    let mut rounds = Rounds::new();
    for (name, is_detail) in [("measure", false), ("measure the tracker", true)] {
        let out = folder.join("rounds.json");
        steps.take(name, script(tapes.path(), &out, is_detail))?;
        rounds.extend(serde_json::from_str::<Rounds>(&fs::read_to_string(&out)?)?);
    }
    let tape = check_tapes(tapes.path(), &mut rounds)?;
    let object = json!({ "figures": figures(&rounds, tape) });
    Ok(Found { is_good: true, text: text(&rounds, tape), object })
}

/// The library as it is shipped: alone, because beside an rlib cargo does not optimize it as a
/// whole.
pub(super) fn library() -> Command {
    let mut build = cargo(&["rustc", "--locked", "--profile", "dist", "-p", "memtape-recorder"]);
    build.args(["--lib", "--crate-type", "cdylib"]);
    build
}

fn switch(folder: &Path) -> Command {
    let mut compiler = command("gcc");
    compiler.args(["-std=gnu17", "-O2", "-fPIC", "-Wall", "-Wextra", "-Werror", "-shared", "-o"]);
    compiler.arg(folder.join("switch.so")).arg("tests/bench/switch.c");
    compiler
}

fn script(tapes: &Path, out: &Path, is_detail: bool) -> Command {
    let mut script = python::on_fake_cuda("4G", "tests/bench/recorder.py");
    script.env("LD_PRELOAD", out.with_file_name("switch.so"));
    script.arg("--library").arg(built("dist").join("libmemtape.so"));
    script.arg("--tapes").arg(tapes).arg("--out").arg(out);
    script.args(is_detail.then_some("--detail"));
    script
}

// --- the tapes ----------------------------------------------------------------------------------

/// Checks that each mode recorded what it claims. Prints and removes a tracker mode that could not
/// be attached.
fn check_tapes(folder: &Path, rounds: &mut Rounds) -> Result<Tape> {
    recorded(folder, "tape", Stacks::Off)?;
    let detail = recorded(folder, "tape_detail", Stacks::Python)?;
    if detail.get(header::TRACKER) != Some(&(Tracker::Attached as u64)) {
        say("tape_detail: the tracker could not be attached; there is no figure for it\n");
        rounds.remove("tape_detail");
    }
    let words = recorded(folder, "tape_stacks", Stacks::Python)?;
    let slots = words.get(header::DESCRIPTORS + descriptor::RING_SLOTS).context("no lane")?;
    let bytes = fs::metadata(only_tape(&folder.join("tape_stacks"))?)?.blocks() * 512;
    Ok(Tape { events_held: *slots, bytes })
}

/// The words of a tape whose ring went round, and lost nothing.
fn recorded(folder: &Path, mode: &str, stacks: Stacks) -> Result<Vec<u64>> {
    let bytes = fs::read(only_tape(&folder.join(mode))?)?;
    let words: Vec<_> = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let word = |at: usize| words.get(at).copied().unwrap_or(0);
    ensure!(word(header::STACKS) == stacks as u64, "{mode}: its stacks are not {stacks:?}");
    let lane = word(header::DESCRIPTORS + descriptor::HEAD) as usize;
    let (written, slots) =
        (word(lane + head::DONE), word(header::DESCRIPTORS + descriptor::RING_SLOTS));
    let is_hooked = word(header::HOOKS) & hooks::REPORT != 0;
    ensure!(
        is_hooked && written > slots && word(header::LOST_DEVICE_EVENTS) == 0,
        "{mode}: {written} events, {slots} slots: it did not record"
    );
    Ok(words)
}

// --- figures ------------------------------------------------------------------------------------

/// What a mode adds at a depth; `None` when it was not measured.
fn added(rounds: &Rounds, mode: &str, depth: &str) -> Option<Cell> {
    let pairs = rounds.get(mode)?.get(depth)?;
    Some(cell(pairs.iter().map(|[off, with]| with - off).collect()))
}

/// A pair with no recording: every cell of the process that measured the default recorder.
fn off(rounds: &Rounds, depth: &str) -> Cell {
    let modes = rounds.iter().filter(|(name, _)| *name != "tape_detail");
    let pairs = modes.filter_map(|(_, cells)| cells.get(depth)).flatten();
    cell(pairs.map(|[off, _]| *off).collect())
}

fn cell(values: Vec<f64>) -> Cell {
    let ns = median(values.clone());
    Cell { ns, spread_ns: median(values.into_iter().map(|value| (value - ns).abs()).collect()) }
}

/// Cost of the default recorder as a part of PyTorch's `stacks="python"`.
fn ratio(rounds: &Rounds, depth: &str) -> Option<f64> {
    let of = |name: &str| added(rounds, name, depth).map(|cell| cell.ns);
    Some(of("tape_stacks")? / of("torch_python")?)
}

fn figures(rounds: &Rounds, tape: Tape) -> Value {
    let mut figures = serde_json::Map::new();
    figures.insert("off_ns".into(), json!(rounded(off(rounds, "6").ns, 1)));
    figures.insert("off_spread_ns".into(), json!(rounded(off(rounds, "6").spread_ns, 1)));
    for (mode, _) in MODES {
        for depth in DEPTHS {
            if let Some(cell) = added(rounds, mode, depth) {
                let name = format!("{mode}_{depth}");
                figures.insert(format!("{name}_ns"), json!(rounded(cell.ns, 1)));
                figures.insert(format!("{name}_spread_ns"), json!(rounded(cell.spread_ns, 1)));
            }
        }
    }
    for depth in DEPTHS {
        if let Some(ratio) = ratio(rounds, depth) {
            figures.insert(format!("ratio_{depth}"), json!(rounded(ratio, 4)));
        }
    }
    figures.insert("rounds".into(), json!(number_of_rounds(rounds)));
    figures.insert("events_held".into(), json!(tape.events_held));
    figures.insert("tape_bytes".into(), json!(tape.bytes));
    figures.insert("bytes_per_event".into(), json!(rounded(bytes_per_event(tape), 1)));
    Value::Object(figures)
}

fn text(rounds: &Rounds, tape: Tape) -> String {
    let show = |cell: Option<Cell>| {
        cell.map_or("-".to_string(), |cell| format!("{:.0} ± {:.0}", cell.ns, cell.spread_ns))
    };
    let title =
        ("nanoseconds of a pair".to_string(), DEPTHS.map(|depth| format!("{depth} frames")));
    let off = ("off".to_string(), DEPTHS.map(|depth| show(Some(off(rounds, depth)))));
    let modes = MODES.iter().map(|(mode, says)| {
        (format!("+ {says}"), DEPTHS.map(|depth| show(added(rounds, mode, depth))))
    });
    let rows = [title, off].into_iter().chain(modes).map(|(name, cells)| (name, cells.to_vec()));
    let parts = DEPTHS.iter().filter_map(|depth| {
        let ratio = ratio(rounds, depth)?;
        let word = if ratio <= GOAL { "met" } else { "not met" };
        Some(format!("1/{:.1} at {depth} frames ({word})", 1.0 / ratio))
    });
    format!(
        "{}default beside PyTorch's python stacks, goal 1/10: {}\n\
         a default tape holds {} events in {:.1} MiB, {:.1} bytes an event; {} rounds\n",
        aligned(rows),
        parts.collect::<Vec<_>>().join(", "),
        tape.events_held,
        tape.bytes as f64 / f64::from(1 << 20),
        bytes_per_event(tape),
        number_of_rounds(rounds),
    )
}

fn number_of_rounds(rounds: &Rounds) -> usize {
    rounds.get("tape_stacks").and_then(|cells| cells.get("6")).map_or(0, Vec::len)
}

/// With everything that a tape of one device needs besides.
fn bytes_per_event(tape: Tape) -> f64 {
    tape.bytes as f64 / tape.events_held.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds() -> Rounds {
        let text = r#"{
            "tape": {"6": [[1000, 1050]], "28": [[1000, 1050]]},
            "tape_stacks": {"6": [[1000, 1090], [2000, 2090], [1500, 1600]], "28": [[2000, 2150]]},
            "torch_python": {"6": [[1000, 2000]], "28": [[1000, 2400]]},
            "torch_all": {"6": [[2000, 5000]], "28": [[1500, 5500]]}
        }"#;
        serde_json::from_str(text).expect("rounds")
    }

    #[test]
    fn a_figure_is_the_median_of_differences_in_one_round() {
        let tape = Tape { events_held: 1 << 19, bytes: 64 << 20 };
        let figures = figures(&rounds(), tape);
        assert_eq!(figures["off_ns"], 1250.0);
        assert_eq!(figures["tape_stacks_6_ns"], 90.0);
        assert_eq!(figures["tape_stacks_6_spread_ns"], 0.0);
        assert_eq!(figures["torch_all_28_ns"], 4000.0);
        assert_eq!(figures["ratio_6"], 0.09);
        assert_eq!(figures["bytes_per_event"], 128.0);
        assert!(figures.get("tape_detail_6_ns").is_none(), "what was not measured is not there");
        let text = text(&rounds(), tape);
        assert!(text.contains("1/11.1 at 6 frames (met), 1/9.3 at 28 frames (not met)"), "{text}");
    }
}
