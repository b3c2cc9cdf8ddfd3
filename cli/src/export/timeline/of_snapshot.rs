//! The past of a rank from its snapshot: the last events of each device, and its collectives.
//!
//! A file of PyTorch is a snapshot, too. Its trace has sizes as they were asked for, so an earlier
//! level may differ from the allocator's by less than 512 bytes for each block that came or went.
//!
//! A snapshot has the times of its events by the clock of the node, and one Unix time: the end of
//! its step. `of_tape` knows the distance of both clocks; for a stored snapshot the last event is
//! taken for the end of the step, so its times may be late by the idle end of that step.

use memtape_core::snapshot::{
    CollectiveGroup, DeviceSnapshot, RankSnapshot, TraceEvent, TraceKind,
};

use super::{Instant, Slice, Timeline, Track, counters, slices};

/// The past of a rank of a capture or a file.
pub(crate) fn timeline(of: &RankSnapshot) -> Timeline {
    let traces = of.devices.iter().flat_map(|device| &device.trace);
    let last_ns = traces.map(|event| event.mono_ns).max().unwrap_or(0);
    let last_ns = i64::try_from(last_ns).unwrap_or(i64::MAX);
    let wall_ns = |mono_ns: u64| {
        let before_end = last_ns.saturating_sub(i64::try_from(mono_ns).unwrap_or(i64::MAX));
        of.wall_ns.saturating_sub(before_end)
    };
    let mut timeline = with_clock(of, &wall_ns);
    let name = "steps".to_string();
    if of.devices.iter().any(|device| device.step_source.is_known()) {
        timeline.tracks.insert(0, Track { name, slices: steps(of, &wall_ns) });
    }
    timeline
}

/// The timeline of a snapshot without its steps, by a given clock.
pub(super) fn with_clock(of: &RankSnapshot, wall_ns: &impl Fn(u64) -> i64) -> Timeline {
    let mut timeline = Timeline {
        rank: of.identity.rank,
        name: of.identity.job.clone(),
        pid: of.identity.pid,
        ..Timeline::default()
    };
    for device in &of.devices {
        let number = (of.devices.len() > 1).then_some(device.device.into());
        let last = [device.allocated, device.reserved];
        let events = device.trace.iter().map(|event| (wall_ns(event.mono_ns), changes(event)));
        let events: Vec<(i64, [i64; 2])> = events.collect();
        timeline.counters.extend(counters(number, last, &events, Some(of.wall_ns)));
        let events = device.trace.iter().filter_map(|event| instant(device, event, wall_ns));
        timeline.events.extend(events);
    }
    timeline.events.sort_by_key(|event| event.at_ns);
    let of_collectives = &of.collectives;
    let track = |group| collective(group, of_collectives.look_wall_ns);
    timeline.tracks.extend(of_collectives.groups.iter().filter_map(track));
    let seen = of_collectives.groups.iter().filter(|group| group.since_wall_ns > 0);
    timeline.events.extend(seen.map(progress));
    timeline
}

/// Changes of the allocated and the reserved bytes by an event.
fn changes(event: &TraceEvent) -> [i64; 2] {
    let size = i64::try_from(event.size).unwrap_or(i64::MAX);
    match event.kind {
        TraceKind::Alloc => [size, 0],
        // What is pending free is no longer handed out.
        TraceKind::Free | TraceKind::FreeDeferred => [-size, 0],
        TraceKind::SegmentAlloc | TraceKind::SegmentMap => [0, size],
        TraceKind::SegmentFree | TraceKind::SegmentUnmap => [0, -size],
        TraceKind::FreeCompleted
        | TraceKind::Oom
        | TraceKind::MallocFailed
        | TraceKind::Snapshot => [0, 0],
    }
}

/// Failed requests and calls, and snapshots that the program took.
fn instant(
    device: &DeviceSnapshot,
    event: &TraceEvent,
    wall_ns: &impl Fn(u64) -> i64,
) -> Option<Instant> {
    let (name, mut facts) = match event.kind {
        TraceKind::Oom => {
            ("out of memory", vec![("requested_bytes", event.size), ("free_bytes", event.detail)])
        }
        TraceKind::MallocFailed => (
            "cudaMalloc failed, the allocator retries",
            vec![("requested_bytes", event.size), ("took_ns", event.detail)],
        ),
        TraceKind::Snapshot => ("PyTorch snapshot", Vec::new()),
        TraceKind::Alloc
        | TraceKind::Free
        | TraceKind::FreeDeferred
        | TraceKind::FreeCompleted
        | TraceKind::SegmentAlloc
        | TraceKind::SegmentFree
        | TraceKind::SegmentMap
        | TraceKind::SegmentUnmap => return None,
    };
    facts.extend([("device", device.device.into()), ("step", event.step)]);
    Some(Instant { name: name.to_string(), at_ns: wall_ns(event.mono_ns), facts })
}

/// The finished steps that the events of the snapshot show: a step begins with its first event.
fn steps(of: &RankSnapshot, wall_ns: &impl Fn(u64) -> i64) -> Vec<Slice> {
    let traces = of.devices.iter().flat_map(|device| &device.trace);
    let mut events: Vec<(u64, u64)> = traces.map(|event| (event.step, event.mono_ns)).collect();
    events.sort_unstable();
    events.dedup_by_key(|(step, _)| *step);
    // The step under way has no slice: its first event ends the slice of the last finished one.
    let name = |step: u64| (step < of.step).then(|| format!("step {}", step + 1));
    let start = |&(step, mono_ns): &(u64, u64)| (name(step).unwrap_or_default(), wall_ns(mono_ns));
    slices(&events.iter().map(start).collect::<Vec<_>>(), of.wall_ns)
}

