//! Memory that is taken from the driver, past every other hook, is on the tape where it was asked
//! for, and counts once; where CUPTI is not to be had, the tape says why.

use std::process::Command;

use memtape_core::snapshot::ledger::{Amount, Ledger, Name, Sources};
use memtape_core::snapshot::origin::Origin;
use memtape_tests::{root, torch};

use crate::recorder::memory::Recorded;

/// `tests/torch/cupti.py` on a device of 1 GiB, without PyTorch.
fn recorded(arguments: &[&str], environment: &[(&str, &str)]) -> Recorded {
    let mut command = Command::new(root().join("tests/fake_cuda/run"));
    command.args(["-b", "1G", "--", "python3", "tests/torch/cupti.py"]);
    command.arg(root().join("target/fake_cuda/nccl/libnccluser.so")).args(arguments);
    command.envs(environment.iter().copied()).current_dir(root());
    Recorded::of(&mut command)
}

fn limitations(run: &Recorded) -> Vec<String> {
    run.tape.status().limitations
}

#[test]
fn driver_allocations_are_on_the_tape_if_enabled() {
    let run = recorded(&[], &[("MEMTAPE_CUPTI", "1")]);
    let held = (run.number("driver"), run.number("pieces"));
    assert_eq!(run.held(Origin::DriverVmm), held, "{}", run.expected);
    let lines = limitations(&run);
    assert!(lines.iter().any(|line| line.contains("MEMTAPE_CUPTI=1")), "{lines:?}");
    assert_others(&run);

    let run = recorded(&[], &[]);
    assert_eq!(run.held(Origin::DriverVmm), (0, 0), "it was not requested");
    let lines = limitations(&run);
    assert!(lines.iter().all(|line| !line.contains("CUPTI")), "{lines:?}");
    assert_others(&run);
}

/// What other hooks see is theirs, once.
fn assert_others(run: &Recorded) {
    assert_eq!(run.held(Origin::CudaMalloc), (run.number("malloc"), 1));
    assert_eq!(run.held(Origin::Nccl), (run.number("nccl"), 1));
}

#[test]
fn a_missing_cupti_is_explained_on_the_tape() {
    let attached = "no driver calls: a profiler is attached to CUPTI";
    let absent = "no driver calls: CUPTI is not loaded";
    for (arguments, has_cupti, reason) in [(&["first"][..], "1", attached), (&[], "0", absent)] {
        let run = recorded(arguments, &[("MEMTAPE_CUPTI", "1"), ("FAKECUDA_CUPTI", has_cupti)]);
        let lines = limitations(&run);
        assert!(lines.iter().any(|line| line == reason), "{reason} in {lines:?}");
        assert_eq!(run.held(Origin::DriverVmm), (0, 0), "{reason}");
        assert_others(&run);
    }
}

#[test]
fn expandable_segments_count_once() {
    let Some(torch) = torch("expandable segments and driver calls count once") else { return };
    let environment = [
        ("MEMTAPE_CUPTI", "1"),
        ("MEMTAPE_DETAIL", "1"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
    ];
    let run = Recorded::way(&torch, "ledger", &environment);
    // The allocator's segments, from the first on, are all that came from the driver …
    assert_eq!(run.held(Origin::DriverVmm).0, run.number("reserved_bytes"), "{}", run.expected);
    let now = run.now();
    let ledger = Ledger::of(&Sources {
        device_bytes: Some(run.number("total")),
        free_bytes: Some(run.number("free")),
        process_bytes: Some(run.number("total") - run.number("free")),
        allocator: now.devices.first(),
        outside: Some(&now.outside),
    });
    // … and the other code is what took memory from the runtime.
    assert_eq!(ledger.amount(Name::OtherCode), Amount::Known(run.number("foreign")), "{ledger:?}");
    assert_eq!(ledger.rest_bytes, Some(0), "{ledger:?}");
}
