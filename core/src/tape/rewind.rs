//! The state of a rank at the end of a step it has long finished, or now, from outside.
//!
//! The live table is the present; the events say how it came to be. To have the state at an
//! earlier cursor `c`: read `DONE`, copy the table, read `RESERVED`, take the events from `c` on,
//! and undo them, newest first. Undoing an allocation takes the address out, undoing a free puts
//! back what the event carries; both may be done to a table that has not seen the event yet, or
//! only half of it, with the same result. That is why the writer's order (`lane.rs`) is enough:
//! any address the copy may have caught in the middle of a change has an event at or after
//! `DONE`, and the event decides. All other addresses are as the table says.
//!
//! The last event of a writer that died may be published but not in the table (it is redone), or
//! reserved but not published (then the table was never touched for it).

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use super::atoms::Atoms;
use super::event::{Event, Kind};
use super::lane::{BIRTH_UNKNOWN, EMPTY, REMOVED};
use super::layout::{CURSOR_MAX, ENTRY_WORDS, HOST_LANE, LaneLayout, head};
use super::reader::{Tape, believable};
use super::source::Source;
use super::steps::StepRecord;
use crate::snapshot::{
    Block, DeviceSnapshot, Frame, RankSnapshot, Segment, StackUse, TraceEvent, TraceKind,
};

/// Which moment of a rank's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The end of this step, counted from 1.
    EndOf(u64),
    /// The newest state there is; for a dead process its last.
    Present,
}

/// Why a state cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RewindError {
    /// The events back to that step are overwritten.
    #[error("step {step} is no longer on the tape: the oldest it covers is {oldest}")]
    NotCovered {
        /// The step asked for.
        step: u64,
        /// The oldest one that can be had; 0 when there is none.
        oldest: u64,
    },
    /// The rank has not finished that step.
    #[error("step {step} is not finished: the rank has finished {reached}")]
    NotReached {
        /// The step asked for.
        step: u64,
        /// The last finished one.
        reached: u64,
    },
    /// Events in the middle are missing or torn, again and again.
    #[error("the tape is damaged: an event between the step and the present is not whole")]
    Damaged,
}

/// A live block, by address.
type Live = BTreeMap<u64, Held>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    size: u64,
    stack: u32,
    birth_step: u32,
    birth_ns: u64,
}

/// What one lane held at a moment.
struct LaneState {
    live: Live,
    /// Live memory per stack atom at the earlier moment.
    before: Option<BTreeMap<u32, (u64, u64)>>,
    trace: Vec<Event>,
    allocated: u64,
    reserved: u64,
}

/// A place in a lane's history, with the totals there.
#[derive(Clone, Copy)]
struct Cut {
    /// Events before it; `None` is the newest published event.
    cursor: Option<u64>,
    totals: Option<(u64, u64)>,
}

impl<S: Source> Tape<S> {
    /// The state of the rank at a moment, with the memory of each stack at the end of an earlier
    /// step where the tape still covers it (`before_step` of the result says whether), and the
    /// last events up to the moment, at most `trace_events_max` a device.
    ///
    /// # Errors
    /// A [`RewindError`] when the moment cannot be had exactly; never a guess.
    pub fn snapshot(
        &self,
        moment: Moment,
        before: Option<u64>,
        trace_events_max: usize,
    ) -> Result<RankSnapshot, RewindError> {
        let status = self.status();
        let (step, mono_ns) = match moment {
            Moment::Present => (status.step, None),
            Moment::EndOf(step) if step > status.step => {
                return Err(RewindError::NotReached { step, reached: status.step });
            }
            Moment::EndOf(step) => (step, self.step_end(step)),
        };
        let mut before = before.filter(|&early| early > 0 && early < step);
        let mut states = Vec::new();
        for index in (0..=HOST_LANE).filter(|&index| self.lane(index).is_some()) {
            let Some(lane) = self.lane(index) else { continue };
            let cut = self.cut_at(&lane, moment)?;
            // The host lane's earlier state is of no use to the diagnosis.
            let early = before.filter(|_| index != HOST_LANE).and_then(|early| {
                self.cut_at(&lane, Moment::EndOf(early)).ok().and_then(|cut| cut.cursor)
            });
            let state =
                self.lane_state(&lane, cut, early, trace_events_max).map_err(|error| {
                    match (error, moment) {
                        (RewindError::NotCovered { oldest, .. }, Moment::EndOf(step)) => {
                            RewindError::NotCovered { step, oldest }
                        }
                        (other, _) => other,
                    }
                })?;
            if index != HOST_LANE && state.before.is_none() {
                before = None;
            }
            states.push((index, state));
        }
        let wall_ns = self.wall_ns(mono_ns.unwrap_or(status.step_mono_ns));
        Ok(self.assemble(step, wall_ns, before, states))
    }

