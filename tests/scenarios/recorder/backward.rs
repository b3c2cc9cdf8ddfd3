//! Memory of the backward pass has the line of the forward pass.
//!
//! Autograd's threads run no Python. A gradient's stack is the node that made it and the stack of
//! the forward operator; what Python does run there, a custom function's `backward` and what is
//! computed again under checkpointing, has frames of its own.

use std::collections::HashMap;
use std::time::Duration;

use memtape_core::diagnosis::telling_frame;
use memtape_core::snapshot::Frame;
use memtape_core::tape::rewind::PointInTime;
use memtape_tests::processes::Process;
use memtape_tests::{marked_line, tapes, torch};
use serde_json::Value;

const SCRIPT: &str = "tests/torch/backward.py";

#[test]
fn gradients_have_the_line_of_their_operator() {
    let Some(torch) = torch("gradients have forward lines") else { return };
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let mut command = torch.recorded(1, "2G", scratch.path());
    let (code, said) = Process::start(command.arg(SCRIPT)).end(Duration::from_secs(120));
    assert_eq!(code, Some(0), "{said:#?}");
    let line = said.iter().find(|line| line.starts_with('{')).expect("addresses");
    let kept: HashMap<String, Vec<u64>> = serde_json::from_str::<Value>(line)
        .and_then(serde_json::from_value)
        .expect("lists of addresses by name");

    let [path] = &*tapes::in_folder(scratch.path()) else { panic!("one tape") };
    let snapshot = tapes::open(path).snapshot(PointInTime::Present, None, 0).expect("the present");
    let stack_of = |address: u64| -> Vec<&Frame> {
        let mut blocks = snapshot.devices.iter().flat_map(|device| &device.blocks);
        let block = blocks.find(|block| block.address == address).expect("a live block");
        snapshot.frames_of(block.stack).collect()
    };
    let check = |name: &str, count: usize, first: &str| {
        let addresses = &kept[name];
        assert_eq!(addresses.len(), count, "{name}");
        for &address in addresses {
            let stack = stack_of(address);
            assert_eq!(stack[0].function, first, "{name}: {stack:#?}");
            let telling = telling_frame(&stack).expect("a frame");
            assert!(telling.file.ends_with("backward.py"), "{name}: {stack:#?}");
            let expected = marked_line(SCRIPT, &format!("# {name}"));
            assert_eq!(telling.line, expected, "{name}: {stack:#?}");
        }
    };
    check("cos", 4, "CosBackward0");
    check("custom", 4, "Doubled.backward");
    check("recomputed", 4, "ExpBackward0");
    check("mm", 1, "MmBackward0");
}
