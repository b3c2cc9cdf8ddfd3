//! Goes through the events of one device once, and knows of each allocation when it ended.
//!
//! A trace is a ring: its beginning is lost, so blocks are freed in it that it did not see born.
//! Of those it knows the size and not the stack. Levels count from the state at the end, which is
//! known in full, so they are right in spite of that.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use crate::snapshot::{TraceEvent, TraceKind};

/// An allocation that is alive at the end of the trace; also of events that are none.
const NEVER: u32 = u32::MAX;

/// A block that was freed in the trace and is older than the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OlderFree {
    /// The event that freed it.
    pub(crate) event: u32,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

/// A trace, gone through.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    /// For each event its other end: of an allocation the event that freed the block, of a free
    /// the allocation; [`NEVER`] where there is none.
    other: Vec<u32>,
    /// Blocks older than the trace that it sees freed, in the order of the events.
    pub(crate) older: Vec<OlderFree>,
    /// Allocations at an address at which a block was alive, which cannot be: the event, and the
    /// allocation that it ended.
    replaced: Vec<(u32, u32)>,
    /// The allocation of each live block, by address.
    live: BTreeMap<u64, u32>,
}

/// The lowest and highest levels of each step of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Levels {
    /// Lowest allocated bytes in each step.
    pub(crate) floors: Vec<u64>,
    /// Highest allocated bytes in each step.
    pub(crate) peaks: Vec<u64>,
    /// Number of events before that moment of each step.
    pub(crate) peaks_at: Vec<usize>,
    /// Number of events before the highest moment of all.
    pub(crate) highest_at: usize,
}

impl Replay {
    /// Goes through the events, oldest first. A block counts until its free is requested.
    pub(crate) fn of(events: &[TraceEvent]) -> Self {
        let mut replay = Self { other: vec![NEVER; events.len()], ..Self::default() };
        for (event, number) in events.iter().zip(0_u32..) {
            match event.kind {
                TraceKind::Alloc => {
                    if let Some(born) = replay.live.insert(event.address, number) {
                        replay.replaced.push((number, born));
                        replay.set_other(born, number);
                    }
                }
                TraceKind::Free | TraceKind::FreeDeferred => {
                    if let Some(born) = replay.live.remove(&event.address) {
                        replay.set_other(born, number);
                        replay.set_other(number, born);
                    } else {
                        let (address, bytes) = (event.address, event.size);
                        replay.older.push(OlderFree { event: number, address, bytes });
                    }
                }
                _ => {}
            }
        }
        replay
    }

    fn set_other(&mut self, event: u32, other: u32) {
        if let Some(place) = self.other.get_mut(event as usize) {
            *place = other;
        }
    }

    /// Allocations at an address at which a block was alive, which cannot be.
    pub(crate) fn contradictions(&self) -> u64 {
        self.replaced.len() as u64
    }

    /// The event that allocated the block at this address which is alive at the end.
    pub(crate) fn birth(&self, address: u64) -> Option<u32> {
        self.live.get(&address).copied()
    }

    /// Bytes of the allocations that are alive at the end.
    pub(crate) fn live_bytes(&self, events: &[TraceEvent]) -> u64 {
        let allocations = events.iter().zip(&self.other);
        let live =
            allocations.filter(|&(event, &other)| event.kind == TraceKind::Alloc && other == NEVER);
        live.fold(0, |sum: u64, (event, _)| sum.saturating_add(event.size))
    }

    /// The event that freed the block of this allocation, if it is not alive at the end.
    pub(crate) fn freed_at(&self, allocation: u32) -> Option<u32> {
        self.other.get(allocation as usize).copied().filter(|&freed_at| freed_at != NEVER)
    }

    /// The event that allocated the block of this free, if the trace shows it.
    pub(crate) fn born_at(&self, free: u32) -> Option<u32> {
        self.freed_at(free)
    }

    /// Whether the allocation of this event is alive when `moment` events have happened.
    pub(crate) fn is_live(&self, allocation: u32, moment: usize) -> bool {
        let freed_at = self.other.get(allocation as usize).copied().unwrap_or(NEVER);
        (allocation as usize) < moment && freed_at as usize >= moment
    }

    /// Goes through what changes the level: the number of the event, and what came or went. A
    /// block older than the trace goes without a stack.
    pub(crate) fn changes(&self, events: &[TraceEvent], mut each: impl FnMut(usize, Change)) {
        let mut older = self.older.iter().peekable();
        let mut replaced = self.replaced.iter().peekable();
        let gone = |born: u32| {
            events.get(born as usize).map(|event| Change::Gone(event.stack, event.size))
        };
        for (index, event) in events.iter().enumerate() {
            if event.kind == TraceKind::Alloc {
                while let Some(&(_, born)) = replaced.next_if(|pair| pair.0 as usize <= index) {
                    gone(born).into_iter().for_each(|change| each(index, change));
                }
                each(index, Change::Came(event.stack, event.size));
                continue;
            }
            while let Some(free) = older.next_if(|free| free.event as usize <= index) {
                each(index, Change::OlderGone(free.bytes));
            }
            let born = self.other.get(index).copied().unwrap_or(NEVER);
            gone(born).into_iter().for_each(|change| each(index, change));
        }
    }

    /// Lowest and highest levels, with the first event of each step but the first, and the
    /// bytes of blocks that are older than the trace.
    pub(crate) fn levels(&self, events: &[TraceEvent], starts: &[u32], older: u64) -> Levels {
        let (mut floors, mut peaks, mut peaks_at) = (Vec::new(), Vec::new(), Vec::new());
        let mut highest = (older, 0);
        let (mut level, mut floor, mut peak) = (older, older, (older, 0));
        let mut end_step = |floor: u64, (peak, at): (u64, usize)| {
            floors.push(floor);
            peaks.push(peak);
            peaks_at.push(at);
        };
        let mut starts = starts.iter().peekable();
        self.changes(events, |index, change| {
            while starts.next_if(|&&start| start as usize <= index).is_some() {
                end_step(floor, peak);
                (floor, peak) = (level, (level, index));
            }
            level = match change {
                Change::Came(_, bytes) => level.saturating_add(bytes),
                Change::Gone(_, bytes) | Change::OlderGone(bytes) => level.saturating_sub(bytes),
            };
            floor = floor.min(level);
            if level > peak.0 {
                peak = (level, index + 1);
            }
            if level > highest.0 {
                highest = (level, index + 1);
            }
        });
        // Steps without any change have the level of the last one.
        for &start in starts {
            end_step(floor, peak);
            (floor, peak) = (level, (level, start as usize));
        }
        end_step(floor, peak);
        Levels { floors, peaks, peaks_at, highest_at: highest.1 }
    }
}

/// What changes the level of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// A block of this stack with these bytes was handed out.
    Came(u32, u64),
    /// A block of the trace was given back.
    Gone(u32, u64),
    /// A block that is older than the trace was given back.
    OlderGone(u64),
}