    /// When a step ended, from any lane that knows.
    fn step_end(&self, step: u64) -> Option<u64> {
        let of = |index| {
            let lane = self.lane(index)?;
            let ends = |r: &StepRecord| r.last_step >= step;
            self.step_records(&lane).into_iter().find(ends).map(|record| record.end_mono_ns)
        };
        (0..=HOST_LANE).find_map(of)
    }

    /// Where a moment lies in a lane.
    fn cut_at(&self, lane: &LaneLayout, moment: Moment) -> Result<Cut, RewindError> {
        let Moment::EndOf(step) = moment else {
            return Ok(Cut { cursor: None, totals: None });
        };
        if step <= self.word(lane.head + head::BIRTH_STEP) {
            return Ok(Cut { cursor: Some(0), totals: Some((0, 0)) });
        }
        // A lane that closes the step at this moment shows it neither as written nor as pending.
        const TRIES_MAX: usize = 16;
        for _ in 0..TRIES_MAX {
            let records = self.step_records(lane);
            if let Some(r) = records.iter().find(|r| r.first_step <= step && step <= r.last_step) {
                let totals = Some((r.end_allocated, r.end_reserved));
                return Ok(Cut { cursor: Some(r.cursor), totals });
            }
            if records.first().is_some_and(|oldest| step < oldest.first_step) {
                break;
            }
        }
        let oldest = self.oldest_step();
        Err(RewindError::NotCovered { step, oldest })
    }

    fn lane_state(
        &self,
        lane: &LaneLayout,
        cut: Cut,
        early: Option<u64>,
        trace_events_max: usize,
    ) -> Result<LaneState, RewindError> {
        const TRIES_MAX: usize = 8;
        let mut last = RewindError::Damaged;
        for _ in 0..TRIES_MAX {
            match self.try_lane_state(lane, cut, early, trace_events_max) {
                Err(RewindError::Damaged) => last = RewindError::Damaged,
                other => return other,
            }
        }
        Err(last)
    }

    fn try_lane_state(
        &self,
        lane: &LaneLayout,
        cut: Cut,
        early: Option<u64>,
        trace_events_max: usize,
    ) -> Result<LaneState, RewindError> {
        let [_, done] = self.words::<2>(lane.head).ok_or(RewindError::Damaged)?;
        let mut live = self.copy_table(lane).ok_or(RewindError::Damaged)?;
        let head_words = self.words::<{ head::WORDS }>(lane.head).ok_or(RewindError::Damaged)?;
        let reserved = head_words[head::RESERVED];
        if reserved > CURSOR_MAX || done > reserved {
            return Err(RewindError::Damaged);
        }
        let oldest_held = reserved.saturating_sub(lane.ring_slots as u64);
        let not_covered = RewindError::NotCovered { step: 0, oldest: self.oldest_step() };

        // A cut beyond what is done needs the events up to it; the present takes all published.
        let first = cut.cursor.unwrap_or(done).min(done);
        if first < oldest_held {
            return Err(not_covered);
        }
        let early = early.filter(|&early| early >= oldest_held && early <= first);
        let from = early.unwrap_or(first);
        let mut events = self.events(lane, from, reserved);
        if events.last().is_some_and(Option::is_none) {
            events.pop(); // reserved but not published: the table knows nothing of it
        }
        let events: Option<Vec<Event>> = events.into_iter().collect();
        let Some(events) = events else {
            let held = self.word(lane.head + head::RESERVED).saturating_sub(lane.ring_slots as u64);
            return Err(if from < held { not_covered } else { RewindError::Damaged });
        };
        let position = |cursor: u64| (cursor.saturating_sub(from) as usize).min(events.len());
        let at = cut.cursor.map_or(events.len(), position);

        for event in events.get(position(first)..).unwrap_or_default().iter().rev() {
            undo(&mut live, event);
        }
        for event in events.get(position(first)..at).unwrap_or_default() {
            redo(&mut live, event);
        }
        let before = early.map(|_| {
            let mut past = live.clone();
            for event in events.get(..at).unwrap_or_default().iter().rev() {
                undo(&mut past, event);
            }
            sums(&past)
        });
        let end = from + at as u64;
        let trace_first = end.saturating_sub(trace_events_max as u64).max(oldest_held);
        let trace = self.events(lane, trace_first, end).into_iter().flatten().collect();
        let (allocated, reserved) =
            cut.totals.unwrap_or((head_words[head::ALLOCATED], head_words[head::RESERVED_BYTES]));
        let (allocated, reserved) = (believable(allocated), believable(reserved));
        Ok(LaneState { live, before, trace, allocated, reserved })
    }

