//! The segments of a rank in a capture with their blocks, over HTTP.

use memtape_proto::api::{MapBlock, Segments};
use memtape_proto::v1;
use memtape_proto::v1::agent_message::Body as FromAgent;
use prost::Message as _;
use serde_json::Value;

use crate::JOB;
use crate::fake::{Agent, LEAK_BEGINS, LEAK_LINE, MIB, Running, answer, training};

/// The step at whose end the ranks are captured.
const STEP: u64 = LEAK_BEGINS + 10;

/// The snapshot of a rank, with segments as a detailed recording has them: one for the weights, of
/// which each block leaves 7 MiB free, one in a private pool for the leak, and one that is free.
fn detailed(rank: u32) -> Vec<u8> {
    let packed = JOB.snapshot(rank, STEP, 0);
    let unpacked = zstd::bulk::decompress(&packed, 1 << 24).unwrap();
    let mut snapshot = v1::RankSnapshot::decode(&unpacked[..]).unwrap();
    snapshot.places = vec![
        v1::Place::default(),
        v1::Place { stream: Some(0), pool_first: Some(0), pool_second: Some(1) },
    ];
    let device = &mut snapshot.devices[0];
    let blocks = device.blocks.as_mut().unwrap();
    blocks.requested = blocks.sizes.iter().map(|size| size - 100).collect();
    device.segments = Some(v1::Segments {
        addresses: vec![32 * MIB, 21 * 32 * MIB, 1 << 40],
        sizes: vec![20 * 32 * MIB, 400 * MIB, 20 * MIB],
        places: vec![0, 1, 0],
        ..v1::Segments::default()
    });
    device.segment_source = 2;
    zstd::bulk::compress(&snapshot.encode_to_vec(), 3).unwrap()
}

