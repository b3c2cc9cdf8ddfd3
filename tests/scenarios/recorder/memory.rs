//! Memory that PyTorch's caching allocator does not report is on the tape all the same, to the
//! byte, and the ledger of a device adds up.
//!
//! Each script takes memory in one way, says what it holds and leaves at once; the tape's last
//! state is compared with that.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use memtape_core::diagnosis::Churn;
use memtape_core::diagnosis::telling_frame;
use memtape_core::snapshot::ledger::{Amount, Ledger, Name, Sources};
use memtape_core::snapshot::origin::Origin;
use memtape_core::snapshot::{Frame, RankSnapshot, TraceKind};
use memtape_core::tape::read::Tape;
use memtape_core::tape::rewind::PointInTime;
use memtape_tests::processes::Process;
use memtape_tests::{Torch, library, memtape, root, tapes, torch};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(120);

const TRACE_EVENTS: usize = 100_000;

/// What a script said it holds, and its tape.
pub(crate) struct Recorded {
    pub(crate) expected: Value,
    pub(crate) tape: Tape<tapes::TapeFile>,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Recorded {
    /// Runs a command with the recorder in front.
    pub(crate) fn of(command: &mut Command) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        command.env("LD_PRELOAD", library()).env("MEMTAPE_DIR", folder.path());
        let (code, said) = Process::start(command).end(PATIENCE);
        assert_eq!(code, Some(0), "{said:#?}");
        let [path] = tapes::in_folder(folder.path()).try_into().unwrap_or_else(
            |paths: Vec<_>| -> [PathBuf; 1] { panic!("one tape: {paths:?}, {said:?}") },
        );
        let tape = tapes::open(&path);
        Self { expected: expectation(&said), tape, path, _folder: folder }
    }

    /// One way of `tests/torch/memory.py`, on a device of 1 GiB.
    pub(crate) fn way(torch: &Torch, way: &str, environment: &[(&str, &str)]) -> Self {
        let mut command = torch.command(1, "1G");
        command.args(["tests/torch/memory.py", way]).envs(environment.iter().copied());
        Self::of(&mut command)
    }

    pub(crate) fn number(&self, name: &str) -> u64 {
        self.expected[name].as_u64().unwrap_or_else(|| panic!("{name} in {}", self.expected))
    }

    pub(crate) fn now(&self) -> RankSnapshot {
        self.tape.snapshot(PointInTime::Present, None, TRACE_EVENTS).expect("the last state")
    }

    /// Bytes and pieces that came from an origin. The sums in the header say the same bytes.
    pub(crate) fn held(&self, origin: Origin) -> (u64, u64) {
        let of = |sum: (u64, u64), each: &memtape_core::snapshot::OutsideUse| {
            (sum.0 + each.bytes, sum.1 + each.count)
        };
        let held = |uses: &[memtape_core::snapshot::OutsideUse]| {
            uses.iter().filter(|each| each.origin == origin).fold((0, 0), of)
        };
        let pieces = held(&self.now().outside);
        let sums = held(&self.tape.outside().expect("the recorder keeps sums"));
        assert_eq!(sums.0, pieces.0, "{origin:?}");
        pieces
    }
}

/// Functions of the script that hold memory of an origin, with what they hold; empty of a stack
/// that is not known.
fn holders(state: &RankSnapshot, origin: Origin) -> BTreeMap<String, u64> {
    let mut holders = BTreeMap::new();
    for row in state.outside_stacks.iter().filter(|row| row.origin == origin) {
        let stack: Vec<&Frame> = state.frames_of(row.stack).collect();
        let frame = telling_frame(&stack).filter(|frame| frame.file.ends_with("/memory.py"));
        // What Python calls a comprehension belongs to the function around it.
        let name = frame.map_or("", |frame| frame.function.split('.').next().unwrap_or_default());
        *holders.entry(name.to_string()).or_insert(0) += row.held.bytes;
    }
    holders
}

