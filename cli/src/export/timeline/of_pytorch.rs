//! The past of a rank from PyTorch's own snapshot file: its trace and the profiler's annotations.
//!
//! The trace has sizes as they were asked for, so an earlier level may differ from the allocator's
//! by less than 512 bytes for each block that came or went since.

use std::collections::BTreeMap;

use memtape_core::pickle::torch::{Action, Annotation, Event, Segment, Stage, TorchSnapshot};

use super::{Counter, Fact, Instant, Slice, Timeline, Track, counters};

/// Names of annotations that have a track of their own; further ones are left out.
const TRACKS_MAX: usize = 64;

/// The past of the rank that wrote the file.
pub(crate) fn timeline(of: &TorchSnapshot, rank: u32, name: &str) -> Timeline {
    let mut timeline = Timeline { rank, name: name.to_string(), ..Timeline::default() };
    let with_events: Vec<(u32, &[Event])> =
        (0..).zip(of.traces.iter().map(|trace| of.events_of(trace))).collect();
    let several = with_events.iter().filter(|(_, events)| !events.is_empty()).count() > 1;
    for (device, events) in with_events {
        timeline.counters.extend(counters_of(of, device, events, several));
        timeline.events.extend(events.iter().filter_map(|event| instant(device, event)));
    }
    timeline.events.sort_by_key(|event| event.at_ns);
    timeline.tracks = tracks(of);
    timeline
}

fn counters_of(of: &TorchSnapshot, device: u32, events: &[Event], several: bool) -> Vec<Counter> {
    let segments = of.segments.iter().filter(|segment| segment.device.unwrap_or(0) == device);
    let sum = |of: fn(&Segment) -> Option<u64>| {
        segments.clone().filter_map(of).fold(0, u64::saturating_add)
    };
    let last = [sum(|segment| segment.allocated_bytes), sum(|segment| segment.total_bytes)];
    let events = events.iter().filter_map(|event| Some((wall_ns(event)?, changes(event))));
    counters(several.then_some(device), last, &events.collect::<Vec<_>>(), None)
}

fn wall_ns(event: &Event) -> Option<i64> {
    event.time_us().map(|us| us.saturating_mul(1000))
}

/// What an event changes of the allocated and the reserved bytes.
fn changes(event: &Event) -> [i64; 2] {
    let size = i64::try_from(event.bytes().unwrap_or(0)).unwrap_or(i64::MAX);
    match event.action {
        Action::Alloc => [size, 0],
        Action::FreeRequested => [-size, 0],
        Action::SegmentAlloc | Action::SegmentMap => [0, size],
        Action::SegmentFree | Action::SegmentUnmap => [0, -size],
        Action::FreeCompleted
        | Action::Snapshot
        | Action::Oom
        | Action::Annotate
        | Action::Unknown => [0, 0],
    }
}

fn instant(device: u32, event: &Event) -> Option<Instant> {
    let name = match event.action {
        Action::Oom => "out of memory",
        Action::Snapshot => "PyTorch snapshot",
        Action::Alloc
        | Action::FreeRequested
        | Action::FreeCompleted
        | Action::SegmentAlloc
        | Action::SegmentFree
        | Action::SegmentMap
        | Action::SegmentUnmap
        | Action::Annotate
        | Action::Unknown => return None,
    };
    let mut facts = vec![("device", Fact::Number(device.into()))];
    if event.action == Action::Oom {
        facts.extend(event.bytes().map(|bytes| ("requested_bytes", Fact::Number(bytes))));
        let free = event.device_free_bytes();
        facts.extend(free.map(|bytes| ("free_bytes", Fact::Number(bytes))));
    }
    Some(Instant { name: name.to_string(), at_ns: wall_ns(event)?, facts })
}

/// One track for each name of an annotation; what differs after a `#`, as in `ProfilerStep#12`, is
/// no other name. An end without a start and a start without an end are left out.
fn tracks(of: &TorchSnapshot) -> Vec<Track> {
    let mut open: BTreeMap<(&str, Option<u32>), i64> = BTreeMap::new();
    let mut tracks: BTreeMap<&str, Vec<Slice>> = BTreeMap::new();
    for annotation in &of.annotations {
        let Some((name, at_ns, stage)) = said(of, annotation) else { continue };
        let key = (name, annotation.device());
        match stage {
            Stage::Start => {
                open.insert(key, at_ns);
            }
            Stage::End => {
                let Some(start_ns) = open.remove(&key) else { continue };
                let track = name.split_once('#').map_or(name, |(base, _)| base);
                if tracks.len() < TRACKS_MAX || tracks.contains_key(track) {
                    let end_ns = at_ns.max(start_ns);
                    let slice = Slice { name: name.to_string(), start_ns, end_ns };
                    tracks.entry(track).or_default().push(slice);
                }
            }
        }
    }
    let track = |(name, slices): (&str, Vec<Slice>)| Track {
        name: name.to_string(),
        slices: without_overlap(slices),
    };
    tracks.into_iter().map(track).collect()
}

fn said<'a>(of: &'a TorchSnapshot, annotation: &Annotation) -> Option<(&'a str, i64, Stage)> {
    let at_ns = annotation.time_us()?.saturating_mul(1000);
    Some((of.name_of(annotation)?, at_ns, annotation.stage?))
}

/// The slices in the order of time; one that begins before the end of another is left out.
fn without_overlap(mut slices: Vec<Slice>) -> Vec<Slice> {
    slices.sort_by_key(|slice| (slice.start_ns, slice.end_ns));
    let mut end_ns = i64::MIN;
    slices.retain(|slice| {
        let is_apart = slice.start_ns >= end_ns;
        end_ns = if is_apart { slice.end_ns } else { end_ns };
        is_apart
    });
    slices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_a_track_do_not_overlap() {
        let slice = |start_ns, end_ns| Slice { name: "s".into(), start_ns, end_ns };
        let kept = without_overlap(vec![slice(5, 9), slice(0, 5), slice(8, 12), slice(9, 10)]);
        assert_eq!(kept, [slice(0, 5), slice(5, 9), slice(9, 10)]);
    }
}