/// The path of a capture in which rank 2 was recorded in detail, and the others were not.
async fn captured(running: &Running, agent: &mut Agent) -> String {
    agent.train(&JOB, 1..=STEP + 2).await;
    let (_, asked) = running.post("/api/v1/jobs/train/captures", r#"{"step":110}"#).await;
    let request = agent.asked().await;
    let others = request.tape_ids.iter().filter(|tape| **tape != JOB.tape(2)).cloned().collect();
    agent.serve(&JOB, &v1::CaptureRequest { tape_ids: others, ..request.clone() }).await;
    let snapshot = detailed(2);
    agent.say(FromAgent::CaptureAnswer(answer(&JOB, 2, &request, &snapshot))).await;
    agent.upload(&request.capture_id, &JOB.tape(2), &snapshot).await.unwrap();
    let path = format!("/api/v1/captures/{}", asked["id"].as_str().unwrap());
    running.wait(&path, |capture| capture["state"] != "collecting").await;
    path
}

async fn segments(running: &Running, path: &str, query: &str) -> Segments {
    let (status, answer) = running.get(&format!("{path}/segments?{query}")).await;
    assert_eq!(status, 200, "{answer}");
    serde_json::from_value(answer).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_segments_of_a_rank_are_those_of_its_snapshot() {
    let (_dir, running, mut agent) = training(&JOB).await;
    let path = captured(&running, &mut agent).await;
    let map = segments(&running, &path, "rank=2").await;
    assert_eq!((map.job.as_str(), map.rank, map.device, map.step), ("train@0", 2, 0, STEP));
    assert_eq!(
        (map.devices.as_slice(), map.last_step, map.clock.as_str()),
        (&[0][..], STEP, "steps")
    );
    assert_eq!((map.segment_source.as_str(), map.complete), ("allocator", true));
    // The level of the rank is 12 MiB above its blocks, and the reserve is 4 GiB.
    assert_eq!((map.allocated_bytes, map.allocated_difference_bytes), (832 * MIB, 12 * MIB as i64));
    let listed = (640 + 400 + 20) * MIB;
    assert_eq!(map.reserved_bytes, Some(4096 * MIB));
    assert_eq!(map.reserved_difference_bytes, Some((4096 * MIB - listed) as i64));
    assert_eq!(
        (map.all.bytes, map.all.allocated_bytes, map.all.allocated_blocks),
        (listed, 820 * MIB, 30)
    );
    assert_eq!((map.split_bytes, map.cached_bytes), (Some(220 * MIB), Some(20 * MIB)));
    assert_eq!(map.largest_free_bytes, Some(80 * MIB));
    assert_eq!((map.other_segments.segments, map.merged.blocks, map.other_stacks.count), (0, 0, 0));
    let [weights, leak, cached] = &map.segments[..] else { panic!("{:?}", map.segments) };
    assert_eq!((weights.address.as_str(), weights.bytes), ("0x2000000", 640 * MIB));
    assert_eq!((weights.pool.as_str(), weights.stream.as_deref()), ("large", None));
    assert_eq!(
        (weights.block_count, weights.free_bytes, weights.largest_free_bytes),
        (20, 140 * MIB, 7 * MIB)
    );
    assert_eq!((leak.pool.as_str(), leak.private_pool.as_deref()), ("private", Some("0,1")));
    assert_eq!((leak.stream.as_deref(), leak.block_count), (Some("0x0"), 10));
    assert_eq!((cached.address.as_str(), cached.block_count), ("0x10000000000", 0));
    let [first, free, ..] = &weights.blocks[..] else { panic!("{weights:?}") };
    assert_eq!((first.state.as_str(), first.requested_bytes), ("allocated", Some(25 * MIB - 100)));
    assert_eq!((free.state.as_str(), free.step, free.stack), ("inactive", None, None));
    let steps: Vec<Option<u64>> = leak.blocks.iter().map(|block| block.step).collect();
    let leaked = (LEAK_BEGINS + 1..=STEP).map(Some);
    assert_eq!(steps, leaked.chain([None]).collect::<Vec<_>>(), "and a free range behind them");
    let stack = &map.stacks[leak.blocks[0].stack.unwrap() as usize];
    let line = &map.frames[stack.line.unwrap() as usize];
    assert_eq!(
        (line.file.as_str(), line.line),
        ("/app/train.py", LEAK_LINE),
        "as an incident names it"
    );
    let names: Vec<&str> =
        stack.frames.iter().map(|at| &*map.frames[*at as usize].function).collect();
    assert_eq!((names, stack.blocks, stack.bytes), (vec!["main", "train_step"], 10, 320 * MIB));
    for segment in &map.segments {
        let end = |at: u64, block: &MapBlock| {
            assert_eq!(block.offset_bytes, at, "filled without holes");
            at + block.bytes
        };
        assert_eq!(segment.blocks.iter().fold(0, end), segment.bytes);
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_without_detail_has_made_up_segments_and_a_wrong_question_one_line() {
    let (_dir, running, mut agent) = training(&JOB).await;
    let path = captured(&running, &mut agent).await;
    let map = segments(&running, &path, "rank=0&device=0").await;
    assert_eq!(map.segment_source.as_str(), "none");
    assert_eq!((map.split_bytes, map.reserved_difference_bytes), (None, None));
    assert!(map.segments.iter().all(|of| of.pool.as_str() == "unknown"), "{:?}", map.segments);
    assert_eq!((map.all.allocated_bytes, map.all.allocated_blocks), (500 * MIB, 20));
    for (query, status, words) in [
        ("device=0", 400, "rank"),
        ("rank=9", 404, "no rank"),
        ("rank=2&device=3", 404, "no device"),
    ] {
        let (answered, answer) = running.get(&format!("{path}/segments?{query}")).await;
        let line = answer["error"].as_str().unwrap();
        assert!(answered == status && line.contains(words), "{query}: {answered} {line}");
    }
    assert_eq!(running.get("/api/v1/captures/cap-none/segments?rank=2").await.0, 404);
    let (_, audit) = running.get("/api/v1/audit").await;
    let is_entry = |entry: &Value| entry["action"] == "read segments";
    assert!(audit["entries"].as_array().unwrap().iter().any(is_entry), "{audit}");
    running.stop().await;
}
