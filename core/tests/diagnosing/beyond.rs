//! Growths that no tensor explains: in the allocator, beside PyTorch, on the host, in step.

use memtape_core::detector::Layer;
use memtape_core::diagnosis::{Cause, Class};
use memtape_core::snapshot::marks::Mark;
use memtape_core::snapshot::origin::Origin;
use memtape_core::snapshot::{
    CollectiveGroup, CollectiveSource, Collectives, OutsideUse, TraceKind,
};

use super::maker::*;
use super::{Scenario, scenario};

pub(crate) fn all() -> Vec<Scenario> {
    let mut all = allocator();
    all.extend(held_back());
    all.extend(recurring());
    all.extend(outside());
    all.extend(host());
    all.extend(workers());
    all.extend(lines_outside());
    all.extend(lines_on_the_host());
    all.extend(out_of_step());
    all
}

fn without_line(class: Class, cause: Cause) -> (Class, Option<String>, Cause) {
    (class, None, cause)
}

/// Segments that are held by one small block each.
fn split(rank: &mut Rank, expandable: bool) {
    rank.segment(0, 0, expandable);
    for _ in 0..4 {
        rank.add(&["/app/data.py:12:collate", MAIN], 512, [5]);
        rank.segment(300 * MIB, 0, expandable);
    }
    rank.event(TraceKind::Alloc, 1, 512 * MIB, 375);
}

fn allocator() -> Vec<Scenario> {
    let reserved = || growth(Layer::Reserved, 4 * MIB);
    vec![
        scenario(
            "free blocks that are too small",
            without_line(Class::Fragmentation, Cause::Fragments),
            true,
            Asked::new(reserved(), |rank| split(rank, false)).with(|context| {
                context.retries = Some(12);
            }),
        ),
        scenario(
            "free pieces in expandable segments",
            without_line(Class::Fragmentation, Cause::Fragments),
            true,
            Asked::new(reserved(), |rank| split(rank, true)),
        ),
        scenario(
            "whole segments wait in the cache",
            without_line(Class::Fragmentation, Cause::CachedSegments),
            false,
            Asked::new(reserved(), |rank| {
                rank.segment(MIB, 0, false).segment(GIB, 0, false);
            }),
        ),
        scenario(
            "nothing is known of the segments",
            without_line(Class::Fragmentation, Cause::Fragments),
            true,
            Asked::new(reserved(), |_| {}),
        ),
    ]
}

fn held_back() -> Vec<Scenario> {
    let reserved = || growth(Layer::Reserved, 4 * MIB);
    vec![
        scenario(
            "other streams use what was freed",
            (Class::DeferredFrees, Some("copy.py:8".to_string()), Cause::Streams),
            true,
            Asked::new(growth(Layer::Deferred, 4 * MIB), |rank| {
                rank.add(&["/app/copy.py:8:prefetch", MAIN], 4 * MIB, ONSET..STEP);
                rank.last(|block| block.pending = true);
            }),
        ),
        scenario(
            "reserved for what was freed",
            without_line(Class::DeferredFrees, Cause::Streams),
            true,
            Asked::new(reserved(), |rank| {
                rank.add(&["/app/copy.py:8:prefetch", MAIN], 4 * MIB, ONSET..STEP);
                rank.last(|block| block.pending = true);
            }),
        ),
        scenario(
            "what graphs of dropped models hold",
            without_line(Class::CompilePools, Cause::Recompiles),
            true,
            Asked::new(reserved(), |rank| {
                rank.segment(0, 0, false);
                rank.add(&["/app/sweep.py:24:compiled", MAIN], MIB, [5]);
                rank.last(|block| block.stream_pool = 1);
                rank.segment(GIB, 1, false);
            }),
        ),
        scenario(
            "a graph for each shape",
            (Class::CompilePools, Some("model.py:40".to_string()), Cause::Recompiles),
            true,
            Asked::on_all(growth(Layer::Allocated, 2 * MIB), |rank| {
                rank.segment(0, 0, false);
                let inner = "/x/site-packages/torch/_inductor/cudagraph_trees.py:7:run";
                rank.add(
                    &[inner, "/app/model.py:40:forward", MAIN],
                    57 * MIB,
                    (ONSET..STEP).step_by(30),
                );
                rank.last(|block| block.stream_pool = 1);
                rank.segment(0, 1, false);
            }),
        ),
    ]
}

