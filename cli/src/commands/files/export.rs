//! `memtape export`: writes the state or the past of ranks for other tools, from a capture or a
//! file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use memtape_core::diagnosis::files::History;
use memtape_core::limits::{REPORT_SNAPSHOTS_MAX, TRACE_EVENTS_MAX};
use memtape_core::pickle::torch::{Annotation, Setting};
use memtape_core::pickle::{annotated_snapshot, torch_snapshot};
use memtape_core::snapshot::RankSnapshot;
use memtape_core::stacks::{AllocationSteps, ComparedStacks, LiveStacks, not_a_peer};
use memtape_core::tape::layout::Sizes;
use memtape_core::tape::rewind::PointInTime;
use serde_json::json;

use crate::args::Mistakes;
use crate::export::{Format, flamegraph};
use crate::globals::Globals;
use crate::output;
use crate::read::captures::{StoredRank, named, several};
use crate::read::content::{Content, Format as Kind, Wanted};
use crate::read::source::{ENDINGS, PICKLES, Source};
use crate::read::{one_rank, tape_file};
use crate::render::rank_state;
use crate::render::units::plural;

/// What the bytes of a rank are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Against {
    /// The median of the ranks that do the same work.
    Peers,
    /// The earlier step of the capture.
    Before,
}

/// `memtape export`.
#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    /// A capture (cap-…), an incident (inc-…) whose capture to export, or a file: a tape, the rank
    /// of a capture as the page downloads it, or PyTorch's memory snapshot.
    #[arg(value_name = "ID|FILE")]
    pub(crate) id: PathBuf,
    /// The rank, of a capture or a folder [default: the rank of the incident].
    #[arg(long)]
    pub(crate) rank: Option<u32>,
    /// Export the tape's state at the end of this step [default: now; of a process that has exited,
    /// its last finished step].
    #[arg(long)]
    pub(crate) step: Option<u64>,
    /// Export the tape's state at the last out-of-memory error.
    #[arg(long, conflicts_with = "step")]
    pub(crate) oom: bool,
    /// Show the growth since this step: of a tape, or of a PyTorch file, whose steps are counted
    /// from the start of its trace. For flamegraph.
    #[arg(long, value_name = "STEP", conflicts_with = "against")]
    pub(crate) since_step: Option<u64>,
    /// Show what the rank of a capture holds more or less than this. For flamegraph.
    #[arg(long, value_enum)]
    pub(crate) against: Option<Against>,
    /// Format of the file.
    #[arg(long, value_enum, default_value_t = Format::Pickle)]
    pub(crate) format: Format,
    /// File to write, - for stdout [default: named after capture and rank, or after the file].
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// What is exported, and how it is named.
struct Export {
    content: Vec<u8>,
    /// Name of the file without its ending.
    name: String,
    /// What it shows, in words.
    what: String,
    /// The same for `--json`.
    facts: serde_json::Value,
}

/// Fetches, converts and writes.
/// Fails when there is no such state, or the file cannot be written.
pub(crate) fn run(args: &ExportArgs, globals: &Globals) -> anyhow::Result<()> {
    let compares = args.since_step.is_some() || args.against.is_some();
    if compares && args.format != Format::Flamegraph {
        let line = "--since-step and --against are for --format flamegraph";
        return Err(Mistakes::one(line).into());
    }
    let Export { content, name, what, mut facts } = one(args, globals)?;
    let (extension, viewer) = args.format.file();
    let path = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.{extension}")));
    output::write(&path, &content)?;
    if path == Path::new("-") {
        return Ok(());
    }
    (facts["file"], facts["bytes"]) = (json!(path), json!(content.len()));
    let viewer = viewer.map_or(String::new(), |of| format!("; open it in {of}"));
    globals.say(&facts, || format!("{}: {what}{viewer}", path.display()))
}

/// The state of one rank.
fn one(args: &ExportArgs, globals: &Globals) -> anyhow::Result<Export> {
    let (step, oom) = (args.step, args.oom);
    let wanted = Wanted { step, oom, events_max: TRACE_EVENTS_MAX, before: false };
    let (source, opened) = one_rank::open_at(&args.id, args.rank, wanted, globals)?;
    // The annotations and the settings of a file are not in the state.
    let beside = match &opened.content {
        Content::Torch(torch) => (torch.annotations.clone(), torch.settings.clone()),
        Content::Rank(_) => Beside::default(),
    };
    let (mut moment, lost_blocks, kind) = (opened.moment, opened.lost_blocks, opened.format);
    let mut state = opened.into_rank(&source);
    if let Some(line) = warning(&state, lost_blocks).filter(|_| kind != Kind::Pickle) {
        eprintln!("memtape: {line}");
    }
    let content = match (&source, kind) {
        (Source::Stored(of), _) => from_capture(of, &state, args, globals)?,
        (Source::File(path), Kind::Tape) => from_tape(path, &mut moment, &mut state, args)?,
        (Source::File(path), Kind::Pickle) => from_pytorch(&beside, &state, path, args)?,
        (Source::File(_), _) => encode(&Subject::alone(&state, moment, args), args)?,
    };
    let rank = state.identity.rank;
    let blocks: usize = state.devices.iter().map(|device| device.blocks.len()).sum();
    let when = rank_state::when(moment, &state);
    Ok(Export {
        content,
        name: name_of(&source, rank),
        what: format!("rank {rank} {when}, {}", plural(blocks as u64, "live block")),
        facts: json!({ "moment": when, "rank": rank, "step": state.step, "blocks": blocks }),
    })
}

