//! Whether a tape says what happened, and all of it.
//!
//! What must be on it follows from the requests by the allocator's own rules: blocks are multiples
//! of 512 bytes, small ones come from segments of 2 MiB, large ones of 20 MiB, and a request that
//! cannot be met first gives back every segment that is free.

use memtape_core::snapshot::{DeviceSnapshot, SegmentSource, TraceEvent, TraceKind};
use memtape_core::tape::layout::Tracker;

use super::rig::{Request, Run};

/// Works, or why not.
pub(crate) type Finding = Result<(), String>;

/// What the runs with one release showed.
pub(crate) struct Findings {
    /// PyTorch's reports: blocks, totals, failed requests.
    pub(crate) hook_1: Finding,
    /// The trace tracker: requested sizes, streams, deferred frees, segments.
    pub(crate) hook_2: Finding,
    /// The tracker names pools.
    pub(crate) has_pools: bool,
    /// Python stacks of blocks and failed requests.
    pub(crate) stacks: Finding,
    /// The CUDA runtime: segments, without the tracker.
    pub(crate) segments: Finding,
    /// The release has a tracker.
    expects_tracker: bool,
}

/// First release with a trace tracker.
const MINOR_OF_TRACKER: u32 = 2;

/// What an unavailable hook's reason begins with.
const UNAVAILABLE: &str = "unavailable: ";

/// Bytes of tests/compat/cudart.c's device.
const DEVICE_BYTES: u64 = 1 << 30;

const SMALL_SEGMENT: u64 = 2 << 20;
const LARGE_SEGMENT: u64 = 20 << 20;
const SMALL_BLOCK_MAX: u64 = 1 << 20;

/// What a trace must hold: kind, address, size, detail, and the stream where it is known.
type Expected = (TraceKind, u64, u64, u64, Option<u64>);

impl Findings {
    pub(crate) fn of(minor: u32, plain: &Run, detailed: &Run) -> Self {
        let is_attached = detailed.tracker == Tracker::Attached as u64;
        Self {
            hook_1: hook_1(plain),
            hook_2: if is_attached { hook_2(detailed) } else { Err(why_unavailable(detailed)) },
            has_pools: is_attached
                && detailed.snapshot.stream_pools.iter().any(|place| place.pool.is_some()),
            stacks: stacks(plain),
            segments: segments(plain),
            expects_tracker: minor >= MINOR_OF_TRACKER,
        }
    }

    /// Everything is as it should be with this release.
    pub(crate) fn are_good(&self) -> bool {
        let hook_2 = match &self.hook_2 {
            Ok(()) => self.expects_tracker,
            Err(why) => !self.expects_tracker && why.starts_with(UNAVAILABLE),
        };
        hook_2 && self.hook_1.is_ok() && self.stacks.is_ok() && self.segments.is_ok()
    }
}

fn why_unavailable(run: &Run) -> String {
    let line = run.status.limitations.iter().find_map(|line| line.strip_prefix("no detail: "));
    match line {
        Some(why) => format!("{UNAVAILABLE}{why}"),
        None => "not attached, and the tape does not say why".to_string(),
    }
}

fn hook_1(run: &Run) -> Finding {
    let is_block = |kind| matches!(kind, TraceKind::Alloc | TraceKind::Free | TraceKind::Oom);
    let found: Vec<_> = events(run, is_block)?.map(|e| (e.kind, e.address, e.size)).collect();
    // Without the tracker a deferred free is a free, and the end of the deferral is no event.
    let expected = traced(&run.requests).into_iter().filter_map(|(kind, address, size, ..)| {
        let kind = if kind == TraceKind::FreeDeferred { TraceKind::Free } else { kind };
        is_block(kind).then_some((kind, address, size))
    });
    let expected: Vec<_> = expected.collect();
    same("events", &found, &expected)?;
    let device = device(run)?;
    let used = kept(run).map(|request| rounded(request.size)).sum();
    same("bytes handed out", &device.allocated, &used)?;
    same("bytes held", &device.reserved, &held_at_last_report(&run.requests))?;
    let blocks: Vec<_> = device.blocks.iter().map(|block| (block.address, block.size)).collect();
    same(
        "blocks that are left",
        &blocks,
        &kept(run).map(|r| (r.address, rounded(r.size))).collect(),
    )?;
    same("events lost", &run.status.lost, &0)?;
    same("stopped because of", &run.status.disabled, &None)
}