fn recurring() -> Vec<Scenario> {
    vec![
        scenario(
            "the loop empties the cache",
            (Class::CacheThrash, Some("train.py:34".to_string()), Cause::EmptyCache),
            false,
            Asked::new(growth(Layer::Churn, 0), |rank| {
                for step in STEP - 65..STEP {
                    rank.event(TraceKind::SegmentFree, 1, 20 * MIB, step);
                    rank.event(TraceKind::SegmentAlloc, 1, 20 * MIB, step);
                }
            })
            .but(|asked| {
                asked.growth.grown_bytes = 64;
                asked.growth.steps_to_oom = None;
            }),
        ),
        scenario(
            "the allocator tries again over free pieces",
            without_line(Class::Fragmentation, Cause::Fragments),
            true,
            Asked::new(growth(Layer::Retries, 0), |rank| split(rank, false)).but(|asked| {
                asked.growth.grown_bytes = 40;
                asked.growth.steps_to_oom = None;
            }),
        ),
    ]
}

fn outside() -> Vec<Scenario> {
    let class = |cause: Cause| without_line(Class::NonTorch, cause);
    vec![
        scenario(
            "process groups in the loop",
            class(Cause::Communicators),
            true,
            Asked::new(growth(Layer::NonTorch, 10 * MIB), |rank| {
                let bytes = 2_560 * MIB;
                let nccl = OutsideUse { origin: Origin::Nccl, device: 0, bytes, count: 5 };
                rank.snapshot().outside.push(nccl);
            })
            .with(|context| {
                context.before.non_torch = Some(600 * MIB);
                context.now.non_torch = Some(3_160 * MIB);
            }),
        ),
        scenario(
            "contexts of other ranks",
            class(Cause::Contexts),
            true,
            Asked::new(growth(Layer::NonTorch, 2 * MIB), |_| {})
                .with(|context| context.now.contexts = Some(8)),
        ),
        scenario(
            "it is not known what takes it",
            class(Cause::Outside),
            true,
            Asked::new(growth(Layer::NonTorch, 2 * MIB), |_| {}),
        ),
        scenario(
            "a neighbour on the GPU",
            class(Cause::Neighbours),
            true,
            Asked::new(growth(Layer::Other, 8 * MIB), |_| {}).with(|context| {
                context.before.other = Some(0);
                context.now.other = Some(2 * GIB);
            }),
        ),
    ]
}

fn host() -> Vec<Scenario> {
    let class = |cause: Cause| without_line(Class::Host, cause);
    let blind = |asked: &mut Asked| {
        // Nothing on the GPU is needed to tell it.
        asked.suspect.devices.clear();
        asked.peers.clear();
    };
    vec![
        scenario(
            "the process grows",
            class(Cause::HostObjects),
            true,
            Asked::new(growth(Layer::Host, 8 * MIB), |_| {}).but(blind),
        ),
        scenario(
            "the process grows by pinned memory",
            class(Cause::PinnedPool),
            true,
            Asked::new(growth(Layer::Host, 8 * MIB), |_| {}).with(|context| {
                context.before.pinned = Some(GIB);
                context.now.pinned = Some(3 * GIB);
            }),
        ),
        scenario(
            "pinned memory grows",
            class(Cause::PinnedPool),
            true,
            Asked::new(growth(Layer::Pinned, 8 * MIB), |_| {}).but(blind),
        ),
        scenario(
            "shared memory grows",
            class(Cause::SharedQueues),
            true,
            Asked::new(growth(Layer::Shared, 8 * MIB), |_| {}),
        ),
    ]
}

fn workers() -> Vec<Scenario> {
    let class = |cause| without_line(Class::Host, cause);
    vec![
        scenario(
            "the workers grow",
            class(Cause::Workers),
            true,
            Asked::new(growth(Layer::Workers, 8 * MIB), |_| {}).with(|context| {
                context.before.workers = Some(8 * GIB);
                context.now.workers = Some(10 * GIB);
                context.before.worker_count = Some(8);
                context.now.worker_count = Some(8);
                context.now.host_limit = Some(64 * GIB);
            }),
        ),
        scenario(
            "the workers grow, and were sampled",
            (Class::Host, Some("data.py:12".to_string()), Cause::Workers),
            true,
            Asked::new(growth(Layer::Workers, 8 * MIB), |rank| {
                rank.sampled(&SAMPLED);
            }),
        ),
        scenario(
            "the workers grow, and were hardly seen at work",
            class(Cause::Workers),
            true,
            Asked::new(growth(Layer::Workers, 8 * MIB), |rank| {
                rank.sampled(&[(&["/app/data.py:12:decode", LOOP, BOOTSTRAP, MAIN], 4)]);
            }),
        ),
        scenario(
            "the workers grow, and ran no code of the user's",
            class(Cause::Workers),
            true,
            Asked::new(growth(Layer::Workers, 8 * MIB), |rank| {
                rank.sampled(&[(&[LOOP, BOOTSTRAP, MAIN], 90)]);
                let samples = rank.snapshot().worker_samples.as_mut().expect("just added");
                samples.failure = "py-spy: Permission Denied".to_string();
                (samples.processes_failed, samples.processes_left_out) = (1, 4);
            }),
        ),
        scenario(
            "tensors grow, and the workers were sampled",
            (Class::Leak, Some("train.py:36".to_string()), Cause::Kept),
            true,
            Asked::new(growth(Layer::Allocated, 8 * MIB), |rank| {
                rank.add(&["/app/train.py:36:train_step", MAIN], 8 * MIB, ONSET..STEP);
                rank.sampled(&SAMPLED);
            }),
        ),
        scenario(
            "more and more workers",
            class(Cause::Workers),
            true,
            Asked::new(growth(Layer::Workers, 8 * MIB), |_| {}).with(|context| {
                context.before.worker_count = Some(8);
                context.now.worker_count = Some(24);
            }),
        ),
    ]
}

