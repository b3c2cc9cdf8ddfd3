//! Contents of a tape: read once, shown as text or as JSON.

mod json;
mod text;

use std::collections::BTreeMap;
use std::path::Path;

use memtape_agent::Writer;
use memtape_core::snapshot::{DeviceSnapshot, RankSnapshot};
use memtape_core::tape::StepRecord;
use memtape_core::tape::layout::Clock;
use memtape_core::tape::read::{DeviceTotals, Status, Tape, TapeError};
use memtape_core::tape::rewind::{PointInTime, RewindError};
use memtape_proto::api::Frame;

use crate::read::content::Wanted;
use crate::read::tape_file::{self, FileSource};
use crate::render::units::frame;

/// Maximum events of a device that are searched for thrash: some twenty steps of a large job.
const THRASH_EVENTS: usize = 1 << 18;

/// Everything that is shown of a tape.
pub(crate) struct Summary {
    tape: Tape<FileSource>,
    writer: Writer,
    status: Status,
    totals: Vec<DeviceTotals>,
    /// Point in time of the live blocks shown.
    moment: PointInTime,
    /// State at that point in time, or why it is not available.
    state: Result<RankSnapshot, RewindError>,
    /// Reason for the command's failure, after the remaining output.
    failure: Option<RewindError>,
    last: usize,
}

/// Live memory of one stack on one device.
struct LiveStack {
    stack: u32,
    bytes: u64,
    blocks: u64,
    birth_steps: u64,
}

impl Summary {
    /// Reads a tape: the state that is wanted, and the last `events_max` steps, events, marks and
    /// stacks.
    /// Fails when the file is no tape.
    pub(crate) fn read(file: &Path, wanted: Wanted) -> anyhow::Result<Self> {
        let (tape, writer) = tape_file::open(file).map_err(|error| match error.downcast_ref() {
            Some(TapeError::NotATape) => {
                let name = file.display();
                anyhow::anyhow!(
                    "{name} is not a tape; `memtape show` reads files of other kinds, too"
                )
            }
            _ => error,
        })?;
        let status = tape.status();
        let moment = tape_file::point_in_time(&status, wanted.step, wanted.oom);
        let state = tape.snapshot(moment, None, wanted.events_max.max(THRASH_EVENTS));
        // A state that was overwritten is a failure only if it was asked for.
        let is_asked = wanted.oom || wanted.step.is_some();
        let is_failure = |why: &RewindError| is_asked || *why == RewindError::Damaged;
        Ok(Self {
            writer,
            status,
            totals: tape.totals(),
            moment,
            failure: state.as_ref().err().copied().filter(is_failure),
            state,
            last: wanted.events_max,
            tape,
        })
    }

    /// Unit of the tape's counter: steps or turns.
    pub(crate) fn clock(&self) -> Clock {
        self.status.clock
    }

    /// Reason for the command's failure, although other output can be shown.
    pub(crate) fn failure(&self) -> Option<RewindError> {
        self.failure
    }

    /// The point in time shown, in words that follow a noun.
    fn when(&self) -> String {
        match self.moment {
            PointInTime::EndOf(step) => format!("at the end of step {step}"),
            PointInTime::Present => self.newest().to_string(),
            PointInTime::LastOom => "when a request last failed".to_string(),
        }
    }

    /// Time of the newest state on the tape, in words.
    fn newest(&self) -> &'static str {
        match (self.writer, self.status.sealed) {
            (Writer::Alive(_), _) => "now",
            (_, true) => "when it exited",
            (Writer::Gone, false) => "when it died",
            (Writer::Unknown, false) => "when last seen",
        }
    }

    /// The last step up to the point in time shown.
    fn step(&self) -> u64 {
        match self.moment {
            PointInTime::EndOf(step) => step.min(self.status.step),
            PointInTime::Present => self.status.step,
            PointInTime::LastOom => {
                let oom = self.tape.last_oom();
                oom.map_or(self.status.step, |(_, event)| u64::from(event.step))
            }
        }
    }

    /// The state shown, and that of one device.
    fn device(&self, device: u8) -> Option<(&RankSnapshot, &DeviceSnapshot)> {
        let state = self.state.as_ref().ok()?;
        Some((state, state.devices.iter().find(|of| of.device == device)?))
    }

    /// The last step records of a device up to the time shown, oldest first, each with the change
    /// of its minimum since the record before it.
    fn last_steps(&self, device: u8) -> Vec<(StepRecord, Option<i64>)> {
        let mut records = self.tape.steps_after(device, 0).records;
        records.retain(|record| record.first_step <= self.step());
        let mut steps = with_changes(&records);
        steps.split_off(steps.len().saturating_sub(self.last))
    }
}

