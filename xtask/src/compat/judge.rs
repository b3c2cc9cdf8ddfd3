//! Whether a tape says what happened, and all of it.
//!
//! What must be on it follows from the requests by the allocator's own rules: blocks are multiples
//! of 512 bytes, small ones come from segments of 2 MiB, large ones of 20 MiB, and a request that
//! cannot be met first gives back every segment that is free.

use anyhow::{Result, anyhow, bail, ensure};
use memtape_core::snapshot::{DeviceSnapshot, SegmentSource, TraceEvent, TraceKind};
use memtape_core::tape::layout::Tracker;

use super::rig::{Request, Run, What};

/// Works, or why not.
pub(crate) type Finding = Result<()>;

/// What the runs with one release showed.
pub(crate) struct Findings {
    /// PyTorch's reports: blocks, totals, failed requests.
    hook_1: Finding,
    /// The trace tracker: requested sizes, streams, deferred frees, segments.
    hook_2: Finding,
    /// The tracker names pools.
    pub(crate) has_pools: bool,
    /// Python stacks of blocks and failed requests.
    stacks: Finding,
    /// The CUDA runtime: segments, without the tracker.
    segments: Finding,
    /// The tracker is there as it should be, or the tape says why this release has none.
    is_tracker_expected: bool,
}

/// First release with a trace tracker.
const MINOR_OF_TRACKER: u32 = 2;

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
        let expects_tracker = minor >= MINOR_OF_TRACKER;
        let limitations = &detailed.status.limitations;
        let reason = limitations.iter().find_map(|line| line.strip_prefix("no detail: "));
        let hook_2 = match reason {
            _ if is_attached => hook_2(detailed),
            Some(why) => Err(anyhow!("unavailable: {why}")),
            None => Err(anyhow!("not attached, and the tape does not say why")),
        };
        Self {
            is_tracker_expected: if expects_tracker {
                hook_2.is_ok()
            } else {
                !is_attached && reason.is_some()
            },
            hook_1: hook_1(plain),
            hook_2,
            has_pools: is_attached
                && detailed.snapshot.stream_pools.iter().any(|place| place.pool.is_some()),
            stacks: stacks(plain),
            segments: segments(plain),
        }
    }

    /// Everything is as it should be with this release.
    pub(crate) fn are_good(&self) -> bool {
        let always = [&self.hook_1, &self.stacks, &self.segments];
        self.is_tracker_expected && always.iter().all(|finding| finding.is_ok())
    }

    /// All findings by their names.
    pub(crate) fn each(&self) -> [(&'static str, &Finding); 4] {
        [
            ("hook 1", &self.hook_1),
            ("hook 2", &self.hook_2),
            ("stacks", &self.stacks),
            ("segments", &self.segments),
        ]
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
        match request.what {
            What::Alloc => allocator.alloc(request),
            What::Free => allocator.free(request),
            What::Defer => allocator.defer(request),
            What::Oom => allocator.fail(request),
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
    let expected = run.requests.iter().filter(|r| matches!(r.what, What::Alloc | What::Oom));
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
    let ooms = run.requests.iter().filter(|request| request.what == What::Oom).count();
    same("a failed cudaMalloc for each failed request", &(failed >= ooms), &true)
}

// --- helpers --------------------------------------------------------------------------------

fn device(run: &Run) -> Result<&DeviceSnapshot> {
    match run.snapshot.devices.as_slice() {
        [device] => Ok(device),
        devices => bail!("{} devices on the tape, not one", devices.len()),
    }
}

fn events(
    run: &Run,
    wanted: impl Fn(TraceKind) -> bool,
) -> Result<impl Iterator<Item = &TraceEvent>> {
    Ok(device(run)?.trace.iter().filter(move |event| wanted(event.kind)))
}

/// Requests whose blocks are never taken back.
fn kept(run: &Run) -> impl Iterator<Item = &Request> {
    let is_freed = |address: u64| {
        run.requests
            .iter()
            .any(|r| matches!(r.what, What::Free | What::Defer) && r.address == address)
    };
    run.requests.iter().filter(move |r| r.what == What::Alloc && !is_freed(r.address))
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
    ensure!(found == expected, "{what}: the tape says {found:x?}, it was {expected:x?}");
    Ok(())
}

#[cfg(test)]
mod tests;
