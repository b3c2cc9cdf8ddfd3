//! What bytes mean for the fuzz target `pickle`: how to read, then a pickle.

use memtape_core::diagnosis::files::{History, Rank, analyze, diff};
use memtape_core::pickle::reader::Reader;
use memtape_core::pickle::value::Limits;
use memtape_core::torch::rank::rank_state;

/// Small, so that a fuzzer meets each of them.
const LIMITS: Limits = Limits {
    depth_max: 16,
    stack_max: 1 << 12,
    memo_max: 1 << 12,
    objects_max: 1 << 12,
    unfolded_max: 1 << 10,
    items_max: 1 << 13,
    text_bytes_max: 1 << 10,
    texts_bytes_max: 1 << 14,
    integer_bytes_max: 64,
};

/// Reads what follows the first two bytes as a snapshot and as plain values, whole and in pieces
/// as long as the first byte says, walks through all of it and judges it. The second byte chooses
/// limits.
pub(crate) fn read_any(data: &[u8]) {
    let &[piece, limits, ref pickle @ ..] = data else { return };
    let limits = if limits & 1 == 0 { LIMITS } else { Limits::default() };
    let pieces = pickle.chunks(usize::from(piece).max(1));
    let mut reader = Reader::with_limits(limits);
    let cut = pieces.clone().try_for_each(|piece| reader.feed(piece));
    let cut = cut.and_then(|()| reader.finish_values()).map(|whole| whole.bytes);
    let mut reader = Reader::with_limits(limits);
    let whole = reader.feed(pickle).and_then(|()| reader.finish_values()).map(|whole| whole.bytes);
    assert_eq!(cut, whole, "how the bytes are cut must not matter");

    let mut reader = Reader::with_limits(limits);
    let read = pieces.clone().try_for_each(|piece| reader.feed(piece));
    let snapshot = match read.and_then(|()| reader.finish()) {
        Ok(snapshot) => snapshot,
        Err(error) => {
            let line = error.to_string();
            assert!(!line.contains('\n') && line.len() < 400, "{line:?}");
            assert!(error.offset <= pickle.len() as u64, "{line}");
            return;
        }
    };
    let mut stacks: Vec<u32> = Vec::new();
    for segment in snapshot.segments.iter().chain(&snapshot.host_segments) {
        stacks.extend(segment.stack);
        stacks.extend(snapshot.blocks_of(segment).iter().filter_map(|block| block.stack()));
    }
    let mut events = 0;
    for trace in snapshot.traces.iter().chain(&snapshot.host_traces) {
        for event in snapshot.events_of(trace) {
            events += 1;
            stacks.extend(event.stack());
            let _ = (snapshot.stream_of(event), snapshot.pool_of(event));
            let _ = (snapshot.compile_context_of(event), snapshot.user_metadata_of(event));
        }
    }
    assert_eq!(events, snapshot.events.len(), "each event belongs to one trace");
    for stack in stacks {
        assert!((stack as usize) < snapshot.stack_count());
        for &frame in snapshot.stack(stack) {
            assert!((frame as usize) < snapshot.frame_count());
            let _ = snapshot.frame(frame);
        }
    }
    let found = History::of(rank_state(snapshot).rank);
    let _ = diff(&found, &found);
    let moments = Rank { rank: 1, states: vec![found.clone(), found.clone()] };
    let _ = analyze(&[Rank { rank: 0, states: vec![found.clone()] }, moments]);
    let _ = analyze(&[Rank { rank: 0, states: vec![found] }]);
}