#[test]
fn other_memory_is_reported_with_the_line_that_took_it() {
    let Some(torch) = torch("memory outside the allocator has its lines") else { return };
    let alone = |name: &str, bytes: u64| BTreeMap::from([(name.to_string(), bytes)]);
    let run = Recorded::way(&torch, "pinned", &[]);
    let held = run.number("held") + run.number("other");
    assert_eq!(holders(&run.now(), Origin::HostPinned), alone("pinned", held));
    let run = Recorded::way(&torch, "managed", &[]);
    assert_eq!(holders(&run.now(), Origin::Managed), alone("managed", run.number("held")));
    // PyTorch's segments come from cudaMalloc as well, one of them without a block: what is not one
    // is known where the allocator tells, and else nothing is said.
    for (detail, is_reported) in [("0", false), ("1", true)] {
        let run = Recorded::way(&torch, "ledger", &[("MEMTAPE_DETAIL", detail)]);
        let (foreign, all) = (run.number("foreign"), run.held(Origin::CudaMalloc).0);
        assert!(all > foreign, "{all} bytes are all of cudaMalloc");
        let expected = if is_reported { alone("ledger", foreign) } else { BTreeMap::new() };
        assert_eq!(holders(&run.now(), Origin::CudaMalloc), expected, "detail {detail}");
    }
}

fn expectation(said: &[String]) -> Value {
    let line = said.iter().find_map(|line| line.strip_prefix("expected "));
    let line = line.unwrap_or_else(|| panic!("no expectation: {said:#?}"));
    serde_json::from_str(line).expect("a JSON object")
}

#[test]
fn pinned_memory_is_on_the_tape() {
    let Some(torch) = torch("pinned memory equals PyTorch's own count") else { return };
    let run = Recorded::way(&torch, "pinned", &[]);
    let held = (run.number("held") + run.number("other"), run.number("live") + 1);
    assert_eq!(run.held(Origin::HostPinned), held, "{}", run.expected);

    let run = Recorded::way(&torch, "registered", &[]);
    assert_eq!(run.held(Origin::HostRegistered), (run.number("held"), 1));
}

#[test]
fn managed_memory_is_on_the_tape() {
    let Some(torch) = torch("managed memory is on the tape") else { return };
    let run = Recorded::way(&torch, "managed", &[]);
    assert_eq!(run.held(Origin::Managed), (run.number("held"), 2));
}

#[test]
fn tensors_without_the_caching_allocator_are_on_the_tape() {
    let Some(torch) = torch("the other allocators are on the tape") else { return };
    let uncached = [("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")];
    let run = Recorded::way(&torch, "uncached", &uncached);
    assert_eq!(run.held(Origin::CudaMalloc), (run.number("held"), 2));

    // The pool's blocks are the device's, step by step.
    let backend = [("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")];
    let run = Recorded::way(&torch, "backend", &backend);
    let held = run.expected["held"].as_array().expect("a number for each step").clone();
    assert_eq!(held.len(), 8);
    for (step, expected) in (1..).zip(&held) {
        let then =
            run.tape.snapshot(PointInTime::EndOf(step), None, 0).expect("the step is covered");
        let [device] = then.devices.as_slice() else { panic!("one device: {then:?}") };
        let live: u64 = device.blocks.iter().map(|block| block.size).sum();
        assert_eq!(Some(device.allocated), expected.as_u64(), "allocated at step {step}");
        assert_eq!(live, device.allocated, "live blocks at step {step}");
    }
    let records = run.tape.steps_after(0, 0).records;
    assert_eq!(records.last().map(|record| record.last_step), Some(8), "{records:?}");
    assert!(run.now().devices[0].blocks.iter().all(|block| block.stack != 0), "with their stacks");
}

#[test]
fn a_failed_malloc_is_a_retry_with_its_latency() {
    let Some(torch) = torch("failed cudaMallocs are retries with their latency") else { return };
    const LATENCY_US: u64 = 3000;
    let latency = LATENCY_US.to_string();
    let run = Recorded::way(&torch, "retries", &[("FAKECUDA_MALLOC_US", latency.as_str())]);
    let (retries, ooms) = (run.number("retries"), run.number("ooms"));
    assert!(retries >= 2 && ooms == 1, "{}", run.expected);
    let totals = run.tape.totals();
    let now = run.now();
    let failed = now.devices[0].trace.iter().filter(|event| event.kind == TraceKind::MallocFailed);
    let took_ns: Vec<u64> = failed.map(|event| event.detail).collect();
    // PyTorch counts a retry when a second attempt is due; a request that fails for good fails
    // that one, too.
    assert_eq!(totals[0].malloc_failures, took_ns.len() as u64);
    assert_eq!(took_ns.len() as u64, retries + ooms, "{took_ns:?}");
    assert!(took_ns.iter().all(|&ns| ns >= LATENCY_US * 1000), "{took_ns:?}");
}