/// One rank with what it is compared with.
struct Subject<'a> {
    state: &'a RankSnapshot,
    peers: BTreeMap<u32, RankSnapshot>,
    title: String,
}

impl<'a> Subject<'a> {
    fn alone(state: &'a RankSnapshot, moment: Option<PointInTime>, args: &ExportArgs) -> Self {
        let (rank, job) = (state.identity.rank, &state.identity.job);
        let job = if job.is_empty() { String::new() } else { format!(" of {job}") };
        let when = rank_state::when(moment, state);
        let title = format!("rank {rank}{job} {when}{}", compared(args, state.before_step));
        Self { state, peers: BTreeMap::new(), title }
    }
}

/// A rank in one of the formats that show a state.
fn encode(of: &Subject<'_>, args: &ExportArgs) -> anyhow::Result<Vec<u8>> {
    let state = of.state;
    match args.format {
        Format::Pickle => Ok(torch_snapshot(state)),
        Format::Json => Ok(serde_json::to_vec(&whole(state))?),
        Format::Flamegraph => Ok(flamegraph::document(&compared_stacks(of, args)?, &of.title)),
    }
}

/// The stacks of a rank, with those of its peers or of its earlier step where they are asked for.
fn compared_stacks(of: &Subject<'_>, args: &ExportArgs) -> anyhow::Result<ComparedStacks> {
    let (state, rank) = (of.state, of.state.identity.rank);
    let live = |of| LiveStacks::of_snapshot(of, AllocationSteps::ALL);
    let mut compared = ComparedStacks::of(&live(state), u64::MAX);
    match args.against.or(args.since_step.map(|_| Against::Before)) {
        Some(Against::Peers) => {
            let role = &state.identity.role;
            let peers = of.peers.iter().filter(|(other, of)| {
                **other != rank && not_a_peer(role, state.step, of).is_none()
            });
            peers.for_each(|(_, of)| compared.add_other(&live(of)));
            if compared.others() == 0 {
                bail!("there is no peer of rank {rank} to compare with");
            }
        }
        Some(Against::Before) => compared.add_other(&LiveStacks::before(state).context(
            "the capture has no earlier step to compare with: the tape did not cover one",
        )?),
        None => {}
    }
    Ok(compared)
}

/// The state as JSON. Stacks are indexes into `stacks`, whose entries are indexes into `frames`;
/// entry 0 of both is the unknown.
fn whole(state: &RankSnapshot) -> serde_json::Value {
    let identity = &state.identity;
    json!({
        "tape_id": identity.tape_id, "job": identity.job, "attempt": identity.attempt,
        "rank": identity.rank, "world_size": identity.world_size,
        "local_rank": identity.local_rank, "command": identity.command, "step": state.step,
        "wall_ns": state.wall_ns, "before_step": state.before_step, "frames": state.frames,
        "stacks": state.stacks, "devices": state.devices,
    })
}

/// What follows the name of a rank in a title.
fn compared(args: &ExportArgs, before_step: u64) -> String {
    match (args.since_step, args.against) {
        (Some(step), _) => format!(", growth since step {step}"),
        (None, Some(Against::Before)) => format!(", growth since step {before_step}"),
        (None, Some(Against::Peers)) => ", against the median of its peers".to_string(),
        (None, None) => String::new(),
    }
}

/// A tape is rewound again for what the state alone does not hold: an earlier step.
fn from_tape(
    path: &Path,
    moment: &mut Option<PointInTime>,
    state: &mut RankSnapshot,
    args: &ExportArgs,
) -> anyhow::Result<Vec<u8>> {
    if args.against.is_some() {
        bail!("--against needs a capture; of a tape, --since-step shows the growth");
    }
    if args.since_step.is_none() {
        return encode(&Subject::alone(state, *moment, args), args);
    }
    let (tape, _) = tape_file::open(path)?;
    let at = tape_file::point_in_time(&tape.status(), args.step, args.oom);
    *moment = Some(at);
    *state = tape
        .snapshot(at, args.since_step, TRACE_EVENTS_MAX)
        .with_context(|| format!("cannot rewind {}", path.display()))?;
    if let Some(step) = args.since_step.filter(|_| state.before_step == 0) {
        let oldest = tape.oldest_step();
        bail!("no growth since step {step}: the tape covers steps {oldest} to {}", state.step);
    }
    encode(&Subject::alone(state, *moment, args), args)
}