fn hook_2(run: &Run) -> Finding {
    let is_of_allocator = |kind| !matches!(kind, TraceKind::MallocFailed | TraceKind::Snapshot);
    let stream = |event: &TraceEvent| run.snapshot.stream_pool(event.stream_pool).stream;
    let found: Vec<_> = events(run, is_of_allocator)?
        .map(|event| (event.kind, event.address, event.size, event.detail, stream(event)))
        .collect();
    let expected = traced(&run.requests);
    let count = found.len().max(expected.len());
    for index in 0..count {
        let (found, expected) = (found.get(index), expected.get(index));
        same(&format!("event {index} of {count}"), &found, &expected)?;
    }
    let device = device(run)?;
    same("bytes held", &device.reserved, &held_at_last_report(&run.requests))?;
    same("source of segments", &device.segment_source, &SegmentSource::Allocator)?;
    let segments: Vec<_> = device.segments.iter().map(|s| (s.address, s.size)).collect();
    same("segments that are left", &segments, &segments_kept(run))?;
    let requested: Vec<_> = device.blocks.iter().map(|b| (b.requested, b.pending)).collect();
    same("blocks that are left", &requested, &kept(run).map(|r| (r.size, false)).collect())?;
    let pools = run.snapshot.stream_pools.iter().filter_map(|place| place.pool);
    same("pools other than the ordinary one", &pools.filter(|&pool| pool != (0, 0)).count(), &0)
}

/// Everything that the tracker must tell of these requests.
fn traced(requests: &[Request]) -> Vec<Expected> {
    let mut allocator = Allocator::default();
    for request in requests {
        match request.what.as_str() {
            "alloc" => allocator.alloc(request),
            "defer" => allocator.defer(request),
            "oom" => allocator.fail(request),
            _ => allocator.free(request),
        }
    }
    allocator.return_segments();
    allocator.expected
}

/// The allocator, as far as the program makes use of it: the first block of a kind lies at the
/// start of a new segment, and all later ones in that segment.
#[derive(Default)]
struct Allocator<'a> {
    /// By the block that made them necessary.
    segments: Vec<&'a Request>,
    live: Vec<&'a Request>,
    /// Taken back, and still used by another stream.
    deferred: Vec<&'a Request>,
    expected: Vec<Expected>,
}

impl<'a> Allocator<'a> {
    fn alloc(&mut self, request: &'a Request) {
        let kind = |r: &Request| (r.stream, segment_bytes(r.size));
        if !self.segments.iter().any(|segment| kind(segment) == kind(request)) {
            self.segments.push(request);
            self.tell_segment(TraceKind::SegmentAlloc, request);
        }
        self.live.push(request);
        self.tell_block(TraceKind::Alloc, request);
    }

    fn free(&mut self, request: &'a Request) {
        self.live.retain(|block| block.address != request.address);
        self.tell_block(TraceKind::Free, request);
    }

    fn defer(&mut self, request: &'a Request) {
        self.live.retain(|block| block.address != request.address);
        self.deferred.push(request);
        self.tell_block(TraceKind::FreeDeferred, request);
    }

    /// The other streams have come to an end, and what is wholly free goes back to the device.
    fn fail(&mut self, request: &Request) {
        for done in std::mem::take(&mut self.deferred) {
            self.tell_block(TraceKind::FreeCompleted, done);
        }
        self.return_segments();
        let used: u64 = self.live.iter().map(|block| rounded(block.size)).sum();
        let held: u64 = self.segments.iter().map(|segment| segment_bytes(segment.size)).sum();
        self.expected.push((
            TraceKind::Oom,
            used,
            rounded(request.size),
            DEVICE_BYTES - held,
            None,
        ));
    }

    fn return_segments(&mut self) {
        for segment in std::mem::take(&mut self.segments) {
            let range = segment.address..segment.address + segment_bytes(segment.size);
            if self.live.iter().any(|block| range.contains(&block.address)) {
                self.segments.push(segment);
            } else {
                self.tell_segment(TraceKind::SegmentFree, segment);
            }
        }
    }