const LOOP: &str = "/x/site-packages/torch/utils/data/_utils/worker.py:349:_worker_loop";
const BOOTSTRAP: &str = "/usr/lib/python3.11/multiprocessing/process.py:314:_bootstrap";
const ITEM: &str = "/app/data.py:31:__getitem__";

/// A forked worker: no stack is as frequent as that of `__getitem__` alone, and the narrowest
/// function that it runs often is `decode`, by several of its lines.
const SAMPLED: [(&[&str], u64); 7] = [
    (&["/app/data.py:33:__getitem__", LOOP, BOOTSTRAP, MAIN], 26),
    (&["/x/site-packages/numpy/c.py:5:ones", "/app/data.py:12:decode", ITEM, LOOP, BOOTSTRAP], 25),
    (&["/app/data.py:14:decode", ITEM, LOOP, BOOTSTRAP, MAIN], 24),
    (&["/app/data.py:12:decode", ITEM, LOOP, BOOTSTRAP, MAIN], 20),
    (&["/app/data.py:50:crop", ITEM, LOOP, BOOTSTRAP, MAIN], 2),
    (&[LOOP, BOOTSTRAP, MAIN], 10),
    (&[BOOTSTRAP, MAIN], 5),
];

const RAW: &str = "/app/kernels.py:21:scratch";
const RUN: &str = "/app/train.py:44:train_step";
const GROUP: &str = "/x/site-packages/torch/distributed/distributed_c10d.py:5011:_new_group";

/// One in every 32 steps since the growth began.
fn now_and_then() -> std::iter::StepBy<std::ops::Range<u64>> {
    (ONSET..STEP).step_by(32)
}

/// Growth on the device of which the calls were recorded with their stacks.
fn lines_outside() -> Vec<Scenario> {
    let named = |line: &str, cause: Cause| (Class::NonTorch, Some(line.to_string()), cause);
    let grows = || growth(Layer::NonTorch, 2 * MIB);
    vec![
        scenario(
            "cudaMalloc in a kernel's wrapper",
            named("kernels.py:21", Cause::Outside),
            true,
            Asked::new(grows(), |rank| {
                rank.took(Origin::CudaMalloc, &[RAW, RUN, MAIN], 2 * MIB, ONSET..STEP);
            }),
        ),
        scenario(
            "process groups that a line makes",
            named("train.py:44", Cause::Communicators),
            true,
            Asked::on_all(grows(), |rank| {
                rank.took(Origin::Nccl, &[GROUP, RUN, MAIN], 64 * MIB, now_and_then());
            }),
        ),
        scenario(
            "workspaces beyond those that the peers have too",
            named("kernels.py:21", Cause::Outside),
            true,
            Asked::new(grows(), |rank| {
                rank.took(Origin::CudaMallocAsync, &[RAW, RUN, MAIN], 2 * MIB, ONSET..STEP);
                rank.took(Origin::Managed, &["/app/setup.py:9:warm", MAIN], GIB, [ONSET + 9]);
            })
            .beside(|rank| {
                rank.took(Origin::Managed, &["/app/setup.py:9:warm", MAIN], GIB, [ONSET + 9]);
            }),
        ),
        scenario(
            "most of it taken by no recorded call",
            without_line(Class::NonTorch, Cause::Outside),
            true,
            Asked::new(grows(), |rank| {
                rank.took(Origin::CudaMalloc, &[RAW, RUN, MAIN], 4 * MIB, now_and_then());
            }),
        ),
        scenario(
            "calls of a thread that has no Python stack",
            without_line(Class::NonTorch, Cause::Outside),
            true,
            Asked::new(grows(), |rank| {
                rank.took(Origin::CudaMalloc, &[], 2 * MIB, ONSET..STEP);
            }),
        ),
        scenario(
            "as much given back as taken",
            without_line(Class::NonTorch, Cause::Outside),
            true,
            Asked::new(grows(), |rank| {
                rank.took(Origin::CudaMalloc, &[RAW, RUN, MAIN], 2 * MIB, ONSET..STEP);
                for row in &mut rank.snapshot().outside_stacks {
                    row.before = Some(row.held);
                }
            }),
        ),
    ]
}

