//! Captures that an agent takes alone: each is made once, and sent until it is stored.

use std::collections::BTreeSet;
use std::time::Duration;

use memtape_agent::Config;
use memtape_agent::simulated::{Event, MemoryDisk, MemoryRank, SimulatedAgent, UploadEnd};
use memtape_proto::v1;
use memtape_proto::v1::agent_message::Body as Said;
use memtape_proto::v1::coordinator_message::Body as ToAgent;

use crate::World;

/// A node without a coordinator whose agent keeps what it sees on a disk, and has seen its ranks
/// alive.
fn alone(ranks: u32, change: impl FnOnce(&mut Config)) -> World {
    let mut world = World::new(ranks, |_| ());
    let mut config = Config { node: "node-1".to_string(), ..Config::default() };
    change(&mut config);
    let (node, tapes) = (world.node.clone(), world.tapes.clone());
    let disk = Some(MemoryDisk::default());
    world.agent = SimulatedAgent::new(world.now, "boot-1", config, node, tapes, disk);
    world.train(5);
    world.tick();
    world
}

/// Connects, and hears everything that is kept.
fn connect_and_hear(world: &mut World) {
    world.connect();
    for _ in 0..4 {
        world.say(ToAgent::ReportAck(v1::ReportAck { number: u64::MAX }));
        world.tick();
    }
}

/// Names of all captures that were announced, with their tapes.
fn solos(world: &World) -> Vec<(String, String)> {
    let answers = world.said.iter().filter_map(|said| match said {
        Said::SoloCapture(solo) => solo.answer.clone(),
        _ => None,
    });
    answers.map(|answer| (answer.capture_id, answer.tape_id)).collect()
}

/// Stores the bodies that come, one after the other; their captures.
fn store_all(world: &mut World) -> Vec<String> {
    let mut stored = Vec::new();
    while let Some((id, capture, _)) = world.uploads.pop() {
        stored.push(capture);
        world.handle(Event::Uploaded { id, end: UploadEnd::Stored });
    }
    stored
}

#[test]
fn captures_taken_alone_wait_for_their_turns() {
    let mut world = alone(3, |config| {
        config.rewinds_max = 1;
        config.dead_tape_age_max = Duration::from_secs(60);
    });
    world.ranks.iter_mut().for_each(MemoryRank::kill);
    for _ in 0..4 {
        // A rewind takes its time, and ticks go on.
        for _ in 0..4 {
            world.tick();
            assert!(world.rewinds.len() <= 1, "more at once than there are turns");
        }
        world.do_rewinds();
    }
    connect_and_hear(&mut world);
    let (names, tapes): (BTreeSet<_>, BTreeSet<_>) = solos(&world).into_iter().unzip();
    assert_eq!((names.len(), tapes.len()), (3, 3), "one for each rank");
    let stored: BTreeSet<String> = store_all(&mut world).into_iter().collect();
    assert_eq!(stored, names);
    // Nothing waits for them any more: their tapes go when they are old.
    world.pass(61 * crate::SECOND_NS);
    world.tick();
    assert_eq!(world.tapes.len(), 0);
}
