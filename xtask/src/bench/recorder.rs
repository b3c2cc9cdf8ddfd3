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
use std::path::Path;
use std::process::Command;

use memtape_core::tape::layout::{Stacks, Tracker, descriptor, head, header, hooks};
use serde_json::{Value, json};

use crate::report::{Outcome, Step};
use crate::step::{Tapes, built, cargo, command, only_tape, root, run, say};
use crate::torch;

const DEPTHS: [&str; 2] = ["6", "28"];

/// The default recorder may cost this part of PyTorch's `stacks="python"`.
const GOAL: f64 = 0.1;

/// Where everything is built and written.
const FOLDER: &str = "target/bench";

/// Mode → depth → nanoseconds of a pair in each round: with no recording, and with the mode.
type Rounds = BTreeMap<String, BTreeMap<String, Vec<[f64; 2]>>>;

/// A mode: its name in the script, in the figures, and in the table.
struct Mode {
    name: &'static str,
    says: &'static str,
}

const MODES: [Mode; 5] = [
    Mode { name: "tape", says: "tape" },
    Mode { name: "tape_stacks", says: "tape, stacks (default)" },
    Mode { name: "tape_detail", says: "tape, stacks, detail" },
    Mode { name: "torch_python", says: "PyTorch stacks=\"python\"" },
    Mode { name: "torch_all", says: "PyTorch stacks=\"all\" (default)" },
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

/// Measures, and says what it found.
pub(crate) fn bench() -> Outcome {
    let mut steps = Vec::new();
    let measured = measure(&mut steps);
    if let Err(why) = &measured {
        say(&format!("{why}\n"));
    }
    let (text, figures) = measured.as_ref().map_or_else(
        |_| ("no figures\n".into(), json!({})),
        |(rounds, tape)| (text(rounds, *tape), figures(rounds, *tape)),
    );
    Outcome::measured(("bench recorder", measured.is_ok()), &figures, &steps, text)
}

fn measure(steps: &mut Vec<Step>) -> Result<(Rounds, Tape), String> {
    let mut take = |name: &'static str, command: Command| {
        steps.push(run(name, command));
        steps.last().is_some_and(|step| step.is_good).then_some(()).ok_or(format!("{name} failed"))
    };
    let python = torch::python();
    if !torch::is_ready(&python) {
        take("fetch PyTorch", torch::install())?;
    }
    take("library", library())?;
    let folder = root().join(FOLDER);
    fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    take("switch", switch())?;

    let tapes = Tapes::new()?;
    let mut rounds = Rounds::new();
    for (name, is_detail) in [("measure", false), ("measure the tracker", true)] {
        let out = folder.join("rounds.json");
        take(name, script(&python, tapes.folder(), &out, is_detail))?;
        let text = fs::read_to_string(&out).map_err(|error| error.to_string())?;
        let found: Rounds = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        rounds.extend(found);
    }
    let tape = check_tapes(tapes.folder(), &mut rounds)?;
    Ok((rounds, tape))
}

/// The library as it is shipped: alone, because beside an rlib cargo does not optimize it as a
/// whole.
fn library() -> Command {
    let mut build = cargo(&["rustc", "--locked", "--profile", "dist", "-p", "memtape-recorder"]);
    build.args(["--lib", "--crate-type", "cdylib"]);
    build
}

fn switch() -> Command {
    let mut compiler = command("gcc");
    compiler.args(["-std=gnu17", "-O2", "-fPIC", "-Wall", "-Wextra", "-Werror", "-shared", "-o"]);
    compiler.args([&format!("{FOLDER}/switch.so"), "tests/bench/switch.c"]);
    compiler
}

fn script(python: &Path, tapes: &Path, out: &Path, is_detail: bool) -> Command {
    let mut script = command(root().join("tests/fake_cuda/run"));
    script.env("LD_PRELOAD", root().join(FOLDER).join("switch.so"));
    script.args(["-b", "4G", "--"]).arg(python).arg("tests/bench/recorder.py");
    script.arg("--library").arg(built("dist").join("libmemtape.so"));
    script.arg("--tapes").arg(tapes).arg("--out").arg(out);
    if is_detail {
        script.arg("--detail");
    }
    script
}

// --- the tapes ----------------------------------------------------------------------------------

/// Checks that each mode recorded what it claims. Prints and removes a tracker mode that could not
/// be attached.
fn check_tapes(folder: &Path, rounds: &mut Rounds) -> Result<Tape, String> {
    for (mode, stacks) in [("tape", Stacks::Off), ("tape_stacks", Stacks::Python)] {
        let words = words_of(&folder.join(mode))?;
        if words.get(header::STACKS) != Some(&(stacks as u64)) {
            return Err(format!("{mode}: its stacks are not {stacks:?}"));
        }
        recorded(mode, &words)?;
    }
    let detail = words_of(&folder.join("tape_detail"))?;
    recorded("tape_detail", &detail)?;
    if detail.get(header::TRACKER) != Some(&(Tracker::Attached as u64)) {
        say("tape_detail: the tracker could not be attached; there is no figure for it\n");
        rounds.remove("tape_detail");
    }
    let path = only_tape(&folder.join("tape_stacks"))?;
    let words = words_of(&folder.join("tape_stacks"))?;
    let events_held = *words.get(header::DESCRIPTORS + descriptor::RING_SLOTS).ok_or("no lane")?;
    let bytes = fs::metadata(path).map_err(|error| error.to_string()).map(|metadata| {
        use std::os::unix::fs::MetadataExt;
        metadata.blocks() * 512
    })?;
    Ok(Tape { events_held, bytes })
}

