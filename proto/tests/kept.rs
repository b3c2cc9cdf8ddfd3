//! What a rank has kept, as the API shows it: limited lists whose sums are exact.

use memtape_core::snapshot::{Block, DeviceSnapshot, Frame, RankSnapshot};
use memtape_core::stacks::{AllocationSteps, ComparedStacks, LiveStacks};
use memtape_proto::api::Kept;
use proptest::prelude::*;

/// A rank with this number of stacks; some of them share a line.
fn rank(stacks: u32, bytes: &[u64], devices: u8) -> RankSnapshot {
    let frame = |file: &str, line| Frame { file: file.into(), line, function: "f".into() };
    let mut frames = vec![Frame::default()];
    frames.extend((1..=stacks).map(|number| frame("/x/site-packages/torch/a.py", number)));
    frames.extend((1..=stacks).map(|number| frame("/app/train.py", number % 200)));
    let device = |device| {
        let block = |stack: u32| Block {
            size: bytes[stack as usize % bytes.len()],
            stack,
            birth_step: u64::from(stack % 7),
            ..Block::default()
        };
        DeviceSnapshot { device, blocks: (0..=stacks).map(block).collect(), ..Default::default() }
    };
    RankSnapshot {
        devices: (0..devices).map(device).collect(),
        frames,
        stacks: (0..=stacks)
            .map(|of| if of == 0 { vec![] } else { vec![of, stacks + of] })
            .collect(),
        ..RankSnapshot::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn lists_and_rests_add_up_to_the_byte(
        stacks in 0..2500_u32,
        bytes in prop::collection::vec(0..1_u64 << 40, 1..9),
        devices in 1..3_u8,
        room in prop::option::of(0..1_u64 << 20),
    ) {
        let rank = rank(stacks, &bytes, devices);
        let live = LiveStacks::of_snapshot(&rank, AllocationSteps::ALL);
        let mut compared = ComparedStacks::of(&live, room.unwrap_or(u64::MAX));
        compared.add_other(&live);
        let kept = Kept::of(&compared);
        let blocks = rank.devices.iter().flat_map(|device| &device.blocks);
        prop_assert_eq!(kept.bytes, blocks.clone().map(|block| block.size).sum::<u64>());
        prop_assert_eq!(kept.blocks, blocks.count() as u64);
        let (lines, rest) = (&kept.lines, kept.other_lines);
        prop_assert!(lines.len() <= 64);
        prop_assert_eq!(lines.iter().map(|line| line.bytes).sum::<u64>() + rest.bytes, kept.bytes);
        prop_assert_eq!(lines.iter().map(|of| of.blocks).sum::<u64>() + rest.blocks, kept.blocks);
        let (listed, rest) = (&kept.stacks, kept.other_stacks);
        prop_assert!(listed.len() <= 1024);
        prop_assert_eq!(listed.iter().map(|of| of.bytes).sum::<u64>() + rest.bytes, kept.bytes);
        prop_assert_eq!(listed.iter().map(|of| of.blocks).sum::<u64>() + rest.blocks, kept.blocks);
        prop_assert!(listed.is_sorted_by_key(|of| std::cmp::Reverse(of.bytes)));
        let is_device = |device: Option<u8>| device.is_some() == (devices > 1);
        prop_assert!(listed.iter().all(|of| is_device(of.device)));
        let indexes = listed.iter().flat_map(|of| &of.frames);
        prop_assert!(indexes.clone().all(|index| (*index as usize) < kept.frames.len()));
        prop_assert!(listed.iter().all(|of| of.peer_bytes == Some(of.bytes)));
        if room.is_none() {
            let all = u64::from(devices) * u64::from(stacks + 1);
            prop_assert_eq!(listed.len() as u64 + rest.count, all);
        }
    }
}