#[test]
fn cpu_tensors_are_on_the_tape_if_enabled() {
    let Some(torch) = torch("CPU tensors equal what Python finds") else { return };
    let run = Recorded::way(&torch, "cpu", &[("MEMTAPE_CPU", "1")]);
    assert_eq!(run.held(Origin::CpuTensor), (run.number("held"), run.number("live")));

    let run = Recorded::way(&torch, "cpu", &[]);
    assert_eq!(run.held(Origin::CpuTensor), (0, 0), "it was not requested");
}

/// CPU memory under PyTorch's profiler, of blocks made before and inside of it; two profiles, one
/// that looks at memory and one that does not.
const PROFILED: &str = r#"
import torch
from torch.profiler import profile, ProfilerActivity
device = torch.empty(1, device="cuda")
before = torch.ones(1000, 1000)
for looks in (True, False):
    with profile(activities=[ProfilerActivity.CPU], profile_memory=looks) as seen:
        x = torch.empty(1000, 1000, requires_grad=True)
        (x * 2).sum().backward()
        before = None
    print("profiled", [(e.name, e.cpu_memory_usage) for e in seen.events() if e.cpu_memory_usage])
    seen.export_chrome_trace(f"{__import__('sys').argv[1]}.{looks}")
"#;

#[test]
fn a_profiler_sees_the_same_cpu_memory_with_the_recorder_as_without() {
    let Some(torch) = torch("CPU profiles are unchanged") else { return };
    let profile = |recorded: bool| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let trace = folder.path().join("trace");
        let mut command = torch.command(1, "1G");
        if recorded {
            command.env("LD_PRELOAD", library()).env("MEMTAPE_CPU", "1");
            command.env("MEMTAPE_DIR", folder.path());
        }
        command.args(["-W", "ignore", "-c", PROFILED]).arg(&trace);
        let (code, said) = Process::start(&mut command).end(PATIENCE);
        assert_eq!(code, Some(0), "{said:#?}");
        assert_eq!(tapes::in_folder(folder.path()).len(), usize::from(recorded));
        let seen = said.into_iter().filter(|line| line.starts_with("profiled"));
        (seen.collect::<Vec<_>>(), memory_of_trace(&folder.path().join("trace.True")))
    };
    let (plain, recorded) = (profile(false), profile(true));
    assert_eq!(plain.0.len(), 2);
    assert!(plain.0[0].contains("aten::empty") && plain.1.len() > 5, "{plain:?}");
    assert_eq!(recorded, plain);
}

/// Size and running total of each memory event in a Chrome trace, in order.
fn memory_of_trace(path: &Path) -> Vec<(i64, u64)> {
    let text = std::fs::read_to_string(path).expect("the profiler's trace");
    let trace: Value = serde_json::from_str(&text).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events");
    let memory = events.iter().filter(|event| event["name"] == "[memory]");
    memory
        .filter_map(|event| {
            let of = &event["args"];
            Some((of["Bytes"].as_i64()?, of["Total Allocated"].as_u64()?))
        })
        .collect()
}

#[test]
fn emptying_the_cache_in_the_loop_is_reported_from_a_warm_cache() {
    let Some(torch) = torch("cache thrash is told from a warm cache") else { return };
    for (way, is_thrash) in [("thrash", true), ("warm", false)] {
        for detail in ["0", "1"] {
            let run = Recorded::way(&torch, way, &[("MEMTAPE_DETAIL", detail)]);
            let now = run.now();
            let trace = &now.devices[0].trace;
            let churn = Churn::of(trace, now.step);
            assert_eq!(churn.is_thrash(), is_thrash, "{way}, detail {detail}: {churn:?}");
            let count = |kind| trace.iter().filter(|event| event.kind == kind).count() as u64;
            assert_eq!(count(TraceKind::SegmentAlloc), run.number("taken"), "{way}");
            assert_eq!(count(TraceKind::SegmentFree), run.number("returned"), "{way}");
        }
    }
}

#[test]
fn memory_of_a_communicator_counts_as_nccl() {
    let folder = root().join("target/fake_cuda/nccl");
    let mut command = Command::new(root().join("tests/fake_cuda/run"));
    command.args(["-b", "1G", "--", "python3", "tests/torch/nccl.py"]);
    command.arg(folder.join("libnccluser.so")).current_dir(root());
    let run = Recorded::of(&mut command);
    assert_eq!(run.held(Origin::Nccl), (run.number("nccl"), run.number("live")));
    assert_eq!(run.held(Origin::CudaMalloc), (run.number("malloc"), 1));
}