fn from_capture(
    of: &StoredRank,
    state: &RankSnapshot,
    args: &ExportArgs,
    globals: &Globals,
) -> anyhow::Result<Vec<u8>> {
    if args.since_step.is_some() {
        bail!(
            "--since-step needs a tape or a file of PyTorch; of a capture, give --against before"
        );
    }
    let moment = Some(PointInTime::EndOf(state.step));
    let mut subject = Subject::alone(state, moment, args);
    if args.against != Some(Against::Peers) {
        return encode(&subject, args);
    }
    let client = globals.client()?;
    let (_, capture) = named(&client, &of.capture)?;
    let capture = capture.with_context(|| format!("there is no {}", of.capture))?;
    subject.peers = several(&client, &capture, Some(of.rank), REPORT_SNAPSHOTS_MAX);
    subject.peers.insert(of.rank, state.clone());
    encode(&subject, args)
}

/// What a file has beside the state of its rank: annotations, and settings of the allocator.
type Beside = (Vec<Annotation>, Vec<(String, Setting)>);

/// PyTorch's own file, whose trace has no numbers of steps.
fn from_pytorch(
    (annotations, settings): &Beside,
    state: &RankSnapshot,
    path: &Path,
    args: &ExportArgs,
) -> anyhow::Result<Vec<u8>> {
    let title = format!("{}{}", file_name(path), compared(args, 0));
    if args.against.is_some() {
        bail!("--against needs a capture; of a file, --since-step shows the growth");
    }
    match (args.format, args.since_step) {
        (Format::Pickle, _) => Ok(annotated_snapshot(state, annotations, settings)),
        (Format::Flamegraph, Some(step)) => {
            let history = History::of(state.clone());
            let earlier = LiveStacks::after(&history, step)
                .with_context(|| format!("the trace of {} has no step {step}", path.display()))?;
            let mut compared = ComparedStacks::of(&LiveStacks::of_history(&history), u64::MAX);
            compared.add_other(&earlier);
            Ok(flamegraph::document(&compared, &title))
        }
        _ => encode(&Subject { title, ..Subject::alone(state, None, args) }, args),
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or("snapshot".into(), |name| name.to_string_lossy().into_owned())
}

/// A warning if the snapshot is incomplete: other tools show it as if it were whole. A capture does
/// not hold the number of missing blocks.
fn warning(snapshot: &RankSnapshot, lost_blocks: Option<u64>) -> Option<String> {
    let advice = format!(
        "run the job again with a larger tape, such as MEMTAPE_BLOCKS={}",
        2 * Sizes::default().table_entries
    );
    match lost_blocks {
        Some(0) => None,
        Some(lost) => Some(format!(
            "{} found no room on the tape and may be missing: {advice}",
            plural(lost, "block")
        )),
        None if snapshot.devices.iter().all(|device| device.complete) => None,
        None => {
            Some(format!("blocks or segments may be missing because the tape was full: {advice}"))
        }
    }
}

/// A name for the file: after capture and rank, or after the file that was read.
fn name_of(source: &Source, rank: u32) -> String {
    match source {
        Source::Stored(of) => format!("{}-rank{}", of.capture, of.rank),
        Source::File(path) if path == Path::new("-") => format!("rank{rank}"),
        Source::File(path) => {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let stem = ENDINGS.iter().find_map(|ending| name.strip_suffix(ending));
            match stem.unwrap_or(&name) {
                stem if PICKLES.iter().any(|ending| name.ends_with(ending)) => {
                    format!("{stem}-exported")
                }
                stem => stem.to_string(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use memtape_core::snapshot::DeviceSnapshot;

    use super::*;

    #[test]
    fn an_incomplete_file_is_reported_with_advice() {
        let check = |complete: bool, lost_blocks: Option<u64>, expected: Option<&str>| {
            let device = DeviceSnapshot { complete, ..DeviceSnapshot::default() };
            let snapshot = RankSnapshot { devices: vec![device], ..RankSnapshot::default() };
            let line = warning(&snapshot, lost_blocks);
            let is_right = match (&line, expected) {
                (Some(line), Some(words)) => {
                    line.starts_with(words) && line.ends_with("MEMTAPE_BLOCKS=524288")
                }
                (line, expected) => line.is_none() && expected.is_none(),
            };
            assert!(is_right, "{complete}, {lost_blocks:?}: {line:?}");
        };
        check(true, Some(0), None);
        check(true, None, None);
        check(false, Some(1), Some("1 block found no room"));
        check(false, Some(70), Some("70 blocks found no room"));
        check(false, None, Some("blocks or segments may be missing"));
    }
}