    fn tell_block(&mut self, kind: TraceKind, of: &Request) {
        self.expected.push((kind, of.address, rounded(of.size), of.size, Some(of.stream)));
    }

    fn tell_segment(&mut self, kind: TraceKind, of: &Request) {
        let bytes = segment_bytes(of.size);
        self.expected.push((kind, of.address, bytes, bytes, Some(of.stream)));
    }
}

/// Bytes held from the device when the last block or failure was reported: totals come with those.
fn held_at_last_report(requests: &[Request]) -> u64 {
    let (mut held, mut known) = (0, 0);
    for (kind, _, bytes, ..) in traced(requests) {
        match kind {
            TraceKind::SegmentAlloc => held += bytes,
            TraceKind::SegmentFree => held -= bytes,
            _ => known = held,
        }
    }
    known
}

fn stacks(run: &Run) -> Finding {
    let is_request = |kind| matches!(kind, TraceKind::Alloc | TraceKind::Oom);
    let found: Vec<_> = events(run, is_request)?
        .map(|event| {
            let frame = run.snapshot.frames_of(event.stack).next().cloned().unwrap_or_default();
            let file = frame.file.rsplit('/').next().unwrap_or_default().to_string();
            (file, frame.line, frame.function)
        })
        .collect();
    let expected = run.requests.iter().filter(|r| matches!(r.what.as_str(), "alloc" | "oom"));
    let expected = expected.map(|r| ("drive.py".to_string(), r.line, "main".to_string()));
    same("innermost frames", &found, &expected.collect())
}

fn segments(run: &Run) -> Finding {
    let device = device(run)?;
    same("source of segments", &device.segment_source, &SegmentSource::Runtime)?;
    let left: Vec<_> = device.segments.iter().map(|s| (s.address, s.size)).collect();
    same("segments that are left", &left, &segments_kept(run))?;
    let is_segment = |kind| matches!(kind, TraceKind::SegmentAlloc | TraceKind::SegmentFree);
    let found: Vec<_> = events(run, is_segment)?.map(|e| (e.kind, e.address, e.size)).collect();
    let expected = traced(&run.requests).into_iter().filter(|(kind, ..)| is_segment(*kind));
    same("segments", &found, &expected.map(|(kind, at, size, ..)| (kind, at, size)).collect())?;
    let failed = events(run, |kind| kind == TraceKind::MallocFailed)?.count();
    let ooms = run.requests.iter().filter(|request| request.what == "oom").count();
    same("a failed cudaMalloc for each failed request", &(failed >= ooms), &true)
}

// --- helpers --------------------------------------------------------------------------------

fn device(run: &Run) -> Result<&DeviceSnapshot, String> {
    match run.snapshot.devices.as_slice() {
        [device] => Ok(device),
        devices => Err(format!("{} devices on the tape, not one", devices.len())),
    }
}

fn events(
    run: &Run,
    wanted: impl Fn(TraceKind) -> bool,
) -> Result<impl Iterator<Item = &TraceEvent>, String> {
    Ok(device(run)?.trace.iter().filter(move |event| wanted(event.kind)))
}

/// Requests whose blocks are never taken back.
fn kept(run: &Run) -> impl Iterator<Item = &Request> {
    let is_freed = |address: u64| {
        run.requests
            .iter()
            .any(|r| matches!(r.what.as_str(), "free" | "defer") && r.address == address)
    };
    run.requests.iter().filter(move |r| r.what == "alloc" && !is_freed(r.address))
}

/// The blocks that are kept are small and lie in the first segment.
fn segments_kept(run: &Run) -> Vec<(u64, u64)> {
    run.requests.first().map(|first| (first.address, SMALL_SEGMENT)).into_iter().collect()
}

fn rounded(size: u64) -> u64 {
    size.next_multiple_of(512)
}

fn segment_bytes(size: u64) -> u64 {
    if size <= SMALL_BLOCK_MAX { SMALL_SEGMENT } else { LARGE_SEGMENT }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Finding {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: the tape says {found:x?}, it was {expected:x?}"))
}

#[cfg(test)]
mod tests;
