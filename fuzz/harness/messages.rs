//! Any bytes as the messages of an agent, one after the other, to a coordinator.

use memtape_coordinator::Config;
use memtape_coordinator::testing::{Now, SimulatedCoordinator};
use memtape_proto::v1;
use prost::Message;

const SECOND_NS: u64 = 1_000_000_000;

/// Says what the bytes are: each message behind its length, the first a greeting that is right.
pub(crate) fn say(data: &[u8]) {
    let at = |seconds: u64| Now {
        mono_ns: seconds * SECOND_NS,
        wall_ns: 1_700_000_000_000_000_000 + (seconds * SECOND_NS) as i64,
    };
    let mut coordinator = SimulatedCoordinator::open(
        at(1),
        Config::default(),
        &memtape_simulated_disk::SimulatedDisk::new(1).process(),
    )
    .expect("a coordinator on an empty disk");
    let hello = v1::Hello {
        protocol: memtape_proto::PROTOCOL,
        node: "node-1".to_string(),
        ..v1::Hello::default()
    };
    let hello = v1::AgentMessage { body: Some(v1::agent_message::Body::Hello(hello)) };
    let Ok(mut stream) = coordinator.attach(at(1), hello) else { return };
    let mut rest = data;
    for seconds in 2..200 {
        if rest.is_empty() {
            break;
        }
        // What is no message ends here, as tonic would end the call.
        let Ok(message) = v1::AgentMessage::decode_length_delimited(&mut rest) else { break };
        if let Some(v1::agent_message::Body::Hello(_)) = message.body {
            if let Ok(another) = coordinator.attach(at(seconds), message) {
                stream = another;
            }
            continue;
        }
        if coordinator.said(at(seconds), stream, message).is_err() {
            break;
        }
        coordinator.tick(at(seconds));
        while coordinator.poll().is_some() {}
    }
    coordinator.tick(at(1_000));
}

/// Any bytes as a snapshot: compressed, and before compression.
pub(crate) fn take_snapshot(data: &[u8]) {
    use memtape_proto::snapshot::{Bounds, collectives, decode, encode, unpacked_bytes};
    let read = |bytes: &[u8]| {
        let _ = (unpacked_bytes(bytes, 1 << 20), collectives(bytes));
        let Ok(snapshot) = decode(bytes, Bounds::default()) else { return };
        let encoded = encode(snapshot.clone(), usize::MAX).expect("what was decoded is encoded");
        let again = decode(&encoded, Bounds::default()).expect("and decoded again");
        assert_eq!(again, snapshot);
    };
    read(data);
    read(&zstd::bulk::compress(data, 1).expect("memory for zstd"));
}