/// The same on the host.
fn lines_on_the_host() -> Vec<Scenario> {
    let named = |line: &str, cause: Cause| (Class::Host, Some(line.to_string()), cause);
    let pins = |rank: &mut Rank| {
        let pin = "/app/data.py:33:fetch";
        rank.took(Origin::HostPinned, &[pin, RUN, MAIN], 8 * MIB, ONSET..STEP);
        rank.took(Origin::CpuTensor, &["/app/log.py:5:note", RUN, MAIN], MIB, ONSET..STEP);
    };
    let pins_at_saves = |rank: &mut Rank| {
        let saves = || (ONSET..STEP).step_by(32);
        rank.took(Origin::HostPinned, &["/app/save.py:8:save", RUN, MAIN], 256 * MIB, saves());
        let mark = |step| Mark { mono_ns: 0, step, text: "activity=save".to_string() };
        rank.snapshot().marks.extend(saves().map(mark));
    };
    vec![
        scenario(
            "copies that stay pinned at each save",
            named("save.py:8", Cause::PinnedPool),
            true,
            Asked::new(growth(Layer::Pinned, 8 * MIB), pins_at_saves),
        ),
        scenario(
            "pinned memory that a line takes",
            named("data.py:33", Cause::PinnedPool),
            true,
            Asked::new(growth(Layer::Pinned, 8 * MIB), pins),
        ),
        scenario(
            "pinned in the backward pass, where no line is known",
            without_line(Class::Host, Cause::PinnedPool),
            true,
            Asked::new(growth(Layer::Pinned, 8 * MIB), |rank| {
                let births = ONSET..STEP;
                rank.took(Origin::HostPinned, &["<autograd>::AccumulateGrad"], 8 * MIB, births);
            }),
        ),
        scenario(
            "results that stay on the CPU",
            named("log.py:5", Cause::HostObjects),
            true,
            Asked::on_all(growth(Layer::Host, MIB), pins),
        ),
        scenario(
            "the process grows by what a line pins",
            named("data.py:33", Cause::PinnedPool),
            true,
            Asked::new(growth(Layer::Host, 8 * MIB), pins).with(|context| {
                context.before.pinned = Some(GIB);
                context.now.pinned = Some(3 * GIB);
            }),
        ),
    ]
}

/// Ranks 0, 1 and 3 have waited for rank 2 for 61 s; rank 2 was polled 58 s after they began.
fn stuck(asked: &mut Asked) {
    const SECOND: i64 = 1_000_000_000;
    for snapshot in asked.peers.iter_mut().chain([&mut asked.suspect]) {
        let (enqueued, completed, polled_s) = match snapshot.identity.rank {
            2 => (4_007, 4_007, 158),
            _ => (4_010, 4_007, 161),
        };
        let group = CollectiveGroup {
            key: 1,
            name: "0".to_string(),
            desc: "default_pg".to_string(),
            size: 4,
            enqueued: Some(enqueued),
            completed: Some(completed),
            since_wall_ns: 100 * SECOND,
            ..CollectiveGroup::default()
        };
        snapshot.collectives = Collectives {
            source: CollectiveSource::FlightRecorder,
            look_wall_ns: polled_s * SECOND,
            groups: vec![group],
            ..Collectives::default()
        };
    }
}

fn out_of_step() -> Vec<Scenario> {
    let silent = || {
        Asked::new(growth(Layer::Progress, 0), |_| {}).but(|asked| {
            asked.growth.grown_bytes = STEP - ONSET;
            asked.growth.steps_to_oom = None;
        })
    };
    vec![
        scenario(
            "a rank out of step",
            without_line(Class::Desynchronised, Cause::Collectives),
            true,
            Asked::new(growth(Layer::Allocated, MIB), |rank| {
                rank.add(&[LINEAR, "/app/train.py:34:train_step", MAIN], 128 * MIB, [375, 375]);
            })
            .but(stuck),
        ),
        scenario(
            "a silent rank for which the others wait",
            without_line(Class::Desynchronised, Cause::Collectives),
            true,
            silent().but(stuck),
        ),
        scenario(
            "a rank that falls silent",
            without_line(Class::Telemetry, Cause::Recording),
            false,
            silent(),
        ),
    ]
}
