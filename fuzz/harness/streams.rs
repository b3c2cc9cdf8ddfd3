//! Any bytes as the calls of an agent, cut anywhere.

use std::cell::RefCell;

use memtape_coordinator::testing::FuzzedRouter;

/// Calls after which a new coordinator is started, so that no input depends on many others.
const CALLS_MAX: u32 = 2_000;

/// Statuses of gRPC that say that the coordinator is at fault: unknown, internal, data loss.
const FAULTS: [&str; 4] = ["", "2", "13", "15"];

/// Bytes of gRPC before a message.
const HEADER_BYTES: usize = 5;

thread_local! {
    static ROUTER: RefCell<(u32, Option<FuzzedRouter>)> = const { RefCell::new((0, None)) };
}

fn start() -> FuzzedRouter {
    let folder = std::env::temp_dir().join(format!("memtape-fuzz-streams-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder); // of an earlier coordinator
    std::fs::create_dir_all(&folder).expect("a folder");
    FuzzedRouter::start(&folder).expect("a coordinator")
}

/// Calls the coordinator: a byte that says how the others are cut, the length of what comes on the
/// stream (two bytes), the bytes of the stream, those of an upload.
pub(crate) fn call(data: &[u8]) {
    let [part, low, high, wire @ ..] = data else { return };
    let part = usize::from(*part) + 1;
    let stream_bytes = usize::from(u16::from_le_bytes([*low, *high])).min(wire.len());
    let (stream, upload) = wire.split_at(stream_bytes);
    ROUTER.with_borrow_mut(|(calls, router)| {
        if calls.is_multiple_of(CALLS_MAX) {
            // Its store is closed before the next one is opened.
            *router = None;
        }
        *calls += 1;
        let router = router.get_or_insert_with(start);
        check_messages(router, wire, part);
        let statuses = router.exchange(stream, upload, part).expect("an answer in time");
        assert!(!statuses.iter().any(|it| FAULTS.contains(&it.as_str())), "{statuses:?}");
    });
}

/// Checks that messages do not depend on how their bytes are cut, and that none is lost.
fn check_messages(router: &FuzzedRouter, wire: &[u8], part: usize) {
    let (messages, why) = router.messages(wire, part);
    assert_eq!(router.messages(wire, wire.len().max(1)), (messages.clone(), why.clone()));
    let mut rest = wire;
    for message in messages {
        let (header, after) = rest.split_at(HEADER_BYTES);
        assert_eq!(header[1..], (message.len() as u32).to_be_bytes());
        rest = after.strip_prefix(message.as_slice()).expect("the bytes behind the header");
    }
    assert_eq!(rest.is_empty(), why.is_empty(), "{} bytes are left: {why}", rest.len());
}