/// The ring went round, and nothing was lost.
fn recorded(mode: &str, words: &[u64]) -> Result<(), String> {
    let word = |at: usize| words.get(at).copied().unwrap_or(0);
    let lane = word(header::DESCRIPTORS + descriptor::HEAD) as usize;
    let (written, slots) =
        (word(lane + head::DONE), word(header::DESCRIPTORS + descriptor::RING_SLOTS));
    let is_hooked = word(header::HOOKS) & hooks::REPORT != 0;
    if !is_hooked || written <= slots || word(header::LOST_DEVICE_EVENTS) != 0 {
        return Err(format!("{mode}: {written} events, {slots} slots: it did not record"));
    }
    Ok(())
}

fn words_of(folder: &Path) -> Result<Vec<u64>, String> {
    let bytes = fs::read(only_tape(folder)?).map_err(|error| error.to_string())?;
    Ok(bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes)).collect())
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

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match (values.get(middle), values.len() % 2) {
        (Some(upper), 0) => upper.midpoint(values[middle - 1]),
        (Some(only), _) => *only,
        (None, _) => f64::NAN,
    }
}

/// Cost of the default recorder as a part of PyTorch's `stacks="python"`.
fn ratio(rounds: &Rounds, depth: &str) -> Option<f64> {
    let of = |name: &str| added(rounds, name, depth).map(|cell| cell.ns);
    Some(of("tape_stacks")? / of("torch_python")?)
}

fn figures(rounds: &Rounds, tape: Tape) -> Value {
    let mut figures = serde_json::Map::new();
    figures.insert("off_ns".into(), json!(tenth(off(rounds, "6").ns)));
    figures.insert("off_spread_ns".into(), json!(tenth(off(rounds, "6").spread_ns)));
    for mode in &MODES {
        for depth in DEPTHS {
            if let Some(cell) = added(rounds, mode.name, depth) {
                let name = format!("{}_{depth}", mode.name);
                figures.insert(format!("{name}_ns"), json!(tenth(cell.ns)));
                figures.insert(format!("{name}_spread_ns"), json!(tenth(cell.spread_ns)));
            }
        }
    }
    for depth in DEPTHS {
        if let Some(ratio) = ratio(rounds, depth) {
            figures.insert(format!("ratio_{depth}"), json!((ratio * 1e4).round() / 1e4));
        }
    }
    figures.insert("rounds".into(), json!(number_of_rounds(rounds)));
    figures.insert("events_held".into(), json!(tape.events_held));
    figures.insert("tape_bytes".into(), json!(tape.bytes));
    figures.insert("bytes_per_event".into(), json!(tenth(bytes_per_event(tape))));
    Value::Object(figures)
}

fn text(rounds: &Rounds, tape: Tape) -> String {
    let cells = |[six, deep]: [Option<Cell>; 2]| {
        let show = |cell: Option<Cell>| {
            cell.map_or(format!("{:>18}", "-"), |cell| {
                format!("{:>10.0} ± {:<5.0}", cell.ns, cell.spread_ns)
            })
        };
        format!("{}{}", show(six), show(deep))
    };
    let mut text = format!("{:32}{:>15}{:>18}\n", "nanoseconds of a pair", "6 frames", "28 frames");
    text += &format!("{:32}{}\n", "off", cells(DEPTHS.map(|depth| Some(off(rounds, depth)))));
    for mode in &MODES {
        let found = DEPTHS.map(|depth| added(rounds, mode.name, depth));
        text += &format!("{:32}{}\n", format!("+ {}", mode.says), cells(found));
    }
    let parts: Vec<_> = DEPTHS
        .iter()
        .filter_map(|depth| Some((depth, ratio(rounds, depth)?)))
        .map(|(depth, ratio)| {
            let word = if ratio <= GOAL { "met" } else { "not met" };
            format!("1/{:.1} at {depth} frames ({word})", 1.0 / ratio)
        })
        .collect();
    text += &format!("default beside PyTorch's python stacks, goal 1/10: {}\n", parts.join(", "));
    text += &format!(
        "a default tape holds {} events in {:.1} MiB, {:.1} bytes an event; {} rounds\n",
        tape.events_held,
        tape.bytes as f64 / f64::from(1 << 20),
        bytes_per_event(tape),
        number_of_rounds(rounds),
    );
    text
}

fn number_of_rounds(rounds: &Rounds) -> usize {
    rounds.get("tape_stacks").and_then(|cells| cells.get("6")).map_or(0, Vec::len)
}

/// With everything that a tape of one device needs besides.
fn bytes_per_event(tape: Tape) -> f64 {
    tape.bytes as f64 / tape.events_held.max(1) as f64
}

fn tenth(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
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

    #[test]
    fn medians() {
        for (values, expected) in
            [(vec![3.0], 3.0), (vec![1.0, 9.0], 5.0), (vec![9.0, 1.0, 2.0], 2.0)]
        {
            assert_eq!(median(values), expected);
        }
        assert!(median(Vec::new()).is_nan());
    }
}