    fn copy_table(&self, lane: &LaneLayout) -> Option<Live> {
        let mut words = vec![0; lane.table_entries * ENTRY_WORDS];
        if !self.source.read(lane.table, &mut words) {
            return None;
        }
        let entries = words.as_chunks::<ENTRY_WORDS>().0.iter();
        let live = entries.filter(|[address, ..]| *address != EMPTY && *address != REMOVED);
        Some(
            live.map(|&[address, size, packed, birth_ns]| {
                let stack = packed as u32;
                (address, Held { size, stack, birth_step: (packed >> 32) as u32, birth_ns })
            })
            .collect(),
        )
    }

    fn assemble(
        &self,
        step: u64,
        wall_ns: i64,
        before: Option<u64>,
        mut states: Vec<(usize, LaneState)>,
    ) -> RankSnapshot {
        let mut stacks = StackIndex::new(self.atoms());
        let host = states.pop_if(|(index, _)| *index == HOST_LANE).map(|(_, state)| state);
        let uuids: BTreeMap<u8, _> = self.device_uuids().into_iter().collect();
        let totals = self.totals();
        let devices = states.into_iter().map(|(index, state)| {
            let device = index as u8;
            let lost = self.lane(index).map_or(0, |lane| self.word(lane.head + head::LOST_BLOCKS));
            DeviceSnapshot {
                device,
                uuid: uuids.get(&device).cloned().unwrap_or_default(),
                allocated: state.allocated,
                reserved: state.reserved,
                device_bytes: totals
                    .iter()
                    .find(|total| total.device == device)
                    .map_or(0, |total| total.device_bytes),
                blocks: blocks(&state.live, &mut stacks),
                segments: host.as_ref().map(|host| segments(host, device)).unwrap_or_default(),
                before: uses(state.before.unwrap_or_default(), &mut stacks),
                trace: trace(&state.trace, host.as_ref(), device, &mut stacks),
                complete: lost == 0,
            }
        });
        RankSnapshot {
            identity: self.identity().clone(),
            step,
            wall_ns,
            devices: devices.collect(),
            before_step: before.unwrap_or(0),
            frames: stacks.frames,
            stacks: stacks.stacks,
        }
    }
}

fn held(event: &Event) -> Held {
    Held {
        size: event.size,
        stack: event.stack,
        birth_step: event.birth_step,
        birth_ns: event.birth_ns,
    }
}

fn undo(live: &mut Live, event: &Event) {
    match event.kind {
        Kind::Alloc => drop(live.remove(&event.address)),
        Kind::Free => drop(live.insert(event.address, held(event))),
        Kind::Oom | Kind::MallocFailed => {}
    }
}

fn redo(live: &mut Live, event: &Event) {
    match event.kind {
        Kind::Alloc => drop(live.insert(event.address, held(event))),
        Kind::Free => drop(live.remove(&event.address)),
        Kind::Oom | Kind::MallocFailed => {}
    }
}

fn sums(live: &Live) -> BTreeMap<u32, (u64, u64)> {
    let mut sums = BTreeMap::new();
    for block in live.values() {
        let (bytes, blocks): &mut (u64, u64) = sums.entry(block.stack).or_default();
        *bytes = bytes.saturating_add(block.size);
        *blocks += 1;
    }
    sums
}

fn blocks(live: &Live, stacks: &mut StackIndex) -> Vec<Block> {
    live.iter()
        .map(|(&address, block)| Block {
            address,
            size: block.size,
            stack: stacks.of(block.stack),
            birth_step: match block.birth_step {
                BIRTH_UNKNOWN => 0,
                step => u64::from(step),
            },
            birth_ns: block.birth_ns,
        })
        .collect()
}