#[test]
fn the_ledger_of_a_device_adds_up() {
    let Some(torch) = torch("the ledger of a device adds up") else { return };
    for (detail, expandable) in [("1", false), ("0", false), ("1", true)] {
        let conf = format!("expandable_segments:{}", if expandable { "True" } else { "False" });
        let environment = [("MEMTAPE_DETAIL", detail), ("PYTORCH_CUDA_ALLOC_CONF", conf.as_str())];
        let run = Recorded::way(&torch, "ledger", &environment);
        let now = run.now();
        let (free, total) = (run.number("free"), run.number("total"));
        let ledger = Ledger::of(&Sources {
            device_bytes: Some(total),
            free_bytes: Some(free),
            process_bytes: Some(total - free), // it is alone there
            allocator: now.devices.first(),
            outside: Some(&now.outside),
        });
        let case = format!("detail {detail}, {conf}: {ledger:?}");
        let (allocated, reserved) = (run.number("allocated_bytes"), run.number("reserved_bytes"));
        let (requested, split) =
            (run.number("requested_bytes"), run.number("inactive_split_bytes"));
        for (name, bytes) in [
            (Name::OtherProcesses, 0),
            (Name::OtherCode, run.number("foreign")),
            (Name::InactiveSplit, split),
            (Name::Cached, reserved - allocated - split),
        ] {
            assert_eq!(ledger.amount(name), Amount::Known(bytes), "{name:?}, {case}");
        }
        let tensors = if detail == "1" {
            [(Name::Requested, requested), (Name::Rounding, allocated - requested)].to_vec()
        } else {
            [(Name::InUse, allocated)].to_vec()
        };
        for (name, bytes) in tensors {
            assert_eq!(ledger.amount(name), Amount::Known(bytes), "{name:?}, {case}");
        }
        // The fake has no context: nothing is left that no layer explains.
        assert_eq!(ledger.rest_bytes, Some(0), "{case}");
    }
}

#[test]
fn the_command_shows_the_ledger_of_a_tape() {
    let Some(torch) = torch("memtape tape shows the ledger") else { return };
    let run = Recorded::way(&torch, "ledger", &[("MEMTAPE_DETAIL", "1")]);
    let show = |json: &[&str]| {
        let output = Command::new(memtape()).arg("tape").arg(&run.path).args(json).output();
        String::from_utf8(output.expect("memtape runs").stdout).expect("text")
    };
    let shown: Value = serde_json::from_str(&show(&["--json"])).expect("JSON");
    let ledger = &shown["devices"][0]["ledger"];
    let layers = ledger["layers"].as_array().expect("layers");
    let bytes = |name: &str| {
        let layer = layers.iter().find(|layer| layer["layer"] == name);
        layer.unwrap_or_else(|| panic!("{name} in {ledger}"))["bytes"].as_u64()
    };
    // A dead process's tape knows nothing of NVML: unknown is not zero, and unaccounted.
    assert_eq!((bytes("free"), bytes("other processes")), (None, None), "{ledger}");
    assert_eq!(bytes("requested"), Some(run.number("requested_bytes")));
    assert_eq!(bytes("other code"), Some(run.number("foreign")));
    let known: u64 = layers.iter().filter_map(|layer| layer["bytes"].as_u64()).sum();
    let device = ledger["device_bytes"].as_u64().expect("the tape has the device's size");
    assert_eq!(ledger["unaccounted_bytes"].as_u64(), Some(device - known));
    assert_eq!(device, run.number("total"));

    let text = show(&[]);
    assert!(
        text.contains("unaccounted: free, other processes, NCCL, context and kernels"),
        "{text}"
    );
    assert!(shown["outside"].as_array().is_some_and(|uses| !uses.is_empty()), "{shown}");
}

#[test]
fn the_size_of_a_device_is_that_of_the_driver_in_use() {
    let Some(torch) = torch("the toolkit's stub of the driver is not asked") else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let source = folder.path().join("stub.c");
    // What a stub answers; the fake CUDA has no library of this name that would come before it.
    std::fs::write(&source, "int cuDeviceGet(void) { return 34; }\n").expect("the source");
    let mut compiler = Command::new("gcc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(folder.path().join("libcuda.so")).arg(&source);
    assert!(compiler.status().expect("gcc runs").success());
    let path = folder.path().to_str().expect("a plain path");
    let run = Recorded::way(&torch, "ledger", &[("LD_LIBRARY_PATH", path)]);
    let [device] = &run.tape.totals()[..] else { panic!("one device") };
    assert_eq!(device.device_bytes, run.number("total"));
}