/// The collective that is under way in a group.
fn collective(group: &CollectiveGroup, look_wall_ns: i64) -> Option<Track> {
    let newest = group.started.max(group.enqueued)?;
    let is_over = group.completed.is_some_and(|completed| completed >= newest);
    if is_over || group.since_wall_ns == 0 || look_wall_ns <= group.since_wall_ns {
        return None;
    }
    Some(Track {
        name: format!("collectives of {}", group_name(group)),
        slices: vec![Slice {
            name: format!("collective {newest} is under way"),
            start_ns: group.since_wall_ns,
            end_ns: look_wall_ns,
        }],
    })
}

/// Progress of a group.
fn progress(group: &CollectiveGroup) -> Instant {
    let known = [
        ("enqueued", group.enqueued),
        ("started", group.started),
        ("completed", group.completed),
        ("ranks", Some(group.size.into()).filter(|size| *size > 0)),
    ];
    let facts = known.into_iter().filter_map(|(name, number)| Some((name, number?)));
    Instant {
        name: format!("collectives of {}", group_name(group)),
        at_ns: group.since_wall_ns,
        facts: facts.collect(),
    }
}

fn group_name(group: &CollectiveGroup) -> String {
    match (group.desc.as_str(), group.name.as_str()) {
        ("", "") => format!("group {}", group.id),
        ("", name) | (name, _) => name.to_string(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use memtape_core::snapshot::Collectives;
    use memtape_core::snapshot::step_source::StepSource;

    use super::*;

    /// A rank with an allocation, a failed call and a failed request in two steps.
    pub(crate) fn sample() -> RankSnapshot {
        let event = |kind, mono_ns, size, step| TraceEvent {
            kind,
            mono_ns,
            address: 0,
            size,
            detail: 3,
            stack: 0,
            stream_pool: 0,
            step,
        };
        let mut snapshot = RankSnapshot {
            step: 5,
            wall_ns: 1_795_244_404_000_000_000,
            devices: vec![DeviceSnapshot {
                step_source: StepSource::Recorded,
                allocated: 900,
                reserved: 2048,
                trace: vec![
                    event(TraceKind::SegmentAlloc, 100, 1024, 3),
                    event(TraceKind::Alloc, 110, 600, 3),
                    event(TraceKind::Alloc, 200, 500, 4),
                    event(TraceKind::MallocFailed, 210, 4096, 4),
                    event(TraceKind::FreeDeferred, 220, 300, 4),
                    event(TraceKind::FreeCompleted, 230, 300, 4),
                    event(TraceKind::Oom, 240, 8192, 4),
                ],
                ..DeviceSnapshot::default()
            }],
            collectives: Collectives {
                look_wall_ns: 1_795_244_404_000_000_000,
                groups: vec![CollectiveGroup {
                    desc: "default_pg".into(),
                    enqueued: Some(12),
                    completed: Some(11),
                    since_wall_ns: 1_795_244_403_999_999_900,
                    ..CollectiveGroup::default()
                }],
                ..Collectives::default()
            },
            ..RankSnapshot::default()
        };
        snapshot.identity.rank = 2;
        snapshot.identity.job = "job <b>".into();
        snapshot.identity.pid = 77;
        snapshot
    }

    #[test]
    fn memory_ends_at_the_bytes_of_the_snapshot() {
        let of = sample();
        let timeline = timeline(&of);
        let last: Vec<(&str, Option<&(i64, u64)>)> =
            timeline.counters.iter().map(|of| (of.name.as_str(), of.points.last())).collect();
        let end = of.wall_ns;
        let expected = [("allocated", &(end - 20, 900)), ("reserved", &(end - 140, 2048))];
        assert_eq!(last, expected.map(|(name, point)| (name, Some(point))));
        assert_eq!(timeline.counters[0].points[0].1, 900 + 300 - 500 - 600);
    }

    #[test]
    fn memory_that_does_not_change_is_one_point() {
        let mut of = sample();
        of.devices[0].trace.clear();
        let points: Vec<_> = timeline(&of).counters.into_iter().map(|of| of.points).collect();
        assert_eq!(points, [[(of.wall_ns, 900)], [(of.wall_ns, 2048)]]);
    }

    #[test]
    fn steps_events_and_collectives_have_their_times() {
        let of = sample();
        let timeline = timeline(&of);
        let names: Vec<&str> = timeline.events.iter().map(|event| event.name.as_str()).collect();
        let retry = "cudaMalloc failed, the allocator retries";
        assert_eq!(names, [retry, "out of memory", "collectives of default_pg"]);
        let steps = |step: u64| -> Vec<(String, i64)> {
            let of = super::timeline(&RankSnapshot { step, ..of.clone() });
            let steps = of.tracks[0].slices.iter();
            steps.map(|of| (of.name.clone(), of.end_ns - of.start_ns)).collect()
        };
        assert_eq!(steps(5), [("step 4".to_string(), 100), ("step 5".to_string(), 40)]);
        // The fifth step is under way.
        assert_eq!(steps(4), [("step 4".to_string(), 100)]);
        assert_eq!(timeline.tracks[1].slices[0].name, "collective 12 is under way");
    }
}