fn uses(sums: BTreeMap<u32, (u64, u64)>, stacks: &mut StackIndex) -> Vec<StackUse> {
    let mut uses: Vec<StackUse> = sums
        .into_iter()
        .map(|(atom, (bytes, blocks))| StackUse { stack: stacks.of(atom), bytes, blocks })
        .collect();
    uses.sort_by_key(|each| each.stack);
    uses
}

/// Segments of the host lane carry their device in the upper byte of the size.
fn segments(host: &LaneState, device: u8) -> Vec<Segment> {
    host.live
        .iter()
        .filter(|(_, held)| segment_device(held.size) == device)
        .map(|(&address, held)| Segment { address, size: segment_size(held.size) })
        .collect()
}

/// A segment's size word in the host lane: the size with its device in the upper byte.
pub const fn segment_word(size: u64, device: u8) -> u64 {
    (size & SEGMENT_SIZE_MASK) | (device as u64) << 56
}

const SEGMENT_SIZE_MASK: u64 = (1 << 56) - 1;

const fn segment_size(word: u64) -> u64 {
    word & SEGMENT_SIZE_MASK
}

const fn segment_device(word: u64) -> u8 {
    (word >> 56) as u8
}

/// Events of the device's lane and of its segments, in the order of their times.
fn trace(
    events: &[Event],
    host: Option<&LaneState>,
    device: u8,
    stacks: &mut StackIndex,
) -> Vec<TraceEvent> {
    let since = events.first().map_or(u64::MAX, |event| event.mono_ns);
    let mut line = |event: &Event, kind: TraceKind, size: u64| TraceEvent {
        kind,
        mono_ns: event.mono_ns,
        address: event.address,
        size,
        stack: stacks.of(event.stack),
        step: u64::from(event.step),
    };
    let mut trace: Vec<TraceEvent> = Vec::with_capacity(events.len());
    for event in events {
        let kind = match event.kind {
            Kind::Alloc => TraceKind::Alloc,
            Kind::Free => TraceKind::Free,
            Kind::Oom => TraceKind::Oom,
            Kind::MallocFailed => TraceKind::MallocFailed,
        };
        trace.push(line(event, kind, event.size));
    }
    let of_device = |event: &&Event| segment_device(event.size) == device && event.mono_ns >= since;
    for event in host.map(|host| host.trace.as_slice()).unwrap_or_default().iter().filter(of_device)
    {
        let kind = match event.kind {
            Kind::Alloc => TraceKind::SegmentAlloc,
            Kind::Free => TraceKind::SegmentFree,
            Kind::MallocFailed => TraceKind::MallocFailed,
            Kind::Oom => TraceKind::Oom,
        };
        trace.push(line(event, kind, segment_size(event.size)));
    }
    trace.sort_by_key(|event| event.mono_ns);
    trace
}

/// Turns atoms into the snapshot's own stacks and frames, each once.
struct StackIndex {
    atoms: Atoms,
    known_stacks: BTreeMap<u32, u32>,
    known_frames: BTreeMap<u32, u32>,
    stacks: Vec<Vec<u32>>,
    frames: Vec<Frame>,
}

impl StackIndex {
    fn new(atoms: Atoms) -> Self {
        Self {
            atoms,
            known_stacks: BTreeMap::new(),
            known_frames: BTreeMap::new(),
            stacks: vec![Vec::new()],
            frames: vec![Frame::default()],
        }
    }

    fn of(&mut self, atom: u32) -> u32 {
        if atom == 0 {
            return 0;
        }
        if let Some(&known) = self.known_stacks.get(&atom) {
            return known;
        }
        let Some(frames) = self.atoms.stack(atom) else { return 0 };
        let frames = frames.into_iter().map(|frame| self.frame(frame)).collect();
        let index = self.stacks.len() as u32;
        self.stacks.push(frames);
        self.known_stacks.insert(atom, index);
        index
    }

    fn frame(&mut self, atom: u32) -> u32 {
        if let Some(&known) = self.known_frames.get(&atom) {
            return known;
        }
        let Some((file, function, line)) = self.atoms.frame(atom) else { return 0 };
        let name = |id| self.atoms.string(id).unwrap_or_default();
        let frame = Frame { file: name(file), line, function: name(function) };
        let index = self.frames.len() as u32;
        self.frames.push(frame);
        self.known_frames.insert(atom, index);
        index
    }
}
