//! What bytes mean for the fuzz target `pickle`: how to read, then a pickle.

use memtape_core::diagnosis::files::{History, Rank, analyze, diff};
use memtape_core::pickle::reader::Reader;
use memtape_core::pickle::value::Limits;

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
    let rank = match read.and_then(|()| reader.finish()) {
        Ok(file) => file.rank,
        Err(error) => {
            let line = error.to_string();
            assert!(!line.contains('\n') && line.len() < 400, "{line:?}");
            assert!(error.offset <= pickle.len() as u64, "{line}");
            return;
        }
    };
    for device in &rank.devices {
        let of_segments = device.segments.iter().map(|segment| segment.stack);
        let of_blocks = device.blocks.iter().map(|block| block.stack);
        let of_events = device.trace.iter().map(|event| event.stack);
        for stack in of_segments.chain(of_blocks).chain(of_events) {
            let frames = &rank.stacks[stack as usize];
            assert!(frames.iter().all(|&frame| (frame as usize) < rank.frames.len()));
        }
    }
    let found = History::of(rank);
    let _ = diff(&found, &found);
    let moments = Rank { rank: 1, states: vec![found.clone(), found.clone()] };
    let _ = analyze(&[Rank { rank: 0, states: vec![found.clone()] }, moments]);
    let _ = analyze(&[Rank { rank: 0, states: vec![found] }]);
}
