//! Captures that an agent takes alone: each is made once, and sent until it is stored.

use std::collections::BTreeSet;
use std::time::Duration;

use memtape_agent::Config;
use memtape_agent::testing::{Event, MemoryRank, SimulatedAgent, UploadEnd};
use memtape_proto::v1;
use memtape_proto::v1::agent_message::Body as Said;
use memtape_proto::v1::coordinator_message::Body as ToAgent;
use memtape_simulated_disk::SimulatedDisk;

use crate::World;

/// A node without a coordinator whose agent keeps what it sees on a disk, and has seen its ranks
/// alive.
pub(crate) fn alone(ranks: u32, change: impl FnOnce(&mut Config)) -> World {
    let mut world = World::new(ranks, |_| ());
    let mut config = Config { node: "node-1".to_string(), ..Config::default() };
    change(&mut config);
    let (node, tapes) = (world.node.clone(), world.tapes.clone());
    let disk = Some(SimulatedDisk::new(1).process());
    world.agent = SimulatedAgent::new(world.now, "boot-1", config, node, tapes, disk);
    world.train(5);
    world.tick();
    world
}

/// Connects, and hears everything that is kept.
pub(crate) fn connect_and_read(world: &mut World) {
    world.connect();
    for _ in 0..4 {
        world.say(ToAgent::ReportAck(v1::ReportAck { number: u64::MAX }));
        world.tick();
    }
}

/// Names of all captures that were announced, with their tapes.
pub(crate) fn captures(world: &World) -> Vec<(String, String)> {
    let answers = world.said.iter().filter_map(|said| match said {
        Said::AgentCapture(capture) => capture.answer.clone(),
        _ => None,
    });
    answers.map(|answer| (answer.capture_id, answer.tape_id)).collect()
}

/// Stores the snapshots that come, one after the other; their captures.
fn store_all(world: &mut World) -> Vec<String> {
    let mut stored = Vec::new();
    while let Some((id, capture, _)) = world.uploads.pop() {
        stored.push(capture);
        world.handle(Event::Uploaded { id, end: UploadEnd::Stored });
    }
    stored
}

#[test]
fn agent_initiated_captures_wait_in_the_upload_queue() {
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
    connect_and_read(&mut world);
    let (names, tapes): (BTreeSet<_>, BTreeSet<_>) = captures(&world).into_iter().unzip();
    assert_eq!((names.len(), tapes.len()), (3, 3), "one for each rank");
    let stored: BTreeSet<String> = store_all(&mut world).into_iter().collect();
    assert_eq!(stored, names);
    // Nothing waits for them any more: their tapes go when they are old.
    world.pass(61 * crate::SECOND_NS);
    world.tick();
    assert_eq!(world.tapes.len(), 0);
}

/// However often a try takes too long: a capture taken alone has no deadline.
#[test]
fn an_agent_initiated_capture_is_sent_until_acknowledged() {
    let mut world = alone(1, |_| ());
    world.ranks[0].kill();
    for _ in 0..3 {
        world.tick();
    }
    world.do_rewinds();
    connect_and_read(&mut world);
    for _ in 0..5 {
        let (id, ..) = world.uploads.pop().expect("a try");
        assert!(world.uploads.is_empty());
        let time_left = world.times_left[&id];
        world.pass(u64::try_from(time_left.as_nanos()).expect("small"));
        world.handle(Event::Uploaded { id, end: UploadEnd::Failed });
        let retry_ns = world.agent.next_ns().expect("another try");
        world.pass(retry_ns.saturating_sub(world.now.mono_ns));
        world.handle(Event::Timeout);
    }
    assert_eq!(store_all(&mut world).len(), 1);
    // It is not announced again, and not sent again.
    world.handle(Event::Disconnected);
    connect_and_read(&mut world);
    assert_eq!((captures(&world).len(), world.uploads.len()), (1, 0));
}

/// A part of a coordinator's capture has one: a try that takes too long is its last, though it is
/// no refusal.
#[test]
fn an_ordinary_upload_ends_at_its_deadline() {
    for early_ns in [0, 1_000] {
        let mut world = alone(1, |_| ());
        world.connect();
        world.tick();
        world.ask("cap-1", 3, 2_000);
        world.do_rewinds();
        let (id, ..) = world.uploads.pop().expect("a try");
        assert!(world.agent.held_bytes() > 0);
        let time_left = world.times_left[&id];
        let left_ns = u64::try_from(time_left.as_nanos()).expect("small");
        // The clocks of the shell and of the agent may differ by a little.
        world.pass(left_ns - early_ns);
        world.handle(Event::Uploaded { id, end: UploadEnd::Failed });
        world.pass(early_ns);
        world.handle(Event::Timeout);
        assert_eq!((world.uploads.len(), world.agent.held_bytes()), (0, 0), "{early_ns}");
        assert_eq!(world.agent.next_ns(), None, "{early_ns}");
    }
}

/// Kills the first rank. A capture is wanted then, and not begun.
fn kill_seen(world: &mut World) {
    world.ranks[0].kill();
    for _ in 0..5 {
        if world.agent.next_ns().is_some() {
            return;
        }
        world.tick();
    }
    panic!("no capture is wanted");
}

/// A coordinator welcomes the agent, and is gone before it has acknowledged anything.
fn flap(world: &mut World) {
    world.connect();
    world.pass(crate::SECOND_NS / 2);
    world.handle(Event::Tick);
    world.handle(Event::Disconnected);
}

/// One that stays for half a second does not cancel the capture of a death, and causes no second.
#[test]
fn a_death_is_captured_once_however_often_a_coordinator_flaps() {
    // Flaps before the capture is begun, while it is made, and when it is there.
    for flaps in [[1, 0, 0], [3, 0, 0], [0, 1, 0], [0, 0, 1], [2, 2, 2]] {
        let mut world = alone(1, |_| ());
        kill_seen(&mut world);
        (0..flaps[0]).for_each(|_| flap(&mut world));
        assert_eq!(world.rewinds.len(), 0, "{flaps:?}");
        (0..3).for_each(|_| world.tick());
        assert_eq!(world.rewinds.len(), 1, "{flaps:?}");
        (0..flaps[1]).for_each(|_| flap(&mut world));
        (0..3).for_each(|_| world.tick());
        assert_eq!(world.rewinds.len(), 1, "{flaps:?}");
        world.do_rewinds();
        for _ in 0..flaps[2] {
            flap(&mut world);
            (0..3).for_each(|_| world.tick());
        }
        assert_eq!(world.rewinds.len(), 0, "{flaps:?}");
        connect_and_read(&mut world);
        let names: BTreeSet<_> = captures(&world).into_iter().collect();
        assert_eq!((names.len(), store_all(&mut world).len()), (1, 1), "{flaps:?}");
    }
}

/// What a coordinator knows is not captured when it is gone.
#[test]
fn an_acknowledged_death_is_not_captured_by_the_agent() {
    let mut world = alone(1, |_| ());
    kill_seen(&mut world);
    connect_and_read(&mut world);
    world.handle(Event::Disconnected);
    (0..5).for_each(|_| world.tick());
    assert_eq!((world.rewinds.len(), captures(&world).len()), (0, 0));
}