/// Each record with the change of its minimum since the one before it; the first has none.
fn with_changes(records: &[StepRecord]) -> Vec<(StepRecord, Option<i64>)> {
    let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let changes = records.windows(2).map(|pair| match pair {
        [before, after] => {
            Some(signed(after.floor_allocated).saturating_sub(signed(before.floor_allocated)))
        }
        _ => None,
    });
    records.iter().copied().zip(std::iter::once(None).chain(changes)).collect()
}

/// The stacks that hold most on a device, largest first. Blocks that are pending free count for no
/// stack: the program has freed them.
fn live_stacks(state: &DeviceSnapshot, count: usize) -> Vec<LiveStack> {
    let mut by_stack: BTreeMap<u32, (u64, u64, Vec<u64>)> = BTreeMap::new();
    for block in state.blocks.iter().filter(|block| !block.pending) {
        let (bytes, blocks, births) = by_stack.entry(block.stack).or_default();
        *bytes = bytes.saturating_add(block.size);
        *blocks += 1;
        births.push(block.birth_step);
    }
    let live = |(stack, (bytes, blocks, mut births)): (u32, (u64, u64, Vec<u64>))| {
        births.sort_unstable();
        births.dedup();
        LiveStack { stack, bytes, blocks, birth_steps: births.len() as u64 }
    };
    let mut stacks: Vec<LiveStack> = by_stack.into_iter().map(live).collect();
    stacks.sort_by_key(|live| std::cmp::Reverse(live.bytes));
    stacks.truncate(count);
    stacks
}

fn frames(snapshot: &RankSnapshot, stack: u32) -> Vec<String> {
    let line = |of: &memtape_core::snapshot::Frame| {
        frame(&Frame { file: of.file.clone(), line: of.line, function: of.function.clone() })
    };
    snapshot.frames_of(stack).map(line).collect()
}

#[cfg(test)]
mod tests {
    use memtape_core::snapshot::Block;

    use super::*;

    #[test]
    fn small_changes_of_large_minima_are_kept() {
        let record = |floor_allocated| StepRecord { floor_allocated, ..StepRecord::default() };
        let records = [record(61 << 30), record((61 << 30) + 5), record(61 << 30), record(7)];
        let changes: Vec<_> = with_changes(&records).into_iter().map(|(_, by)| by).collect();
        assert_eq!(changes, [None, Some(5), Some(-5), Some(7 - (61 << 30))]);
        assert_eq!(with_changes(&[]), []);
    }

    #[test]
    fn stacks_are_ranked_by_bytes() {
        let block = |address, size, stack, birth_step| Block {
            address,
            size,
            stack,
            birth_step,
            ..Block::default()
        };
        let state = DeviceSnapshot {
            blocks: vec![
                block(0, 100, 1, 5),
                block(100, 100, 1, 6),
                block(200, 100, 1, 6),
                block(300, 1000, 2, 1),
                block(2000, 1, 3, 1),
                Block { pending: true, ..block(3000, 5000, 3, 1) },
            ],
            ..DeviceSnapshot::default()
        };
        let found: Vec<(u32, u64, u64, u64)> = live_stacks(&state, 2)
            .iter()
            .map(|live| (live.stack, live.bytes, live.blocks, live.birth_steps))
            .collect();
        assert_eq!(found, [(2, 1000, 1, 1), (1, 300, 3, 2)]);
    }
}
